// One line on the terminal that says how far a long thing has got. Silent where standard error is no terminal.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace fvlm::cli {

class Progress {
 public:
  explicit Progress(std::string label); // "writing models/a"
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void bytes(uint64_t done, uint64_t total);
  void steps(const std::string& what, uint64_t done, uint64_t total);
  void samples(uint64_t done, uint64_t total);
  void finish(); // takes the line away now

 private:
  bool due(); // whether the line is to be written again
  std::string label_;
  bool terminal_, shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

} // namespace fvlm::cli
