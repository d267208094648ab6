# Run by a build (cmake -P): writes the commit of the source tree SOURCE to HEADER, which keeps its time where the commit
# is still the same.
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE commit
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed) # an unpacked archive, or no git
  set(commit "unknown")
else()
  execute_process(COMMAND git -C ${SOURCE} diff --quiet HEAD RESULT_VARIABLE changed)
  if(changed)
    string(APPEND commit ", with changes")
  endif()
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define FVLM_BUILD_COMMIT \"${commit}\"\n")
