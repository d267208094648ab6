// What ranks tell each other of a checkpoint that all of them write, each a part of it: over the store where they met,
// from threads beside the training, since a disk may be slow and training goes on meanwhile.
#pragma once
#include "base/error.h"
#include "dist/ranks.h"

#include <functional>
#include <map>
#include <string>

namespace fvlm::train {

// A rank that the others waited for in vain, or of which they heard that it was lost.
class LostRank : public Error {
 public:
  explicit LostRank(std::string what);
};

// A file of a checkpoint as whoever wrote it found it.
struct WrittenFile {
  uint64_t hash = 0, bytes = 0;
};
using WrittenFiles = std::map<std::string, WrittenFile>; // by path in the checkpoint

// Of one thread of each rank. All begin the same checkpoints in the same order.
class CheckpointExchange {
 public:
  // The store of a rank is one that no other thread uses. `failure`: see Ranks::failure().
  CheckpointExchange(std::unique_ptr<dist::KeyValueStore> store, int64_t rank, int64_t ranks,
                     std::chrono::milliseconds timeout, std::function<std::optional<std::string>()> failure);
  explicit CheckpointExchange(const dist::Ranks& ranks);

  int64_t rank() const { return rank_; }
  int64_t ranks() const { return ranks_; }
  bool is_first() const { return rank_ == 0; }

  // The next checkpoint, as messages name it: "stage align, step 3".
  void begin(std::string name);
  // The first rank has made the folder that the parts belong into; empty: it could not.
  void announce(const std::string& folder);
  // Waits for that. [other ranks]
  std::string folder();
  // This rank's part is on disk. Or it is not, since: one line. [other ranks]
  void report(const std::string& file, const WrittenFile& written);
  void report_failure(const std::string& why);
  // Waits for the parts of all other ranks. Throws LostRank for a rank that is lost or takes longer than the timeout
  // from here on, Error(output) that names a rank which could not write. [first rank]
  WrittenFiles wait_for_parts();

 private:
  std::string key(const std::string& name) const;
  std::string wait_for(const std::string& key, const std::string& what);
  void set(const std::string& key, const std::string& text);

  std::unique_ptr<dist::KeyValueStore> store_;
  int64_t rank_, ranks_, number_ = 0;
  std::string name_; // of that checkpoint
  std::chrono::milliseconds timeout_;
  std::function<std::optional<std::string>()> failure_;
};

} // namespace fvlm::train
