# fvlm_room(NAME base SOURCES ... DEPENDS ...)   a static library fvlm_<name>, included as "base/error.h"
# fvlm_verb(fvlm_engine ROOM bench SOURCES verb.cpp ...)   adds a verb of a room under tools/ to the program or its module
# fvlm_test(NAME base_error_test SOURCES ... DEPENDS ...)   a GoogleTest program, one CTest test a case; of a program with
#   LibTorch, one for 16 cases of a suite
#
# Code that decides, checks and reports, and loops over no data, passes COLD: it is compiled at -Og, in half of the time
# of -O3. Rooms that include ATen pass TORCH: they are cold, as the loops are LibTorch's and the plugins', and share the
# ATen precompiled header instead of the plain one. Tests are compiled at -O0, three quarters of the time of -O1.

set(FVLM_PLAIN_PCH <algorithm> <array> <cstdint> <filesystem> <functional> <map> <memory> <optional> <span> <string>
    <string_view> <unordered_map> <utility> <variant> <vector> <fmt/format.h> <nlohmann/json.hpp>
    ${PROJECT_SOURCE_DIR}/core/base/templates.h)
set(FVLM_TORCH_PCH ${FVLM_PLAIN_PCH} <ATen/core/Tensor.h> <ATen/DeviceGuard.h> <ATen/TensorOperators.h>
    <ATen/ops/arange.h> <ATen/ops/empty.h> <ATen/ops/tensor.h> <ATen/ops/where.h> <ATen/ops/zeros.h>)

# At -O1 and below gcc 12 takes moved short strings and vectors of one element for overruns, which it does not at -O3.
set(gnu $<CXX_COMPILER_ID:GNU>)
set(no_overruns $<${gnu}:-Wno-array-bounds> $<${gnu}:-Wno-stringop-overread>)
set(FVLM_COLD $<$<CONFIG:Release>:-Og> ${no_overruns})
set(FVLM_TEST $<$<CONFIG:Release>:-O0> ${no_overruns})
set(FVLM_TEST_LIBRARIES GTest::gtest GTest::gmock GTest::gtest_main)

# Empty libraries own the precompiled headers; a header serves only those who are compiled with its options.
function(fvlm_pch_owner name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPENDS;OPTIONS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${name}.cpp CONTENT "") # keeps the time of a file that is there already
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PUBLIC fvlm_warnings fvlm_fmt fvlm_json Threads::Threads ${ARG_DEPENDS})
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()
set(test_headers <gmock/gmock.h> <gtest/gtest.h>)
fvlm_pch_owner(fvlm_plain_pch HEADERS ${FVLM_PLAIN_PCH})
fvlm_pch_owner(fvlm_plain_cold_pch HEADERS ${FVLM_PLAIN_PCH} OPTIONS ${FVLM_COLD})
fvlm_pch_owner(fvlm_plain_test_pch HEADERS ${FVLM_PLAIN_PCH} ${test_headers}
               DEPENDS ${FVLM_TEST_LIBRARIES} OPTIONS ${FVLM_TEST})
fvlm_pch_owner(fvlm_torch_cold_pch HEADERS ${FVLM_TORCH_PCH} DEPENDS fvlm_torch OPTIONS ${FVLM_COLD})
fvlm_pch_owner(fvlm_torch_test_pch HEADERS ${FVLM_TORCH_PCH} ${test_headers}
               DEPENDS fvlm_torch ${FVLM_TEST_LIBRARIES} OPTIONS ${FVLM_TEST})
target_compile_options(fvlm_json PRIVATE ${FVLM_COLD})

function(fvlm_common target)
  cmake_parse_arguments(ARG "TORCH;TEST;COLD" "" "DEPENDS" ${ARGN})
  # Several files at a time as one, which share what each of them instantiates (bench/LOG.md): six of a room, twelve
  # of a test. They share their unnamed namespaces too, where they may not say different things by the same name.
  if(FVLM_UNITY)
    set(batch 6)
    if(ARG_TEST)
      set(batch 12)
      # g++ warns of fixtures that use unnamed namespaces of files that are included, as all are here.
      target_compile_options(${target} PRIVATE $<${gnu}:-Wno-subobject-linkage>)
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
  endif()
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/core)
  target_compile_definitions(${target} PRIVATE FVLM_VERSION="${PROJECT_VERSION}")
  target_link_libraries(${target} PUBLIC fvlm_fmt fvlm_json Threads::Threads ${ARG_DEPENDS}
                        PRIVATE fvlm_warnings)
  set(pch plain)
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC fvlm_torch)
    set(pch torch)
  endif()
  if(ARG_TEST)
    target_link_libraries(${target} PUBLIC ${FVLM_TEST_LIBRARIES})
    target_compile_options(${target} PRIVATE ${FVLM_TEST})
    string(APPEND pch _test)
  elseif(ARG_COLD OR ARG_TORCH)
    target_compile_options(${target} PRIVATE ${FVLM_COLD})
    string(APPEND pch _cold)
  endif()
  target_precompile_headers(${target} REUSE_FROM fvlm_${pch}_pch)
