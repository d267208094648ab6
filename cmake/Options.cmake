# Build options, compiler flags and the tools that make builds fast.
include(CheckLanguage)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
# -fPIC everywhere, programs too: one precompiled header then serves libraries and programs alike.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fPIC>)

# AUTO follows the machine: CUDA parts build where nvcc is found.
set(FVLM_CUDA AUTO CACHE STRING "Build CUDA plugins: AUTO, ON or OFF")
set(FVLM_CUDA_ARCHITECTURES AUTO CACHE STRING "CUDA architectures: AUTO, those of this machine's GPUs; ALL, what scripts/package builds; or a CMake list")
option(FVLM_CUDA_OPTIMIZED "Optimize device code; OFF takes half the time, for machines that compile it and never run it" ON)
option(FVLM_UNITY "Compile several files of a target as one: a clean build takes less, a changed file more" ON)
set(FVLM_SANITIZE "" CACHE STRING "Sanitizers for all our code, e.g. address,undefined")
set(FVLM_SANITIZE_ROOMS "" CACHE STRING "Rooms of core that FVLM_SANITIZE instruments, e.g. base;serve; empty: all our code")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

if(NOT FVLM_CUDA STREQUAL "OFF")
  include(cmake/CudaArchitectures.cmake)
  fvlm_cuda_architectures(CMAKE_CUDA_ARCHITECTURES "${FVLM_CUDA_ARCHITECTURES}")
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 17) # what the SDK wants, and all that CMake 3.25 can ask nvcc for
    set(FVLM_HAVE_CUDA ON)
    if(NOT FVLM_CUDA_OPTIMIZED)
      add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcicc -O1>" "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xptxas -O0>")
    endif()
  elseif(FVLM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FVLM_CUDA=ON but nvcc was not found: install the CUDA 13.0 toolkit or use the preset cpu")
  endif()
endif()

find_program(FVLM_CCACHE ccache)
if(FVLM_CCACHE)
  # Precompiled headers need the sloppiness; base_dir lets two checkouts share results.
  find_program(FVLM_ENV env) # ten milliseconds a file faster than cmake -E env
  if(FVLM_ENV)
    set(launcher ${FVLM_ENV})
  else()
    set(launcher ${CMAKE_COMMAND} -E env)
  endif()
  list(APPEND launcher CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      ${FVLM_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

find_program(FVLM_MOLD mold)
if(FVLM_MOLD)
  add_link_options($<$<LINK_LANGUAGE:C,CXX>:-fuse-ld=mold>)
endif()

# What tests/fuzz wants of all code that it calls.
option(FVLM_FUZZ "Build libFuzzer targets; needs clang" OFF)
if(FVLM_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# gcc collects its garbage at 128 MiB, which a file's templates soon reach; a tenth of the time goes there.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)

# Our own code is held to these; third-party headers come in as SYSTEM.
add_library(fvlm_warnings INTERFACE)
target_compile_options(fvlm_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wpedantic -Werror>
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers>)
# gcc 12 reports these falsely from inside std::string and std::optional at -O2 and -O3.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(fvlm_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict -Wno-maybe-uninitialized>)
endif()

if(FVLM_SANITIZE)
  add_compile_definitions(FVLM_SANITIZED)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -D_GLIBCXX_ASSERTIONS") # lines in stack traces are enough; and assert()
  set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g1")
  set(FVLM_SANITIZE_OPTIONS -fsanitize=${FVLM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(NOT FVLM_SANITIZE_ROOMS)
    add_compile_options(${FVLM_SANITIZE_OPTIONS})
  endif()
  add_link_options(-fsanitize=${FVLM_SANITIZE})
endif()
