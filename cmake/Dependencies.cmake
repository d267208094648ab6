# Every third-party library, as an imported target. LibTorch is the one inside the PyPI wheel.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED) # headers: Boost.DLL
find_package(GTest REQUIRED)

find_library(BOOST_PROGRAM_OPTIONS_STATIC libboost_program_options.a REQUIRED)
add_library(fvlm_boost_program_options INTERFACE)
target_link_libraries(fvlm_boost_program_options INTERFACE ${BOOST_PROGRAM_OPTIONS_STATIC} Boost::headers)

# fmt out of its headers, compiled once: core/base/fmt.cpp says why.
find_path(FMT_INCLUDE fmt/format-inl.h REQUIRED)
add_library(fvlm_fmt STATIC core/base/fmt.cpp)
target_include_directories(fvlm_fmt SYSTEM PUBLIC ${FMT_INCLUDE})

# nlohmann-json without the body of its literal "..."_json, which nobody here writes: gcc instantiates the whole parser for
# it in every file that sees the header, half a second each.
find_package(nlohmann_json 3.11 REQUIRED)
find_path(JSON_INCLUDE nlohmann/json.hpp REQUIRED)
file(READ ${JSON_INCLUDE}/nlohmann/json.hpp json)
string(REPLACE "{\n    return nlohmann::json::parse(s, s + n);\n}" ";" json "${json}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/include/nlohmann/json.hpp CONTENT "${json}" @ONLY)
add_library(fvlm_json STATIC core/base/templates.cpp) # and the rest of it compiled once
target_include_directories(fvlm_json PRIVATE core)
target_include_directories(fvlm_json SYSTEM PUBLIC ${CMAKE_BINARY_DIR}/include)
target_link_libraries(fvlm_json PUBLIC nlohmann_json::nlohmann_json)

# spdlog header-only over that fmt; its own CMake target would bring the shared one along.
find_path(SPDLOG_INCLUDE spdlog/spdlog.h REQUIRED)
add_library(fvlm_spdlog INTERFACE)
target_include_directories(fvlm_spdlog SYSTEM INTERFACE ${SPDLOG_INCLUDE})
target_compile_definitions(fvlm_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)

# Lua compiled as C++: a Lua error unwinds C++ frames.
find_path(LUA_INCLUDE lua.h PATH_SUFFIXES lua5.4 REQUIRED)
find_library(LUA_CXX_STATIC liblua5.4-c++.a REQUIRED)
add_library(fvlm_lua INTERFACE)
target_include_directories(fvlm_lua SYSTEM INTERFACE ${LUA_INCLUDE})
target_link_libraries(fvlm_lua INTERFACE ${LUA_CXX_STATIC} ${CMAKE_DL_LIBS})

find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)
add_library(fvlm_toml INTERFACE)
target_include_directories(fvlm_toml SYSTEM INTERFACE ${TOMLPLUSPLUS_INCLUDE})

# Shared, as distributions' static ones do not go into libraries; named differently by Debian and Ubuntu.
find_package(JPEG REQUIRED) # libjpeg-turbo
find_package(PNG REQUIRED)
find_package(ZLIB REQUIRED)
foreach(name webp zstd) # which have no module of CMake's
  string(TOUPPER ${name} upper)
  find_library(${upper}_LIBRARY ${name} REQUIRED)
  add_library(fvlm_${name} INTERFACE)
  target_link_libraries(fvlm_${name} INTERFACE ${${upper}_LIBRARY})
endforeach()

# FFmpeg, for the plugin that reads video and the tests that write it.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(FFMPEG QUIET IMPORTED_TARGET libavformat libavcodec libavutil libswscale)
endif()
set(FVLM_HAVE_FFMPEG ${FFMPEG_FOUND})
add_library(fvlm_ffmpeg INTERFACE)
if(FVLM_HAVE_FFMPEG)
  target_link_libraries(fvlm_ffmpeg INTERFACE PkgConfig::FFMPEG)
else()
  message(STATUS "FFmpeg was not found: the plugin video-ffmpeg is not built")
endif()

# LibTorch. FVLM_TORCH_DIR is a site-packages/torch folder; scripts/setup puts one in the per-machine cache.
if(NOT FVLM_TORCH_DIR)
  if(DEFINED ENV{FVLM_CACHE})
    set(cache "$ENV{FVLM_CACHE}")
  elseif(DEFINED ENV{XDG_CACHE_HOME})
    set(cache "$ENV{XDG_CACHE_HOME}/fvlm-engine")
  else()
    set(cache "$ENV{HOME}/.cache/fvlm-engine")
  endif()
  file(GLOB found "${cache}/torch-2.11.0/lib/python3*/site-packages/torch")
  if(NOT found)
    message(FATAL_ERROR "LibTorch 2.11 was not found below ${cache}: run ./scripts/setup, or set FVLM_TORCH_DIR")
  endif()
  list(GET found 0 found)
  set(FVLM_TORCH_DIR "${found}" CACHE PATH "site-packages/torch of a torch 2.11 wheel")
endif()
# The Python that LibTorch is installed for: tests ask PyTorch and other wheels through it.
get_filename_component(FVLM_PYTHON ${FVLM_TORCH_DIR}/../../../../bin/python ABSOLUTE)
# The wheel holds another fmt: a folder with nothing but ours goes first, which /usr/include never does.
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include)
file(CREATE_LINK ${FMT_INCLUDE}/fmt ${CMAKE_BINARY_DIR}/include/fmt SYMBOLIC)
# And ATen/DeviceGuard.h without its device_of() for lists, which nobody here calls: for it the header brings in IValue,
# whose templates gcc instantiates in every file that sees any ATen operation, over a second each. at::cat takes such a
# list, too; at::concat does the same without.
file(READ ${FVLM_TORCH_DIR}/include/ATen/DeviceGuard.h guard)
set(of_list "inline std::optional<Device> device_of(ITensorListRef t) {
  if (!t.empty()) {
    return device_of(t.front());
  } else {
    return std::nullopt;
  }
}
")
string(FIND "${guard}" "${of_list}" found)
if(found GREATER -1)
  string(REPLACE "${of_list}" "" guard "${guard}")
  string(REPLACE "#include <ATen/core/IListRef.h>\n" "" guard "${guard}")
endif()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/include/ATen/DeviceGuard.h CONTENT "${guard}" @ONLY)
add_library(fvlm_torch INTERFACE)
target_include_directories(fvlm_torch SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/include ${FVLM_TORCH_DIR}/include)
# A file includes <ATen/ops/...> for each operation that it calls.
target_compile_definitions(fvlm_torch INTERFACE AT_PER_OPERATOR_HEADERS)
target_link_directories(fvlm_torch INTERFACE ${FVLM_TORCH_DIR}/lib)
target_link_options(fvlm_torch INTERFACE -Wl,--allow-shlib-undefined)
target_link_libraries(fvlm_torch INTERFACE torch_cpu c10)