endfunction()

function(fvlm_room)
  cmake_parse_arguments(ARG "TORCH;COLD" "NAME" "SOURCES;DEPENDS" ${ARGN})
  add_library(fvlm_${ARG_NAME} STATIC ${ARG_SOURCES})
  set(traits "")
  foreach(trait TORCH COLD)
    if(ARG_${trait})
      list(APPEND traits ${trait})
    endif()
  endforeach()
  fvlm_common(fvlm_${ARG_NAME} ${traits} DEPENDS ${ARG_DEPENDS})
  if(FVLM_SANITIZE AND ARG_NAME IN_LIST FVLM_SANITIZE_ROOMS) # the precompiled headers are the others'
    target_compile_options(fvlm_${ARG_NAME} PRIVATE -g1 ${FVLM_SANITIZE_OPTIONS})
    set_target_properties(fvlm_${ARG_NAME} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
  endif()
  # Whoever links a room of tools/ can include it; the rooms of core, which do not, cannot.
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR PARENT_PATH root)
  target_include_directories(fvlm_${ARG_NAME} PUBLIC ${root})
endfunction()

# The table of verbs in core/cli declares the verb's function and knows no more of it.
function(fvlm_verb target)
  cmake_parse_arguments(ARG "" "ROOM" "SOURCES" ${ARGN})
  target_sources(${target} PRIVATE ${ARG_SOURCES})
  target_link_libraries(${target} PUBLIC fvlm_${ARG_ROOM})
endfunction()

# Files of a cold room that do loop over data: at the configuration's own -O3, each for itself, without the room's
# precompiled header.
function(fvlm_hot)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O3> SKIP_PRECOMPILE_HEADERS ON
                              SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# Ends a test that hangs. No test may depend on how fast the machine is or what else runs on it: this is a multiple of what
# the longest one takes beside a build on two cores.
set(fvlm_test_limit 3600)

macro(fvlm_refuse_own_limit)
  if(ARG_TIMEOUT)
    message(FATAL_ERROR "${ARG_NAME}: leave out TIMEOUT, all tests have the limit of cmake/Room.cmake")
  endif()
endmacro()

# Many tests import torch and transformers, whose wheels come without bytecode (scripts/setup): with it an import takes a third of
# the time. Python keeps it in the build tree, not beside the sources. Several tests run at a time, each with a
# thread a core: threads that wait for others of their program sleep, as otherwise they keep the core from those. ctest
# reads this file first.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/test-environment.cmake CONTENT [=[
set(ENV{PYTHONDONTWRITEBYTECODE} "")
set(ENV{PYTHONPYCACHEPREFIX} "@CMAKE_BINARY_DIR@/bytecode")
set(ENV{OMP_WAIT_POLICY} passive)
]=] @ONLY)
set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_BINARY_DIR}/test-environment.cmake)

include(GoogleTest)
function(fvlm_test)
  cmake_parse_arguments(ARG "TORCH" "NAME;TIMEOUT" "SOURCES;DEPENDS;ENVIRONMENT" ${ARGN})
  fvlm_refuse_own_limit()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  set(torch "")
  if(ARG_TORCH)
    set(torch TORCH)
    set_target_properties(${ARG_NAME} PROPERTIES BUILD_RPATH ${FVLM_TORCH_DIR}/lib)
    target_link_libraries(${ARG_NAME} PRIVATE fvlm_torch_test_main) # in place of GoogleTest's
  endif()
  fvlm_common(${ARG_NAME} ${torch} TEST DEPENDS ${ARG_DEPENDS})
  if(ARG_TORCH)
    fvlm_discover_suites(${ARG_NAME} "${ARG_ENVIRONMENT}")
    return()
  endif()
  gtest_discover_tests(${ARG_NAME} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT ${fvlm_test_limit}
    PROPERTIES TIMEOUT ${fvlm_test_limit} ENVIRONMENT "${ARG_ENVIRONMENT}")
