// Quarantine: logs skipped samples with the reason, and ends a run when too many are broken.
#pragma once
#include "base/error.h"
#include "data/stream/sample_counts.h"
#include "recipe/plan.h"

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace fvlm {

struct SkippedSample {
  int64_t position = 0; // in the order of the stage; -1 when found while opening the shard
  std::string place;    // the shard
  std::string key;      // of the sample, if known
  std::string reason;
  bool broken = true; // false where the recipe's limits or the sample's flags exclude it
  SkipReason skip = SkipReason::text;
};

// "a.tar, sample '000012'", or the shard alone where damage belongs to no sample.
std::string place_of(const SkippedSample& skipped);

// The message and advice of the error, without its location.
std::string reason_of(const Error& error);

class Quarantine {
 public:
  // `log` gets one line of JSON for each skipped sample, once over all epochs and resumes. Empty for no file.
  Quarantine(std::filesystem::path log, const plan::Quarantine& limits);

  // Logs a warning once per process for each broken sample.
  void add(const SkippedSample& skipped);
  // Throws Error(data) with the latest ones when too many are broken. `read` counts the samples measured so far.
  void check(int64_t broken, int64_t read) const;

 private:
  void read_log();
  void append(const std::string& text) const; // to the file
  std::filesystem::path log_;
  plan::Quarantine limits_;
  std::set<std::string> known_;   // lines of the file, without their positions
  std::vector<std::string> last_; // for the error
};

} // namespace fvlm
