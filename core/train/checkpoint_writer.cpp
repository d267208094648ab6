#include "train/checkpoint_writer.h"

#include "base/error.h"
#include "base/log.h"
#include "base/task_thread.h"

#include <c10/core/InferenceMode.h>

namespace fvlm::train {

namespace fs = std::filesystem;

CheckpointWriter::CheckpointWriter(const plan::Checkpoint& plan)
    : plan_(plan), thread_(start_thread([this] { work(); })) {}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard hold(lock_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointWriter::write(StageFolder folder, Snapshot snapshot) {
  std::unique_lock hold(lock_);
  changed_.wait(hold, [&] { return !busy_; });
  job_ = Job{std::move(folder), std::move(snapshot)};
  busy_ = true;
  changed_.notify_all();
}

bool CheckpointWriter::wait() {
  std::unique_lock hold(lock_);
  changed_.wait(hold, [&] { return !busy_; });
  return why_not_.empty();
}

std::string CheckpointWriter::why_not() const {
  const std::lock_guard hold(lock_);
  return why_not_;
}

fs::path CheckpointWriter::last_good() const {
  const std::lock_guard hold(lock_);
  return last_good_;
}

void CheckpointWriter::work() {
  const c10::InferenceMode without_autograd;
  std::unique_lock hold(lock_);
  while (true) {
    changed_.wait(hold, [&] { return job_ || stops_; });
    if (!job_) return;
    const Job job = std::move(*job_);
    job_.reset();
    hold.unlock();
    const std::string problem = try_to_write(job);
    if (!problem.empty()) {
      const auto steps = job.folder.steps();
      log_warning("the checkpoint {} could not be written: {}\n  {}", job.folder.of(job.snapshot.state.step).string(),
                  problem,
                  steps.empty() ? "no checkpoint of the stage is on disk yet"
                                : fmt::format("the newest on disk is {}", job.folder.of(steps.back()).string()));
    }
    hold.lock();
    why_not_ = problem;
    if (problem.empty()) last_good_ = job.folder.of(job.snapshot.state.step);
    busy_ = false;
    changed_.notify_all();
  }
}

std::string CheckpointWriter::try_to_write(const Job& job) {
  const fs::path folder = job.folder.of(job.snapshot.state.step);
  try {
    StageFolder::make_room(folder);
    write_checkpoint(folder, job.snapshot);
  } catch (const Error& error) {
    return error.text();
  } catch (const std::exception& error) { // the standard library's own, of folders
    return error.what();
  }
  if (folder != last_good_) log_info("checkpoint saved: {}", folder.string()); // else: again, as its stage's last
  job.folder.prune(plan_.keep_last, plan_.keep_best);
  job.folder.link();
  return "";
}

} // namespace fvlm::train
