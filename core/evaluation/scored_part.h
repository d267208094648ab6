// What one rank has scored of a set, and how all ranks come to have the whole of it.
#pragma once
#include "evaluation/score.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fvlm::evaluation {

// What samples take, where an encoder reads bytes.
struct SampleSizes {
  double samples = 0, tokens = 0, rows = 0, bytes = 0;

  void add(const HostPack& pack);
  std::vector<std::pair<std::string, double>> means(const model::Model& model, const std::string& mode) const;
};

struct ScoredPart {
  std::vector<SampleScore> samples; // in the order in which they were loaded
  double entropy = 0;               // of attention, summed over so many frames
  int64_t frames = 0;
  SampleSizes sizes;
  std::unique_ptr<DataLoader> loader; // at its end

  // Adds those of the other ranks: every rank has all samples then, to the bit. Throws Error(data) where too many could
  // not be decoded on all ranks together. Every rank calls it.
  void merge(const dist::Ranks& ranks);

 private:
  std::string text() const;
  int64_t add(const std::string& text); // of another rank; returns how many it failed to decode
};

} // namespace fvlm::evaluation
