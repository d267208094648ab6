# fvlm_plugin(NAME attention-cpu SOURCES ...)   a plugin library: SDK headers, plugins/common and nothing of ours besides.
# It lies in the build tree as in the install tree: lib/fvlm/plugins/<name>/{plugin.toml,<name>.so}. As a test, it has to
# pass plugin check. A plugin of CUDA files builds where FVLM_HAVE_CUDA, brings the CUDA runtime along, and its manifest
# gets the architectures that it was built for. lib/fvlm/bundled/<name>.sha256 is the build's note of the library: what
# has none, or another hash, is no plugin of ours.
#
# As a script (cmake -P), it writes the note.
if(CMAKE_SCRIPT_MODE_FILE)
  file(SHA256 ${LIBRARY} hash)
  file(WRITE ${NOTE} "${hash}\n")
  return()
endif()

set(FVLM_PLUGIN_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
function(fvlm_plugin)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;LIBRARIES" ${ARGN})
  set(target plugin_${ARG_NAME})
  set(folder ${CMAKE_BINARY_DIR}/lib/fvlm/plugins/${ARG_NAME})
  add_library(${target} MODULE ${ARG_SOURCES})
  target_include_directories(${target} PRIVATE ..) # plugins/
  target_link_libraries(${target} PRIVATE fvlm_sdk fvlm_warnings ${ARG_LIBRARIES})
  set(exports ${PROJECT_SOURCE_DIR}/sdk/include/fvlm/exports.map)
  target_link_options(${target} PRIVATE -Wl,--version-script=${exports})
  if(NOT FVLM_SANITIZE) # whose runtime the program brings
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${exports})
  # Run paths of the toolkit stay out of the library: the engine has brought its CUDA libraries by then.
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME ${ARG_NAME}
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${folder} BUILD_WITH_INSTALL_RPATH ON)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS plugin.toml)
  file(READ plugin.toml manifest)
  set(test $<TARGET_FILE:fvlm-engine> plugin check ${folder})
  if(ARG_SOURCES MATCHES "[.]cu(;|$)")
    set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Static)
    set(warnings -Xcompiler=-Wall,-Wextra -Werror=all-warnings)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${warnings}>")
    if(CMAKE_CUDA_ARCHITECTURES MATCHES "90a")
      target_compile_definitions(${target} PRIVATE FVLM_HAS_SM_90A)
    endif()
    set(architectures ${CMAKE_CUDA_ARCHITECTURES})
    list(FILTER architectures INCLUDE REGEX "^[0-9]+(a|-real|a-real)$")
    if(architectures STREQUAL CMAKE_CUDA_ARCHITECTURES) # no PTX that others could translate
      list(TRANSFORM architectures REPLACE "^([0-9]+a?).*" "\"sm_\\1\"")
      list(JOIN architectures ", " architectures)
      string(APPEND manifest "architectures = [${architectures}]\n")
    endif()
    fvlm_gpu_command(test ${test} --device cuda)
    # Others can be asked for than what is built here: the oldest one that is taken.
    list(FILTER ARG_SOURCES INCLUDE REGEX "[.]cu$")
    file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/others)
    add_test(NAME plugin_compiles_for_others.${ARG_NAME} WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
      COMMAND ${CMAKE_CUDA_COMPILER} -ptx -fdevice-syntax-only -arch=compute_80 -std=c++17 ${warnings} -I..
              -I${PROJECT_SOURCE_DIR}/sdk/include ${ARG_SOURCES} -odir ${CMAKE_CURRENT_BINARY_DIR}/others)
  endif()
  add_custom_command(TARGET ${target} POST_BUILD VERBATIM COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:${target}>
    -DNOTE=${CMAKE_BINARY_DIR}/lib/fvlm/bundled/${ARG_NAME}.sha256 -P ${FVLM_PLUGIN_SCRIPT})
  file(CONFIGURE OUTPUT ${folder}/plugin.toml CONTENT "${manifest}" @ONLY)
  add_dependencies(product ${target})
  install(TARGETS ${target} LIBRARY DESTINATION lib/fvlm/plugins/${ARG_NAME})
  install(FILES ${folder}/plugin.toml DESTINATION lib/fvlm/plugins/${ARG_NAME})
  # Behind the library's own installation, which may have stripped it.
  install(CODE "
    set(installed \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/fvlm\")
    file(SHA256 \"\${installed}/plugins/${ARG_NAME}/${ARG_NAME}.so\" hash)
    file(WRITE \"\${installed}/bundled/${ARG_NAME}.sha256\" \"\${hash}\\n\")")
  if(NOT FVLM_SANITIZE) # once is enough, where nothing of it is instrumented
    add_test(NAME plugin_check.${ARG_NAME} COMMAND ${test})
    set_tests_properties(plugin_check.${ARG_NAME} PROPERTIES TIMEOUT ${fvlm_test_limit} SKIP_RETURN_CODE 77)
    if(ARG_SOURCES MATCHES "[.]cu(;|$)") # with the kernels of devices that are no Hopper
      add_test(NAME plugin_check_portable.${ARG_NAME} COMMAND ${test})
      set_tests_properties(plugin_check_portable.${ARG_NAME} PROPERTIES TIMEOUT ${fvlm_test_limit} SKIP_RETURN_CODE 77
        ENVIRONMENT FVLM_PORTABLE_KERNELS=1)
    endif()
  endif()
endfunction()

# A test's command that is skipped, and says so, unless FVLM_TEST_GPU is set.
function(fvlm_gpu_command out)
  set(${out} ${PROJECT_SOURCE_DIR}/tools/with-gpu ${ARGN} PARENT_SCOPE)
endfunction()

# fvlm_plugin_test(PLUGIN optimizer-adamw NAME adamw_test SOURCES ...)   a GoogleTest program over the built library of
# that plugin (FVLM_TEST_LIBRARY), which may ask PyTorch through FVLM_PYTHON. Paths of includes begin in plugins/. GPU:
# the tests' memory is one that a GPU sees, and without FVLM_TEST_GPU they are skipped.
function(fvlm_plugin_test)
  cmake_parse_arguments(ARG "GPU" "PLUGIN;NAME" "SOURCES" ${ARGN})
  if(ARG_GPU)
    find_package(CUDAToolkit REQUIRED)
    list(APPEND ARG_SOURCES ${PROJECT_SOURCE_DIR}/plugins/common/testing/cuda_test_device.cpp)
  endif()
  fvlm_test(NAME ${ARG_NAME} SOURCES ${ARG_SOURCES} DEPENDS fvlm_sdk ${CMAKE_DL_LIBS})
  add_dependencies(${ARG_NAME} plugin_${ARG_PLUGIN})
  target_include_directories(${ARG_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/plugins)
  if(ARG_GPU)
    target_link_libraries(${ARG_NAME} PRIVATE CUDA::cudart_static)
  endif()
  target_compile_definitions(${ARG_NAME} PRIVATE FVLM_TEST_LIBRARY="$<TARGET_FILE:plugin_${ARG_PLUGIN}>"
    FVLM_TEST_SOURCE="${CMAKE_CURRENT_SOURCE_DIR}/test" FVLM_PYTHON="${FVLM_PYTHON}")
endfunction()
