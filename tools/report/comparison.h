// Several runs on one page: what their plans differ in, their results beside each other, and their curves over each
// other.
#pragma once
#include "report/recorded_run.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fvlm::report {

struct Comparison {
  std::filesystem::path file;
  uint64_t bytes = 0;
  std::vector<std::string> names; // of the runs: folder names, as far up as they differ
  struct Difference {
    std::string path;                // of a value in the plans
    std::vector<std::string> values; // of each run; "–" where it has none
  };
  std::vector<Difference> differences;
};

// Writes it atomically. Throws Error(data) when a folder is not that of a run.
Comparison write_comparison(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& file);

} // namespace fvlm::report
