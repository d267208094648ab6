# fvlm_cuda_architectures(OUT ASKED)   what CMAKE_CUDA_ARCHITECTURES has to be for FVLM_CUDA_ARCHITECTURES: machine code
# alone, so that a device that there is none for is named by the program, and no PTX is translated at its first use.
function(fvlm_cuda_architectures out asked)
  if(asked STREQUAL "ALL")
    set(asked 80-real 86-real 89-real 90a-real 100-real 120-real)
  elseif(asked STREQUAL "AUTO")
    set(asked 90a-real) # where there is no GPU to ask
    find_program(FVLM_NVIDIA_SMI nvidia-smi)
    if(FVLM_NVIDIA_SMI)
      execute_process(COMMAND ${FVLM_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
        OUTPUT_VARIABLE capabilities ERROR_QUIET RESULT_VARIABLE failure)
      string(REGEX MATCHALL "[0-9]+[.][0-9]" capabilities "${capabilities}")
      list(TRANSFORM capabilities REPLACE "[.]" "")
      list(FILTER capabilities EXCLUDE REGEX "^[1-7].$") # the program refuses these
      list(REMOVE_DUPLICATES capabilities)
      if(NOT failure AND capabilities)
        list(TRANSFORM capabilities REPLACE "^90$" "90a")
        list(TRANSFORM capabilities APPEND "-real" OUTPUT_VARIABLE asked)
      endif()
    endif()
    message(STATUS "CUDA architectures: ${asked} (FVLM_CUDA_ARCHITECTURES=ALL for those of the package)")
  endif()
  set(${out} "${asked}" PARENT_SCOPE)
endfunction()
