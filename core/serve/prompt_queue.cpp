#include "serve/prompt_queue.h"

#include "base/log.h"
#include "base/task_thread.h"
#include "model/pack.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <utility>

namespace fvlm::serve {
namespace {

// Frames that wait for the model, since each takes memory; one request may have more.
constexpr int64_t max_written_frames = 128;

// A picture of cells counts as a frame for each so many of them: a square of 448 pixels has these, with cells of 28.
constexpr int64_t cells_of_frame = 256;

int64_t frames_in(const AnswerJob& job) {
  const model::Sample& sample = job.prompt.sample;
  if (sample.grids.empty()) return model::frames_of(sample.frames);
  int64_t frames = 0;
  for (const ImageGrid& grid : sample.grids) frames += (grid.squares() + cells_of_frame - 1) / cells_of_frame;
  return frames;
}

// Where a request has its prompt.
const char* prompt_field(const ChatRequest& request) {
  if (request.response_fields || (request.embedding && !request.is_chat)) return "input";
  return request.is_chat ? "messages" : "prompt";
}

} // namespace

PromptQueue::PromptQueue(const infer::Generator& generator, const PromptWriter& prompts, int64_t threads, Finish finish)
    : generator_(generator), prompts_(prompts), finish_(std::move(finish)) {
  for (int64_t i = 0; i < threads; ++i) threads_.push_back(start_thread([this] { work(); }));
}

PromptQueue::~PromptQueue() {
  stop();
}

void PromptQueue::add(Job job) {
  std::lock_guard lock(lock_);
  waiting_.push_back(std::move(job));
  may_write_.notify_one();
}

void PromptQueue::wait() {
  std::unique_lock lock(lock_);
  is_written_.wait(lock, [this] { return stops_ || !written_.empty(); });
}

std::vector<PromptQueue::Job> PromptQueue::take(int64_t max_frames, const Patience& patience) {
  std::vector<Job> taken;
  std::lock_guard lock(lock_);
  if (stops_ || written_.empty()) return taken;
  const auto now = std::chrono::steady_clock::now();
  const auto waited = [&](const Job& job) { return std::chrono::duration<double>(now - job->written).count(); };
  double together = 0;
  for (const Job& job : written_) together += waited(job);
  if (together < patience.together && waited(written_.front()) < patience.first) return taken;
  for (int64_t frames = 0; !written_.empty(); taken.push_back(std::move(written_.front())), written_.pop_front()) {
    frames += frames_in(*written_.front());
    if (!taken.empty() && frames > max_frames) break;
    written_frames_ -= frames_in(*written_.front());
  }
  if (!taken.empty()) may_write_.notify_all();
  return taken;
}

std::vector<PromptQueue::Job> PromptQueue::stop() {
  {
    std::lock_guard lock(lock_);
    stops_ = true;
  }
  may_write_.notify_all();
  is_written_.notify_all();
  for (std::thread& thread : std::exchange(threads_, {})) thread.join();
  std::vector<Job> left;
  for (auto* jobs : {&written_, &waiting_})
    for (Job& job : std::exchange(*jobs, {})) left.push_back(std::move(job));
  return left;
}

double PromptQueue::cpu_seconds() {
  double seconds = 0;
  for (std::thread& thread : threads_) seconds += fvlm::cpu_seconds(thread);
  return seconds;
}

void PromptQueue::work() {
  const c10::InferenceMode no_autograd;
  for (;;) {
    Job job;
    {
      std::unique_lock lock(lock_);
      may_write_.wait(lock, [this] { return stops_ || (!waiting_.empty() && written_frames_ < max_written_frames); });
      if (stops_) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (!write(*job)) continue;
    job->written = std::chrono::steady_clock::now();
    std::lock_guard lock(lock_);
    written_frames_ += frames_in(*job);
    written_.push_back(std::move(job));
    is_written_.notify_one();
  }
}

// Returns false where the request ended here.
bool PromptQueue::write(AnswerJob& job) const {
  if (job.listener->is_abandoned()) {
    job.abandoned = true;
    finish_(job, nullptr);
    return false;
  }
  try {
    job.prompt = prompts_.write(job.request);
    job.usage.prompt = generator_.require_room(job.prompt.sample);
    std::vector<std::string>().swap(job.request.images); // the files are not needed any more
    if (job.request.video) job.request.video->source.reset();
    job.listener->release_files();
    return true;
  } catch (infer::PromptTooLong& error) {
    const auto& most = job.request.max_tokens;
    error.at(prompt_field(job.request))
        .advise("shorten it{}", most ? fmt::format("; the answer may have {} tokens besides", *most) : "");
    finish_(job, &error);
  } catch (const Error& error) {
    finish_(job, &error);
  } catch (const std::exception& error) { // out of memory, for example
    log_error("a prompt could not be written: {}", error.what());
    const Error failure(ErrorKind::internal, "the server failed to read the request; its log says why");
    finish_(job, &failure);
  }
  return false;
}

} // namespace fvlm::serve
