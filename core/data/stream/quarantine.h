// Quarantine: samples that are broken or left out are set aside, each with its reason, and a run ends when too many are
// broken.
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

struct SetAside {
  int64_t position = 0; // in the stage's order; -1: found when its shard was opened
  std::string place;    // the shard
  std::string key;      // of the sample, where it is known
  std::string reason;
  bool broken = true; // else the recipe leaves it out: max_text_tokens
  SkipReason skip = SkipReason::text;
};

// What the error says; where it happened is told by the rest.
std::string reason_of(const Error& error);

class Quarantine {
 public:
  // `log`: a file that gets one line of JSON for each sample, however often an epoch comes to it; what stands there
  // from before a resume is not written again. Empty: no file.
  Quarantine(std::filesystem::path log, const plan::Quarantine& limits);

  // A process warns of each broken sample once.
  void add(const SetAside& aside);
  // Throws Error(data) with the last of the list when too many are broken. `read`: samples looked at so far.
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
