#include "data/stream/loader.h"

#include "base/error.h"
#include "base/task_thread.h"
#include "base/text.h"
#include "data/shards/retrying_file.h"
#include "data/stream/prefetcher.h"

#include <algorithm>
#include <condition_variable>
#include <thread>

namespace fvlm {
namespace {

constexpr size_t max_packs = 32; // being decoded or waiting for next()

size_t buffer_count(uint64_t memory, size_t bytes, int64_t frames) {
  const size_t held = bytes > 0 ? static_cast<size_t>(memory / bytes) : max_packs;
  if (held < 2)
    throw Error(ErrorKind::data, "{} hold no two packs of {} frames, {} each", human_bytes(memory), frames,
                human_bytes(bytes))
        .at("loader.memory_mib")
        .advise("raise it, or lower packing.frames");
  return std::min(held, max_packs);
}

} // namespace

// A pack whose samples are being decoded.
struct DataLoader::PendingPack {
  int64_t step = 0;
  bool is_step = true; // otherwise it only carries skipped samples
  bool last = true;
  int64_t most_packs = 1; // that a rank has in the step
  Cursor after;
  std::vector<SkippedSample> skipped; // found by the composer before this pack
  std::vector<MeasuredSample> samples;
  std::shared_ptr<const std::vector<std::shared_ptr<const Sample>>> of_step;
  std::vector<int64_t> first_frames;
  int64_t frame_count = 0;
  std::shared_ptr<std::byte> buffer;

  // Guarded by Pipeline::lock_.
  size_t undecoded = 0;
  std::vector<std::pair<size_t, std::string>> failed; // samples that could not be decoded, and why
  std::exception_ptr failure;
};

class DataLoader::Pipeline {
 public:
  Pipeline(const SampleSource& source, const Order& order, const BatchPlan& plan, PackFunction pack,
           const DataLoaderOptions& options, Cursor start)
      : source_(source), rank_(options.rank), ranks_(plan.ranks),
        pool_(std::make_shared<FramePool>(
            bytes_of(plan.capacity.frames),
            buffer_count(options.memory, bytes_of(plan.capacity.frames), plan.capacity.frames), options.allocate)),
        workers_(options.workers),
        read_ahead_(source, order, start, workers_, 8 + 4 * static_cast<size_t>(workers_.threads())),
        composer_(plan, order, std::move(pack), std::move(start), [this] { return read_ahead_.next(); }),
        composer_thread_(start_thread([this] { run(); })) {}

  ~Pipeline() {
    {
      const std::lock_guard hold(lock_);
      stops_ = true;
    }
    changed_.notify_all();
    pool_->stop();
    composer_thread_.join();
  }

  // Waits for the next pack to be decoded; null at the end.
  std::shared_ptr<PendingPack> next() {
    std::unique_lock hold(lock_);
    changed_.wait(hold, [&] { return pending_packs_.empty() ? ended_ : pending_packs_.front()->undecoded == 0; });
    if (pending_packs_.empty()) {
      if (failure_) std::rethrow_exception(failure_);
      return nullptr;
    }
    auto pending = std::move(pending_packs_.front());
    pending_packs_.pop_front();
    changed_.notify_all();
    return pending;
  }

 private:
  size_t bytes_of(int64_t frames) const {
    return static_cast<size_t>(frames * source_.frame_elements()) * (source_.normalization() ? 1 : sizeof(float));
  }

  void run() {
    std::exception_ptr failure;
    try {
      for (auto step = composer_.next(); step && begin(std::move(*step)); step = composer_.next()) {
      }
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard hold(lock_);
      ended_ = true;
      failure_ = failure;
    }
    changed_.notify_all();
  }

