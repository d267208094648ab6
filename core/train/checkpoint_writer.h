// Writes checkpoints off the training path, one at a time. A disk that is full or failing ends no run between two
// checkpoints of a stage: a warning says what was not written, and the next one is a new try.
#pragma once
#include "train/checkpoint.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace fvlm::train {

class CheckpointWriter {
 public:
  explicit CheckpointWriter(const plan::Checkpoint& plan);
  ~CheckpointWriter(); // when all is written

  // Waits where the one before is not written yet.
  void write(StageFolder folder, Snapshot snapshot);
  // Until all is written; whether the last one was. why_not(): the reason where it was not.
  bool wait();
  std::string why_not() const;
  // The newest that is on disk; empty: none of this process.
  std::filesystem::path last_good() const;

 private:
  struct Job {
    StageFolder folder;
    Snapshot snapshot;
  };
  void work();
  std::string try_to_write(const Job& job); // what went wrong; empty: nothing

  const plan::Checkpoint& plan_;
  mutable std::mutex lock_;
  std::condition_variable changed_;
  std::optional<Job> job_;
  bool busy_ = false, stops_ = false;
  std::string why_not_;
  std::filesystem::path last_good_;
  std::thread thread_;
};

} // namespace fvlm::train
