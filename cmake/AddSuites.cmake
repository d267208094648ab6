# Read by ctest: adds a test for each suite of a GoogleTest program. Given are `program`, `limit` (seconds) and
# `environment`.
if(NOT EXISTS "${program}")
  add_test("${program}_NOT_BUILT" "${program}_NOT_BUILT")
  return()
endif()
set(listed "${program}.suites")
if(NOT EXISTS "${listed}" OR "${program}" IS_NEWER_THAN "${listed}")
  execute_process(COMMAND "${program}" --gtest_list_tests OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY
                  TIMEOUT ${limit})
  string(REPLACE "\n" ";" lines "${lines}")
  set(suites "")
  foreach(line ${lines})
    if(line MATCHES "^([^ ]+)[.]( *#.*)?$") # cases are indented
      string(APPEND suites "${CMAKE_MATCH_1}\n")
    endif()
  endforeach()
  file(WRITE "${listed}" "${suites}")
endif()
file(STRINGS "${listed}" suites)
foreach(suite ${suites})
  add_test("${suite}" "${program}" "--gtest_filter=${suite}.*")
  set_tests_properties("${suite}" PROPERTIES TIMEOUT ${limit} ENVIRONMENT "${environment}"
    SKIP_REGULAR_EXPRESSION "\\[  PASSED  \\] 0 tests")
endforeach()
