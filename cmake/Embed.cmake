# fvlm_embed(TARGET report_page NAMESPACE fvlm::report FILES page/page.html ...)   compiles text files into a room, each as
# `const std::string_view page_html` of that namespace; a header of the room declares them.
#
# As a script (cmake -P), it writes the C++ file of one text file.
if(CMAKE_SCRIPT_MODE_FILE)
  file(READ ${FROM} text)
  file(WRITE ${TO} "// Made from ${NAME}.\n#include <string_view>\n\nnamespace ${NAMESPACE} {\nextern const std::string_view ${SYMBOL};\n"
    "const std::string_view ${SYMBOL} = R\"embedded(${text})embedded\";\n} // namespace ${NAMESPACE}\n")
  return()
endif()

set(FVLM_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
function(fvlm_embed)
  cmake_parse_arguments(ARG "" "TARGET;NAMESPACE" "FILES" ${ARGN})
  foreach(file ${ARG_FILES})
    cmake_path(GET file FILENAME name)
    string(MAKE_C_IDENTIFIER ${name} symbol)
    set(made ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.cpp)
    set(from ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    add_custom_command(OUTPUT ${made} DEPENDS ${from} ${FVLM_EMBED_SCRIPT} VERBATIM
      COMMAND ${CMAKE_COMMAND} -DFROM=${from} -DTO=${made} -DNAME=${file} -DSYMBOL=${symbol} -DNAMESPACE=${ARG_NAMESPACE} -P ${FVLM_EMBED_SCRIPT})
    target_sources(fvlm_${ARG_TARGET} PRIVATE ${made})
    set_source_files_properties(${made} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endforeach()
endfunction()
