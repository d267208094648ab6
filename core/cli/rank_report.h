// What `doctor` says of the ranks that a launcher started it as.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fvlm::cli {

struct RankReport {
  int64_t rank = 0, ranks = 1;    // this one; 1: nobody started several
  std::vector<std::string> lines; // one a rank
  std::string text;               // what all have
  std::string problem, advice;    // empty: they fit together
};

// Joins the others. Throws Error(device) where they do not meet. [module]
RankReport report_of_ranks();

} // namespace fvlm::cli
