// The hidden states of a stage's teachers at the labels of each sample, computed once and kept in the run's folder: a
// teacher that does not change makes the same of a text in every epoch. Its output head makes the same distributions of
// them as of those that it would compute in each step.
#pragma once
#include "model/weights/safetensors.h"
#include "train/sample_keys.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace fvlm::train {

class TeacherRowCache {
 public:
  // An empty cache for the samples of the order, which must outlive it.
  TeacherRowCache(const Order& order, std::filesystem::path file) : keys_(order), file_(std::move(file)) {}

  // Loads the file if it was computed by these teachers. One of other teachers, or a damaged one, is reported by a
  // warning and not used.
  void open(const std::string& identity);

  // Whether every sample of the stage is cached. A resumed run does not compute again what the file already holds.
  bool complete() const { return complete_; }
  int64_t samples() const { return static_cast<int64_t>(samples_.size()); }

  // For each term whose teacher is cached: [labels, width], in host memory.
  using Rows = std::vector<at::Tensor>;
  bool contains(const PackedSample& packed) { return samples_.contains(keys_.of(packed)); }
  void insert(const PackedSample& packed, Rows rows) { samples_.try_emplace(keys_.of(packed), std::move(rows)); }
  // Throws Error(data) for a sample that is not cached. [any thread, while nothing is inserted]
  const Rows& at(const PackedSample& packed);

  // Writes the file atomically. A failure is reported by a warning, because a resumed run can compute the rows again.
  void write(bool complete);

 private:
  void read();
  void write_file() const;

  SampleKeys keys_;
  std::filesystem::path file_;
  std::string identity_;
  std::optional<Safetensors> mapped_;          // which samples that were read are views of
  std::unordered_map<uint64_t, Rows> samples_; // whatever packs they come in, and in whichever epoch
  bool complete_ = false;
};

} // namespace fvlm::train
