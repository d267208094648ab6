#include "data/stream/loader.h"

#include "base/error.h"
#include "base/task_thread.h"
#include "base/text.h"
#include "data/shards/retried_file.h"
#include "data/stream/read_ahead.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <thread>

namespace fvlm {
namespace {

constexpr size_t most_packs = 32; // that are made or wait to be taken

size_t buffers(uint64_t memory, size_t bytes, int64_t frames) {
  const size_t held = bytes > 0 ? static_cast<size_t>(memory / bytes) : most_packs;
  if (held < 2)
    throw Error(ErrorKind::data, fmt::format("{} hold no two packs of {} frames, {} each", human_bytes(memory), frames,
                                             human_bytes(bytes)))
        .at("loader.memory_mib")
        .advise("raise it, or lower packing.frames");
  return std::min(held, most_packs);
}

} // namespace

// A pack whose samples are being decoded.
struct Loader::Dish {
  int64_t step = 0;
  bool is_step = true; // else it only tells what was broken
  bool last = true;
  Cursor after;
  std::vector<SetAside> aside; // found by the composer before this pack
  std::vector<Measured> samples;
  std::shared_ptr<const std::vector<std::shared_ptr<const Sample>>> of_step;
  std::vector<int64_t> first_frames;
  int64_t frame_count = 0;
  std::shared_ptr<std::byte> buffer;

  // Of the lock of the kitchen.
  size_t undone = 0;
  std::vector<std::pair<size_t, std::string>> spoilt; // samples that could not be decoded, and why
  std::exception_ptr failure;
};

class Loader::Kitchen {
 public:
  Kitchen(const SampleSource& source, const Order& order, const BatchPlan& plan, PackFunction pack,
          const LoaderOptions& options, Cursor start)
      : source_(source), rank_(options.rank), ranks_(plan.ranks),
        pool_(std::make_shared<FramePool>(bytes_of(plan.capacity.frames),
                                          buffers(options.memory, bytes_of(plan.capacity.frames), plan.capacity.frames),
                                          options.allocate)),
        workers_(options.workers),
        read_ahead_(source, order, start, workers_, 8 + 4 * static_cast<size_t>(workers_.threads())),
        composer_(plan, order, std::move(pack), std::move(start), [this] { return read_ahead_.next(); }),
        cook_(start_thread([this] { cook(); })) {}

  ~Kitchen() {
    {
      const std::lock_guard hold(lock_);
      stops_ = true;
    }
    changed_.notify_all();
    pool_->stop();
    cook_.join();
  }

  // The next one, when it is done; nothing at the end.
  std::shared_ptr<Dish> next() {
    std::unique_lock hold(lock_);
    changed_.wait(hold, [&] { return dishes_.empty() ? ended_ : dishes_.front()->undone == 0; });
    if (dishes_.empty()) {
      if (failure_) std::rethrow_exception(failure_);
      return nullptr;
    }
    auto dish = std::move(dishes_.front());
    dishes_.pop_front();
    changed_.notify_all();
    return dish;
  }

 private:
  size_t bytes_of(int64_t frames) const {
    return static_cast<size_t>(frames * source_.frame_elements()) * sizeof(float);
  }

