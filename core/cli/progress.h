// A progress line on the terminal. Prints nothing where standard error is not a terminal.
#pragma once
#include "base/status_line.h"

#include <cstdint>
#include <string>

namespace fvlm::cli {

class Progress {
 public:
  explicit Progress(std::string label); // "writing models/a"

  void bytes(uint64_t done, uint64_t total);
  void steps(const std::string& what, int64_t done, int64_t total);
  void samples(int64_t done, int64_t total);
  void finish() { line_.clear(); } // clears the line

 private:
  std::string label_;
  StatusLine line_;
};

} // namespace fvlm::cli
