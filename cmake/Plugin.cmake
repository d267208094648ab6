# fvlm_plugin(NAME attention-cpu SOURCES ...)   a plugin library: SDK headers and nothing of ours besides.
# It lies in the build tree as in the install tree: lib/fvlm/plugins/<name>/{plugin.toml,<name>.so}.
function(fvlm_plugin)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;LIBRARIES" ${ARGN})
  set(target plugin_${ARG_NAME})
  set(folder ${CMAKE_BINARY_DIR}/lib/fvlm/plugins/${ARG_NAME})
  add_library(${target} MODULE ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE fvlm_sdk fvlm_warnings ${ARG_LIBRARIES})
  set(exports ${PROJECT_SOURCE_DIR}/sdk/include/fvlm/exports.map)
  target_link_options(${target} PRIVATE -Wl,--version-script=${exports})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${exports})
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME ${ARG_NAME}
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${folder})
  configure_file(${CMAKE_CURRENT_SOURCE_DIR}/plugin.toml ${folder}/plugin.toml COPYONLY)
  install(TARGETS ${target} LIBRARY DESTINATION lib/fvlm/plugins/${ARG_NAME})
  install(FILES plugin.toml DESTINATION lib/fvlm/plugins/${ARG_NAME})
endfunction()
