# fvlm_plugin(NAME attention-cpu SOURCES ...)   a plugin library: SDK headers and nothing of ours besides.
# It lies in the build tree as in the install tree: lib/fvlm/plugins/<name>/{plugin.toml,<name>.so}. As a test, it has to
# pass plugin check.
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
  add_dependencies(product ${target})
  install(TARGETS ${target} LIBRARY DESTINATION lib/fvlm/plugins/${ARG_NAME})
  install(FILES plugin.toml DESTINATION lib/fvlm/plugins/${ARG_NAME})
  file(READ plugin.toml manifest)
  if(NOT FVLM_SANITIZE AND manifest MATCHES "\"cpu\"") # once is enough, where no other device is needed
    add_test(NAME plugin_check.${ARG_NAME} COMMAND fvlm-engine plugin check ${folder})
    set_tests_properties(plugin_check.${ARG_NAME} PROPERTIES TIMEOUT 600)
  endif()
endfunction()

# fvlm_plugin_test(PLUGIN optimizer-adamw NAME adamw_test SOURCES ...)   a GoogleTest program over the built library of
# that plugin (FVLM_TEST_LIBRARY), which may ask PyTorch through FVLM_PYTHON. Paths of includes begin in plugins/.
function(fvlm_plugin_test)
  cmake_parse_arguments(ARG "" "PLUGIN;NAME;TIMEOUT" "SOURCES" ${ARGN})
  fvlm_test(NAME ${ARG_NAME} SOURCES ${ARG_SOURCES} DEPENDS fvlm_sdk ${CMAKE_DL_LIBS} TIMEOUT "${ARG_TIMEOUT}")
  add_dependencies(${ARG_NAME} plugin_${ARG_PLUGIN})
  target_include_directories(${ARG_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/plugins)
  cmake_path(ABSOLUTE_PATH FVLM_TORCH_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE torch)
  cmake_path(APPEND torch ../../../../bin/python OUTPUT_VARIABLE python)
  cmake_path(NORMAL_PATH python)
  target_compile_definitions(${ARG_NAME} PRIVATE FVLM_TEST_LIBRARY="$<TARGET_FILE:plugin_${ARG_PLUGIN}>"
    FVLM_TEST_SOURCE="${CMAKE_CURRENT_SOURCE_DIR}/test" FVLM_PYTHON="${python}")
endfunction()
