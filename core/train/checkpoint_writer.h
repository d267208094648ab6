// Writes checkpoints off the training path, one at a time. A disk that is full or failing ends no run: what was not
// written is told, and the next checkpoint is a new try.
#pragma once
#include "train/checkpoint.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace fvlm::train {

class CheckpointWriter {
 public:
  explicit CheckpointWriter(const plan::Checkpoint& plan);
  ~CheckpointWriter(); // when all is written

  // Waits where the one before is not written yet.
  void write(StageFolder folder, Snapshot snapshot);
  // Until all is written; whether the last one was.
  bool wait();
  // The last good one; empty: none of this process.
  std::filesystem::path last_good() const;

 private:
  struct Job {
    StageFolder folder;
    Snapshot snapshot;
  };
  void work();
  bool try_to_write(const Job& job);

  const plan::Checkpoint& plan_;
  mutable std::mutex lock_;
  std::condition_variable changed_;
  std::optional<Job> job_;
  bool busy_ = false, stops_ = false, written_ = true;
  std::filesystem::path last_good_;
  std::thread thread_;
};

} // namespace fvlm::train
