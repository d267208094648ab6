// The reference's log-probabilities of each pair of a stage, computed once and kept in the run's folder, so that no
// second model is in memory while the stage trains.
#pragma once
#include "train/sample_keys.h"

#include <filesystem>
#include <string>
#include <unordered_map>

namespace fvlm::train {

class ReferenceLogProbCache {
 public:
  // Of the pairs that stand in the order, which outlives it. Knows none.
  ReferenceLogProbCache(const Order& order, std::filesystem::path file);

  // Knows what the file holds of this reference, and nothing else. A file of another one, or a damaged one, is warned
  // of and not used.
  void open(const std::string& identity);

  // Whether every pair of the stage is known. What a run that was stopped knew already is not computed again.
  bool complete() const { return complete_; }
  int64_t pairs() const { return static_cast<int64_t>(pairs_.size()); }

  // Log-probabilities of the two answers.
  struct Pair {
    double chosen = 0, rejected = 0;
  };
  bool contains(const PackedSample& packed) { return pairs_.contains(keys_.of(packed)); }
  void insert(const PackedSample& packed, const Pair& pair) { pairs_.try_emplace(keys_.of(packed), pair); }
  // Throws Error(data) for one that it does not know. From several threads at once, while nothing is remembered.
  const Pair& at(const PackedSample& packed);

  // On disk, atomically. A disk that does not take it is warned of: whoever goes on later computes it again.
  void write(bool complete);

 private:
  void read();

  SampleKeys keys_;
  std::filesystem::path file_;
  std::string identity_;
  std::unordered_map<uint64_t, Pair> pairs_; // whatever packs they come in, and in whichever epoch
  bool complete_ = false;
};

} // namespace fvlm::train