endfunction()

# Loading LibTorch takes a quarter of a second, more than most cases: those of a suite share a process. ctest asks the
# program for its suites when it begins, as it does programs without LibTorch for their cases.
function(fvlm_discover_suites target environment)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}-suites.cmake)
  file(GENERATE OUTPUT ${file} CONTENT "
set(program \"$<TARGET_FILE:${target}>\")
set(limit ${fvlm_test_limit})
set(environment \"${environment}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/AddSuites.cmake\")
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()

# Python programs that import torch and transformers are forks of a process that has done so, for as long as ctest runs.
set(fvlm_forked ${FVLM_PYTHON} ${PROJECT_SOURCE_DIR}/tests/forked.py ${CMAKE_BINARY_DIR}/forked.socket)
add_test(NAME python_imports COMMAND ${fvlm_forked})
set_tests_properties(python_imports PROPERTIES TIMEOUT ${fvlm_test_limit} FIXTURES_SETUP python_imports)

# fvlm_forked_program(TARGET WORD ...)   FORKED tests get a fork of a process of this program that has loaded LibTorch. A
# program that loads it by itself, as the engine does, is called once with the words before.
set(fvlm_forked_programs ${CMAKE_BINARY_DIR}/forked-programs)
add_custom_target(forked_programs)
function(fvlm_forked_program target)
  if(NOT FVLM_SANITIZE) # whose runtime has to be loaded first
    file(MAKE_DIRECTORY ${fvlm_forked_programs})
    add_dependencies(forked_programs ${target} forked_program)
    add_test(NAME forks_of_${target} COMMAND ${target} ${fvlm_forked_programs}/$<TARGET_FILE_NAME:${target}> ${ARGN})
    set_tests_properties(forks_of_${target} PROPERTIES TIMEOUT ${fvlm_test_limit} FIXTURES_SETUP forked_programs
      ENVIRONMENT "LD_PRELOAD=$<TARGET_FILE:forked_program>;OMP_NUM_THREADS=1;CUDA_VISIBLE_DEVICES=")
  endif()
endfunction()

# fvlm_python_test(NAME oracle SCRIPT oracle_test.py ARGUMENTS ...)   a Python program as one CTest test; its
# exit code 77 says that what it needs is not there. FORKED: it imports transformers, or runs programs as forks. GPU: without FVLM_TEST_GPU it is
# skipped; without GPU it sees none, as its numbers are a CPU's. PORTABLE: once more, with the kernels of devices that are no Hopper.
function(fvlm_python_test)
  cmake_parse_arguments(ARG "FORKED;GPU;PORTABLE" "NAME;SCRIPT;TIMEOUT" "ARGUMENTS;ENVIRONMENT" ${ARGN})
  fvlm_refuse_own_limit()
  set(test ${FVLM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT} ${ARG_ARGUMENTS})
  if(ARG_FORKED)
    list(POP_FRONT test)
    list(PREPEND test ${fvlm_forked})
  endif()
  if(ARG_GPU)
    fvlm_gpu_command(test ${test})
  else()
    list(APPEND ARG_ENVIRONMENT CUDA_VISIBLE_DEVICES=)
  endif()
  # What tests of all rooms share lies in tests/.
  set(shared ENVIRONMENT_MODIFICATION PYTHONPATH=path_list_append:${PROJECT_SOURCE_DIR}/tests)
  add_test(NAME ${ARG_NAME} COMMAND ${test})
  set_tests_properties(${ARG_NAME} PROPERTIES TIMEOUT ${fvlm_test_limit} SKIP_RETURN_CODE 77 ENVIRONMENT "${ARG_ENVIRONMENT}" ${shared})
  if(ARG_FORKED)
    set_tests_properties(${ARG_NAME} PROPERTIES FIXTURES_REQUIRED "python_imports;forked_programs"
      ENVIRONMENT "${ARG_ENVIRONMENT};FVLM_FORKED_PROGRAMS=${fvlm_forked_programs}")
  endif()
  if(ARG_PORTABLE)
    add_test(NAME ${ARG_NAME}_portable COMMAND ${test})
    list(APPEND ARG_ENVIRONMENT FVLM_PORTABLE_KERNELS=1)
    set_tests_properties(${ARG_NAME}_portable PROPERTIES TIMEOUT ${fvlm_test_limit} SKIP_RETURN_CODE 77
      ENVIRONMENT "${ARG_ENVIRONMENT}" ${shared})
  endif()
endfunction()
