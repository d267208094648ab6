// The main() of the programs that generate data sets: errors and signals end them as they end fvlm-engine.
#pragma once
#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"

#include <exception>
#include <span>
#include <string>
#include <vector>

namespace fvlm::shapes {

inline int run_program(const char* name, int count, char** words, int (*run)(std::span<const std::string>)) {
  const std::vector<std::string> arguments(words + 1, words + count);
  try {
    return run(arguments);
  } catch (const Error& error) {
    log_error("{}", error.text());
    return error.exit_code();
  } catch (const Interrupted& interrupted) {
    return end_process_by_signal(interrupted);
  } catch (const std::exception& error) {
    log_error("a defect in {}: {}", name, error.what());
    return 1;
  }
}

} // namespace fvlm::shapes