  // Returns false when the loader is being destroyed.
  bool begin(ComposedStep step) {
    auto of_step = std::make_shared<std::vector<std::shared_ptr<const Sample>>>();
    for (const auto& pack : step.packs)
      for (const MeasuredSample& measured : pack)
        for (auto& part : packed_parts(measured.sample)) of_step->push_back(std::move(part));
    std::vector<std::vector<MeasuredSample>> own_packs;
    for (size_t i = 0; i < step.packs.size(); ++i)
      if (static_cast<int64_t>(i) % ranks_ == rank_) own_packs.push_back(std::move(step.packs[i]));
    if (own_packs.empty())
      own_packs.emplace_back(); // an empty pack still reports the end of the step and its skipped samples
    for (size_t i = 0; i < own_packs.size(); ++i) {
      auto pending = std::make_shared<PendingPack>();
      pending->step = step.after.steps - 1;
      pending->is_step = !step.packs.empty();
      pending->last = i + 1 == own_packs.size();
      pending->most_packs = std::max<int64_t>(1, (std::ssize(step.packs) + ranks_ - 1) / ranks_);
      if (i == 0) pending->skipped = std::move(step.skipped);
      if (pending->last) pending->after = step.after;
      pending->samples = std::move(own_packs[i]);
      pending->of_step = of_step;
      if (!begin(pending)) return false;
    }
    return true;
  }

  bool begin(const std::shared_ptr<PendingPack>& pending) {
    for (const MeasuredSample& measured : pending->samples) {
      pending->first_frames.push_back(pending->frame_count);
      pending->frame_count += measured.sample->distinct_frames();
    }
    if (pending->frame_count > 0 && source_.frame_elements() > 0) {
      pending->buffer = pool_->take(bytes_of(pending->frame_count));
      if (!pending->buffer) return false;
    }
    pending->undecoded = pending->samples.size();
    {
      std::unique_lock hold(lock_);
      changed_.wait(hold, [&] { return stops_ || pending_packs_.size() < max_packs; });
      if (stops_) return false;
      pending_packs_.push_back(pending);
    }
    changed_.notify_all();
    for (size_t i = 0; i < pending->samples.size(); ++i) workers_.give([this, pending, i] { decode(*pending, i); });
    return true;
  }

  void decode(PendingPack& pending, size_t index) {
    const MeasuredSample& measured = pending.samples[index];
    const auto elements = static_cast<size_t>(source_.frame_elements());
    std::string reason;
    std::exception_ptr failure;
    try {
      const auto count = static_cast<size_t>(measured.sample->distinct_frames()) * elements;
      std::byte* const memory = pending.buffer.get() + bytes_of(pending.first_frames[index]);
      if (count > 0 && source_.normalization())
        source_.decode_pixels(measured.drawn, *measured.sample, {reinterpret_cast<uint8_t*>(memory), count});
      else if (count > 0)
        source_.decode(measured.drawn, *measured.sample, {reinterpret_cast<float*>(memory), count});
    } catch (const ReadError&) {
      failure = std::current_exception();
    } catch (const Error& error) {
      reason = reason_of(error);
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard hold(lock_);
      if (!reason.empty()) pending.failed.emplace_back(index, reason);
      if (failure) pending.failure = failure;
      if (--pending.undecoded > 0) return;
    }
    changed_.notify_all();
  }

