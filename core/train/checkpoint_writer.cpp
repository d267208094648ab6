#include "train/checkpoint_writer.h"

#include "base/descriptor.h"
#include "base/log.h"
#include "base/task_thread.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <stdexcept>

namespace fvlm::train {

namespace fs = std::filesystem;

CheckpointWriter::CheckpointWriter(const plan::Checkpoint& plan, const dist::Ranks* ranks,
                                   std::function<void(int64_t step)> before_part)
    : plan_(plan), ranks_(ranks && ranks->are_several() ? ranks : nullptr), before_part_(std::move(before_part)) {
  if (ranks_) exchange_.emplace(*ranks_);
  thread_ = start_thread([this] { work(); });
}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard hold(lock_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointWriter::wait_until_free(std::unique_lock<std::mutex>& hold) {
  changed_.wait(hold, [&] { return !busy_; });
  if (failure_) std::rethrow_exception(failure_);
}

void CheckpointWriter::write(StageFolder folder, Snapshot snapshot) {
  std::unique_lock hold(lock_);
  wait_until_free(hold);
  job_ = Job{std::move(folder), std::move(snapshot)};
  busy_ = true;
  changed_.notify_all();
}

bool CheckpointWriter::wait() {
  std::unique_lock hold(lock_);
  wait_until_free(hold);
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
    std::exception_ptr failure;
    std::string problem;
    const RunState& state = job.snapshot.state;
    if (ranks_)
      ranks_->enter_beside(fmt::format("writing the checkpoint of stage {}, step {}", state.stage, state.step));
    try {
      problem = try_to_write(job);
    } catch (const Error& error) {
      failure = std::current_exception();
      problem = error.text();
    }
    if (ranks_) ranks_->enter_beside("");
    if (!problem.empty()) {
      const auto steps = job.folder.steps();
      log_warning("the checkpoint {} could not be written: {}\n  {}", job.folder.of(state.step).string(), problem,
                  steps.empty() ? "no checkpoint of the stage is on disk yet"
                                : fmt::format("the newest on disk is {}", job.folder.of(steps.back()).string()));
    }
    hold.lock();
    why_not_ = problem;
    failure_ = failure;
    if (problem.empty()) last_good_ = job.folder.of(job.snapshot.state.step);
    busy_ = false;
    changed_.notify_all();
  }
}

void CheckpointWriter::write(const Job& job) {
  const fs::path folder = job.folder.of(job.snapshot.state.step);
  const bool is_first = !exchange_ || exchange_->is_first();
  if (is_first) StageFolder::make_room(folder);
  try {
    if (exchange_)
      write_checkpoint(folder, job.snapshot, *exchange_, before_part_);
    else
      write_checkpoint(folder, job.snapshot);
  } catch (...) {
    if (is_first) StageFolder::restore_replaced(folder);
    throw;
  }
}

void CheckpointWriter::write_or_make_space(const Job& job) {
  try {
    return write(job);
  } catch (const DiskFullError& error) {
    if (exchange_) throw; // the others would have to try again as well
    const size_t before = job.folder.steps().size();
    job.folder.prune(1, plan_.keep_best);
    const size_t removed = before - job.folder.steps().size();
    if (removed == 0) throw;
    log_warning("{}: the disk is full: {} of {} checkpoints were removed before the next one is written, not behind it",
                job.folder.path().string(), removed, before);
  }
  write(job);
}

std::string CheckpointWriter::try_to_write(const Job& job) {
  const fs::path folder = job.folder.of(job.snapshot.state.step);
  try {
    write_or_make_space(job);
  } catch (const LostRank&) {
    throw;
  } catch (const FileLimitError& error) {
    is_beyond_limit_ = true;
    return error.text();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;
    return error.text();
  } catch (const std::logic_error& error) {
    throw Error(ErrorKind::internal, "the checkpoint cannot be written: {}", error.what())
        .at(folder.string())
        .advise("this is a defect in fvlm-engine; please report it with the recipe");
  } catch (const std::exception& error) { // the standard library's own, of folders
    return error.what();
  }
  if (exchange_ && !exchange_->is_first()) return ""; // the first one goes on
  StageFolder::forget_replaced(folder);
  if (folder != last_good_) log_info("checkpoint saved: {}", folder.string()); // else: again, as its stage's last
  job.folder.prune(plan_.keep_last, plan_.keep_best);
  job.folder.link();
  return "";
}

} // namespace fvlm::train
