#include "data/stream/prefetcher.h"

#include "data/samples/error_context.h"

namespace fvlm {

MeasuredSample measure(const SampleSource& source, const DrawnSample& drawn) {
  MeasuredSample measured{
      drawn, nullptr, {.position = drawn.position, .place = source.place(drawn), .key = "", .reason = ""}};
  try {
    auto sample = std::make_shared<const Sample>(source.measure(drawn));
    measured.skipped.key = sample->key;
    if (sample->dropped.empty()) {
      measured.sample = std::move(sample);
    } else {
      measured.skipped.reason = sample->dropped;
      measured.skipped.broken = false;
      measured.skipped.skip = sample->exceeds_frames                                 ? SkipReason::frames
                              : sample->truncated_tokens > 0 || sample->lacks_answer ? SkipReason::no_answer
                                                                                     : SkipReason::overlong;
    }
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::recipe) throw; // the sample is not what is wrong
    measured.skipped.key = source.key(drawn);
    measured.skipped.reason = reason_of(error);
    if (dynamic_cast<const MediaError*>(&error)) measured.skipped.skip = SkipReason::media;
  }
  return measured;
}

Prefetcher::Prefetcher(const SampleSource& source, const Order& order, const Cursor& start, ThreadPool& workers,
                       size_t depth)
    : source_(source), order_(order), state_(start.order), done_(start.done), workers_(workers), depth_(depth) {}

void Prefetcher::schedule() {
  while (pending_.size() < depth_ && !ended_) {
    const auto drawn = order_.next(state_);
    if (!drawn) {
      ended_ = true;
      return;
    }
    if (skipped_ < done_.size() && done_[skipped_++]) continue;
    auto task = std::make_shared<std::packaged_task<MeasuredSample()>>(
        [&source = source_, drawn = *drawn] { return measure(source, drawn); });
    pending_.push_back(task->get_future());
    workers_.give([task] { (*task)(); });
  }
}

std::optional<MeasuredSample> Prefetcher::next() {
  schedule();
  if (pending_.empty()) return {};
  auto future = std::move(pending_.front());
  pending_.pop_front();
  return future.get();
}

} // namespace fvlm