  const SampleSource& source_;
  const int64_t rank_, ranks_;
  std::shared_ptr<FramePool> pool_;
  std::mutex lock_; // guards the members up to failure_
  std::condition_variable changed_;
  std::deque<std::shared_ptr<PendingPack>> pending_packs_;
  bool ended_ = false, stops_ = false;
  std::exception_ptr failure_;
  ThreadPool workers_; // declared after everything that its tasks use
  Prefetcher read_ahead_;
  Composer composer_;
  std::thread composer_thread_;
};

// Moves the frames of the remaining samples together, over those of samples that could not be decoded.
HostPack DataLoader::compact(PendingPack& pending) const {
  std::vector<bool> out(pending.samples.size());
  for (const auto& [index, reason] : pending.failed) out[index] = true;
  HostPack pack;
  std::byte* const frames = pending.buffer.get();
  const int64_t bytes = frame_elements_ * static_cast<int64_t>(normalization_ ? 1 : sizeof(float));
  for (size_t i = 0; i < pending.samples.size(); ++i) {
    if (out[i]) continue;
    MeasuredSample& measured = pending.samples[i];
    const int64_t count = measured.sample->distinct_frames();
    if (count > 0 && pack.frame_count != pending.first_frames[i])
      std::copy_n(frames + pending.first_frames[i] * bytes, count * bytes, frames + pack.frame_count * bytes);
    int64_t first = pack.frame_count;
    for (auto& part : packed_parts(measured.sample)) {
      const int64_t own = part->distinct_frames();
      pack.samples.push_back({measured.drawn.position, std::move(part), first});
      first += own;
    }
    pack.frame_count += count;
  }
  const auto elements = static_cast<size_t>(pack.frame_count * frame_elements_);
  if (normalization_)
    pack.pixels = {reinterpret_cast<const uint8_t*>(frames), elements};
  else
    pack.frames = {reinterpret_cast<const float*>(frames), elements};
  pack.normalization = normalization_;
  pack.buffer = std::move(pending.buffer);
  return pack;
}

DataLoader::DataLoader(const SampleSource& source, const Order& order, const BatchPlan& plan, PackFunction pack,
                       const DataLoaderOptions& options, Cursor start)
    : frame_elements_(source.frame_elements()), normalization_(source.normalization()), rank_(options.rank),
      ranks_(plan.ranks), most_unusable_(order.most_unusable()),
      quarantine_(options.quarantine_log, options.quarantine), cursor_(start) {
  Composer::check(start, plan, order);
  if (rank_ == 0) // the others find the same
    for (const auto& skipped : source.damage()) quarantine_.add(skipped);
  pipeline_ = std::make_unique<Pipeline>(source, order, plan, std::move(pack), options, std::move(start));
}

DataLoader::~DataLoader() = default;

std::optional<LoadedPack> DataLoader::next() {
  auto pending = pipeline_->next();
  for (; pending; pending = pipeline_->next()) {
    record(*pending);
    if (!skips(*pending)) break;
  }
  if (!pending) return {};
  return LoadedPack{compact(*pending), pending->step,   pending->last,   pending->most_packs,
                    pending->after,    failed_decodes_, pending->of_step};
}

// All ranks must take the same steps, and no rank knows which samples failed on another.
bool DataLoader::skips(const PendingPack& pending) {
  const bool useless = ranks_ == 1 && pending.failed.size() == pending.samples.size();
  const bool skipped = !pending.is_step || (useless && !(pending.last && step_begun_));
  if (pending.is_step) step_begun_ = !pending.last && (step_begun_ || !skipped);
  return skipped;
}

// The composer counts samples that fit into no pack; here samples that cannot be decoded count as well.
void DataLoader::count_unusable(const PendingPack& pending) {
  consecutive_unusable_ += std::ssize(pending.skipped);
  size_t failed = 0;
  for (size_t i = 0; i < pending.samples.size(); ++i) {
    const bool is_failed = failed < pending.failed.size() && pending.failed[failed].first == i;
    consecutive_unusable_ = is_failed ? consecutive_unusable_ + 1 : 0;
    if (is_failed) ++failed;
    if (consecutive_unusable_ < most_unusable_) continue;
    const SkippedSample& skipped = pending.samples[i].skipped;
    throw Error(ErrorKind::data,
                "none of {} samples drawn in a row can be used; the last of them:\n  {}, sample '{}': {}",
                grouped(consecutive_unusable_), skipped.place, skipped.key, pending.failed[failed - 1].second)
        .advise("fvlm-engine data check RECIPE lists every broken sample");
  }
}

void DataLoader::record(PendingPack& pending) {
  if (pending.failure) std::rethrow_exception(pending.failure);
  if (rank_ == 0)
    for (const auto& skipped : pending.skipped) quarantine_.add(skipped);
  std::ranges::sort(pending.failed);
  for (const auto& [index, reason] : pending.failed) {
    SkippedSample skipped = pending.samples[index].skipped;
    skipped.reason = reason;
    skipped.skip = SkipReason::media;
    quarantine_.add(skipped);
    ++failed_decodes_;
  }
  count_unusable(pending);
  if (!pending.last) return;
  pending.after.add_undecodable(failed_decodes_);
  cursor_ = pending.after;
  quarantine_.check(pending.after.broken, pending.after.read);
}

} // namespace fvlm
