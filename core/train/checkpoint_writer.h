// Writes checkpoints off the training path, one at a time. A disk that is full or failing ends no run between two
// checkpoints of a stage: a warning says what was not written, and the next one is a new try. A defect of the engine
// would fail again, and ends the run. With several ranks each has a writer, and these write together.
#pragma once
#include "train/checkpoint.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace fvlm::train {

class CheckpointWriter {
 public:
  // `before_part`: see Faults. The ranks, if any, outlive it.
  explicit CheckpointWriter(const plan::Checkpoint& plan, const dist::Ranks* ranks = nullptr,
                            std::function<void(int64_t step)> before_part = {});
  ~CheckpointWriter(); // when all is written

  // Waits where the one before is not written yet. Throws LostRank where its ranks did not all write, and
  // Error(internal) where it could not be written by any.
  void write(StageFolder folder, Snapshot snapshot);
  // Until all is written; whether the last one was, which the first of several ranks knows. why_not(): the reason where
  // it was not. Throws as write().
  bool wait();
  std::string why_not() const;
  // Whether one was larger than this process may write, so that another try would fail as well.
  bool is_beyond_limit() const { return is_beyond_limit_; }
  // The newest that is on disk; empty: none of this process.
  std::filesystem::path last_good() const;

 private:
  struct Job {
    StageFolder folder;
    Snapshot snapshot;
  };
  void work();
  void write(const Job& job);               // alone, or this rank's part
  void write_or_make_space(const Job& job); // the same, where the disk is full without the older ones of the stage
  std::string try_to_write(const Job& job); // what went wrong; empty: nothing
  void wait_until_free(std::unique_lock<std::mutex>& hold);

  const plan::Checkpoint& plan_;
  const dist::Ranks* ranks_;
  std::optional<CheckpointExchange> exchange_; // of the thread; none: alone
  const std::function<void(int64_t step)> before_part_;
  mutable std::mutex lock_;
  std::condition_variable changed_;
  std::optional<Job> job_;
  bool busy_ = false, stops_ = false;
  std::string why_not_;
  std::exception_ptr failure_; // after which no further one is tried
  std::filesystem::path last_good_;
  std::atomic<bool> is_beyond_limit_ = false;
  std::thread thread_;
};

} // namespace fvlm::train
