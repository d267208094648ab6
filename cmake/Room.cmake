# fvlm_room(NAME base SOURCES ... DEPENDS ...)   a static library fvlm_<name>, included as "base/error.h"
# fvlm_test(NAME base_error_test SOURCES ... DEPENDS ...)   a GoogleTest program, one CTest test a case
#
# Rooms that include ATen pass TORCH: they then share the ATen precompiled header instead of the plain one.

set(FVLM_PLAIN_PCH <algorithm> <array> <cstdint> <filesystem> <functional> <map> <memory> <optional> <span> <string>
    <string_view> <unordered_map> <utility> <variant> <vector> <fmt/format.h> <nlohmann/json.hpp>)
set(FVLM_TORCH_PCH ${FVLM_PLAIN_PCH} <ATen/core/Tensor.h> <ATen/Functions.h>)

# Two empty libraries own the precompiled headers; every room and test reuses one of them.
function(fvlm_pch_owner name)
  file(WRITE ${CMAKE_BINARY_DIR}/${name}.cpp "")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PUBLIC fvlm_warnings fmt::fmt-header-only nlohmann_json::nlohmann_json Threads::Threads)
endfunction()
fvlm_pch_owner(fvlm_plain_pch)
target_precompile_headers(fvlm_plain_pch PRIVATE ${FVLM_PLAIN_PCH})
fvlm_pch_owner(fvlm_torch_pch)
target_link_libraries(fvlm_torch_pch PUBLIC fvlm_torch)
target_precompile_headers(fvlm_torch_pch PRIVATE ${FVLM_TORCH_PCH})

function(fvlm_common target)
  cmake_parse_arguments(ARG "TORCH" "" "DEPENDS" ${ARGN})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/core)
  target_link_libraries(${target} PUBLIC fmt::fmt-header-only nlohmann_json::nlohmann_json Threads::Threads ${ARG_DEPENDS}
                        PRIVATE fvlm_warnings)
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC fvlm_torch)
    target_precompile_headers(${target} REUSE_FROM fvlm_torch_pch)
  else()
    target_precompile_headers(${target} REUSE_FROM fvlm_plain_pch)
  endif()
endfunction()

function(fvlm_room)
  cmake_parse_arguments(ARG "TORCH" "NAME" "SOURCES;DEPENDS" ${ARGN})
  add_library(fvlm_${ARG_NAME} STATIC ${ARG_SOURCES})
  set(torch "")
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  fvlm_common(fvlm_${ARG_NAME} ${torch} DEPENDS ${ARG_DEPENDS})
endfunction()

include(GoogleTest)
function(fvlm_test)
  cmake_parse_arguments(ARG "TORCH" "NAME;TIMEOUT" "SOURCES;DEPENDS;ENVIRONMENT" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  set(torch "")
  if(ARG_TORCH)
    set(torch TORCH)
    set_target_properties(${ARG_NAME} PROPERTIES BUILD_RPATH ${FVLM_TORCH_DIR}/lib)
  endif()
  fvlm_common(${ARG_NAME} ${torch} DEPENDS ${ARG_DEPENDS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  gtest_discover_tests(${ARG_NAME} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${ARG_ENVIRONMENT}")
endfunction()