  void cook() {
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

  // False when the loader is on its way out.
  bool begin(ComposedStep step) {
    auto of_step = std::make_shared<std::vector<std::shared_ptr<const Sample>>>();
    for (const auto& pack : step.packs)
      for (const Measured& measured : pack) of_step->push_back(measured.sample);
    std::vector<std::vector<Measured>> mine;
    for (size_t i = 0; i < step.packs.size(); ++i)
      if (static_cast<int64_t>(i) % ranks_ == rank_) mine.push_back(std::move(step.packs[i]));
    if (mine.empty()) mine.emplace_back(); // who says that the step is over, and what was broken
    for (size_t i = 0; i < mine.size(); ++i) {
      auto dish = std::make_shared<Dish>();
      dish->step = step.after.steps - 1;
      dish->is_step = !step.packs.empty();
      dish->last = i + 1 == mine.size();
      if (i == 0) dish->aside = std::move(step.aside);
      if (dish->last) dish->after = step.after;
      dish->samples = std::move(mine[i]);
      dish->of_step = of_step;
      if (!begin(dish)) return false;
    }
    return true;
  }

  bool begin(const std::shared_ptr<Dish>& dish) {
    for (const Measured& measured : dish->samples) {
      dish->first_frames.push_back(dish->frame_count);
      dish->frame_count += measured.sample->frames;
    }
    if (dish->frame_count > 0) {
      dish->buffer = pool_->take();
      if (!dish->buffer) return false;
    }
    dish->undone = dish->samples.size();
    {
      std::unique_lock hold(lock_);
      changed_.wait(hold, [&] { return stops_ || dishes_.size() < most_packs; });
      if (stops_) return false;
      dishes_.push_back(dish);
    }
    changed_.notify_all();
    for (size_t i = 0; i < dish->samples.size(); ++i) workers_.give([this, dish, i] { decode(*dish, i); });
    return true;
  }

  void decode(Dish& dish, size_t index) {
    const Measured& measured = dish.samples[index];
    const auto elements = static_cast<size_t>(source_.frame_elements());
    std::string reason;
    std::exception_ptr failure;
    try {
      if (measured.sample->frames > 0)
        source_.decode(
            measured.drawn, *measured.sample,
            {reinterpret_cast<float*>(dish.buffer.get()) + static_cast<size_t>(dish.first_frames[index]) * elements,
             static_cast<size_t>(measured.sample->frames) * elements});
    } catch (const ReadError&) {
      failure = std::current_exception();
    } catch (const Error& error) {
      reason = reason_of(error);
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard hold(lock_);
      if (!reason.empty()) dish.spoilt.emplace_back(index, reason);
      if (failure) dish.failure = failure;
      if (--dish.undone > 0) return;
    }
    changed_.notify_all();
  }

  const SampleSource& source_;
  const int64_t rank_, ranks_;
  std::shared_ptr<FramePool> pool_;
  std::mutex lock_; // of the dishes and what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Dish>> dishes_;
  bool ended_ = false, stops_ = false;
  std::exception_ptr failure_;
  Workers workers_; // behind what its tasks use
  ReadAhead read_ahead_;
  Composer composer_;
  std::thread cook_;
};

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

} // namespace

// What is left of it moves up over the frames of samples that are out.
HostPack Loader::plate(Dish& dish, int64_t frame_elements) {
  std::vector<bool> out(dish.samples.size());
  for (const auto& [index, reason] : dish.spoilt) out[index] = true;
  HostPack pack;
  auto* frames = reinterpret_cast<float*>(dish.buffer.get());
  for (size_t i = 0; i < dish.samples.size(); ++i) {
    if (out[i]) continue;
    Measured& measured = dish.samples[i];
    const int64_t count = measured.sample->frames;
    if (count > 0 && pack.frame_count != dish.first_frames[i])
      std::copy_n(frames + dish.first_frames[i] * frame_elements, count * frame_elements,
                  frames + pack.frame_count * frame_elements);
    pack.samples.push_back({measured.drawn.position, std::move(measured.sample), pack.frame_count});
    pack.frame_count += count;
  }
  pack.frames = {frames, static_cast<size_t>(pack.frame_count * frame_elements)};
  pack.buffer = std::move(dish.buffer);
  return pack;
}

Loader::Loader(const SampleSource& source, const Order& order, const BatchPlan& plan, PackFunction pack,
               const LoaderOptions& options, Cursor start)
    : frame_elements_(source.frame_elements()), ranks_(plan.ranks),
      quarantine_(options.quarantine_log, options.quarantine), cursor_(start) {
  Composer::check(start, plan, order);
  for (const auto& aside : source.damage()) quarantine_.add(aside);
  kitchen_ = std::make_unique<Kitchen>(source, order, plan, std::move(pack), options, std::move(start));
}

Loader::~Loader() = default;

std::optional<LoadedPack> Loader::next() {
  const auto came = Clock::now();
  if (left_) times_.working += seconds(came - *left_);
  auto dish = kitchen_->next();
  for (; dish; dish = kitchen_->next()) {
    note(*dish);
    if (!passes_over(*dish)) break;
  }
  left_ = Clock::now();
  times_.waiting += seconds(*left_ - came);
  if (!dish) return {};
  return LoadedPack{plate(*dish, frame_elements_), dish->step, dish->last, dish->after, dish->of_step};
}

// Which steps are taken is all ranks' matter, and no rank knows what another could not decode.
bool Loader::passes_over(const Dish& dish) {
  const bool useless = ranks_ == 1 && dish.spoilt.size() == dish.samples.size();
  const bool passes = !dish.is_step || (useless && !(dish.last && step_begun_));
  if (dish.is_step) step_begun_ = !dish.last && (step_begun_ || !passes);
  return passes;
}

// The composer stops where nothing can be put into a pack; here counts, too, what cannot be decoded.
void Loader::note_use(const Dish& dish) {
  useless_ += std::ssize(dish.aside);
  size_t spoilt = 0;
  for (size_t i = 0; i < dish.samples.size(); ++i) {
    const bool is_spoilt = spoilt < dish.spoilt.size() && dish.spoilt[spoilt].first == i;
    useless_ = is_spoilt ? useless_ + 1 : 0;
    if (is_spoilt) ++spoilt;
    if (useless_ < most_useless) continue;
    const SetAside& aside = dish.samples[i].aside;
    throw Error(ErrorKind::data, fmt::format("of {} samples in a row none can be used; the last of them:\n  {}, sample "
                                             "'{}': {}",
                                             useless_, aside.place, aside.key, dish.spoilt[spoilt - 1].second))
        .advise("fvlm-engine data check RECIPE lists every broken sample");
  }
}

void Loader::note(Dish& dish) {
  if (dish.failure) std::rethrow_exception(dish.failure);
  for (const auto& aside : dish.aside) quarantine_.add(aside);
  std::sort(dish.spoilt.begin(), dish.spoilt.end());
  for (const auto& [index, reason] : dish.spoilt) {
    SetAside aside = dish.samples[index].aside;
    aside.reason = reason;
    aside.skip = SkipReason::media;
    quarantine_.add(aside);
    ++broken_in_decoding_;
  }
  note_use(dish);
  if (!dish.last) return;
  dish.after.broken += broken_in_decoding_;
  dish.after.skipped[static_cast<size_t>(SkipReason::media)] += broken_in_decoding_;
  cursor_ = dish.after;
  quarantine_.check(dish.after.broken, dish.after.read);
}

} // namespace fvlm
