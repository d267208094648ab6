#include "dist/peer_group.h"

#include "base/error.h"
#include "base/log.h"
#include "base/task_thread.h"
#include "device/peer_access.h"
#include "dist/event_pending.h"
#include "dist/rank_watch.h"
#include "dist/shared_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace fvlm::dist {
namespace {

// Signals between streams of all ranks. Operation by operation, each rank says that its part is ready to be read and
// written, and then that it has read and written the others'. Each waits for both of all others, so that no rank can
// signal the same a second time before the first was taken.
class Signals {
 public:
  enum Moment { ready, done };
  static constexpr size_t bytes = size_t{PeerOptions::max_ranks} * PeerOptions::max_ranks * 2 * 64;

  Signals(SharedMemory memory, device::PeerAccess& access, const PeerOptions& options)
      : memory_(std::move(memory)), access_(access), mapped_(access.map_host(memory_.data(), bytes)) {
    for (const Moment moment : {ready, done})
      for (int64_t peer = 0; peer < options.ranks; ++peer) {
        if (peer == options.rank) continue;
        outgoing_[moment].push_back(signal(options.rank, peer, moment));
        incoming_[moment].push_back(signal(peer, options.rank, moment));
      }
  }
  ~Signals() { // its thread runs until no stream needs the memory
    mapped_.reset();
    ends_ = true;
    if (release_.joinable()) release_.join();
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void meet(void* stream, Moment moment) { access_.signal_and_wait(stream, outgoing_[moment], incoming_[moment]); }

  // From here on no stream of this process waits.
  void release() {
    if (release_.joinable()) return;
    release_ = start_thread([this] {
      for (; !ends_; std::this_thread::sleep_for(std::chrono::milliseconds(1)))
        for (const auto& of_moment : incoming_)
          for (uint32_t* signal : of_moment) std::atomic_ref(*signal).store(1);
    });
  }

 private:
  // Each in a cache line of its own.
  uint32_t* signal(int64_t from, int64_t to, Moment moment) const {
    const int64_t line = (to * PeerOptions::max_ranks + from) * 2 + moment;
    return reinterpret_cast<uint32_t*>(memory_.data() + line * 64);
  }

  SharedMemory memory_;
  device::PeerAccess& access_;
  std::shared_ptr<void> mapped_;
  std::array<std::vector<uint32_t*>, 2> outgoing_, incoming_; // by moment
  std::atomic<bool> ends_ = false;
  std::thread release_;
};

// Calls `ring`, in a thread, unless it is stopped before.
class Alarm {
 public:
  Alarm(std::chrono::milliseconds after, std::function<void()> ring)
      : thread_(start_thread([this, after, ring = std::move(ring)] {
          std::unique_lock hold(lock_);
          rang_ = !stopped_.wait_for(hold, after, [this] { return stops_; });
          if (rang_) ring();
        })) {}
  ~Alarm() { stop(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  bool stop() { // whether it rang
    {
      const std::lock_guard hold(lock_);
      stops_ = true;
    }
    stopped_.notify_all();
    if (thread_.joinable()) thread_.join();
    return rang_;
  }

 private:
  std::mutex lock_; // guards what follows
  std::condition_variable stopped_;
  bool stops_ = false, rang_ = false;
  std::thread thread_;
};

class PeerGroup : public Group {
 public:
  PeerGroup(std::unique_ptr<Group> other, const PeerOptions& options, device::PeerAccess& access,
            std::unique_ptr<Signals> signals, at::Tensor staging, RankWatch& watch)
      : other_(std::move(other)), name_(fmt::format("copy engines and {}", other_->name())), rank_(options.rank),
        ranks_(options.ranks), access_(access), gather_(options.gather), watch_(watch), signals_(std::move(signals)),
        staging_(std::move(staging)) {}
  ~PeerGroup() override { signals_->release(); }

  const char* name() const override { return name_.c_str(); }
  bool is_capturable() const override { return other_->is_capturable(); }
  void count_replayed(int64_t operations) override { other_->count_replayed(operations); }
  void abort() override {
    signals_->release();
    other_->abort();
  }

  std::shared_ptr<void> share(const at::Tensor& buffer) override;

  // Empty where a sum on all ranks comes out right and soon.
  std::string problem_of_a_trial(const PeerOptions& options);
  std::unique_ptr<Group> take_other() { return std::move(other_); }

  PendingPointer all_reduce(const at::Tensor& values, Reduction reduction) override {
    const Arena* arena = reduction == Reduction::sum && values.is_floating_point() ? arena_of(values) : nullptr;
    if (!arena) return other_->all_reduce(values, reduction);
    const auto slices = divide(values.numel(), ranks_);
    return start([&](void* stream) {
      signals_->meet(stream, Signals::ready);
      sum_own(stream, *arena, values.view({-1}), slices[static_cast<size_t>(rank_)]);
      send_own(stream, *arena, values.view({-1}), slices[static_cast<size_t>(rank_)]);
      signals_->meet(stream, Signals::done);
    });
  }
  PendingPointer broadcast(const at::Tensor& values, int64_t from) override { return other_->broadcast(values, from); }
  // Each rank sums an equal part of what there is, whose slice it may be: a bucket of gradients often lies in one.
  PendingPointer reduce_scatter(const at::Tensor& buffer, std::span<const Slice> slices) override {
    const Arena* arena = buffer.is_floating_point() ? arena_of(buffer) : nullptr;
    if (!arena) return other_->reduce_scatter(buffer, slices);
    const Slice own = divide(buffer.numel(), ranks_)[static_cast<size_t>(rank_)];
    const auto owners = inside(slices, own);
    return start([&](void* stream) {
      signals_->meet(stream, Signals::ready);
      sum_own(stream, *arena, buffer, own);
      for (int64_t i = 0; i + 1 < ranks_; ++i) {
        const Slice& part = owners[static_cast<size_t>(peer(i))];
        send(stream, *arena, buffer, {own.begin + part.begin, part.length}, peer(i));
      }
      signals_->meet(stream, Signals::done);
    });
  }
  PendingPointer all_gather(const at::Tensor& buffer, std::span<const Slice> slices) override {
    const Arena* arena = arena_of(buffer);
    if (!arena) return other_->all_gather(buffer, slices);
    return start([&](void* stream) {
      signals_->meet(stream, Signals::ready);
      send_own(stream, *arena, buffer, slices[static_cast<size_t>(rank_)]);
      signals_->meet(stream, Signals::done);
    });
  }
  PendingPointer send_receive(const at::Tensor& sent, int64_t to, const at::Tensor& received, int64_t from) override {
    return other_->send_receive(sent, to, received, from);
  }

 private:
  // A buffer that all ranks have opened.
  struct Arena {
    std::byte* begin;
    size_t bytes;
    std::vector<std::shared_ptr<std::byte>> of_rank; // this rank's is null
  };
  struct DonePending : Pending { // on a host
    void wait() override {}
  };

  const Arena* arena_of(const at::Tensor& values) const {
    const auto* begin = static_cast<const std::byte*>(values.data_ptr());
    for (const Arena& arena : arenas_)
      if (values.is_contiguous() && begin >= arena.begin && begin + values.nbytes() <= arena.begin + arena.bytes)
        return &arena;
    return nullptr;
  }
  // The same place in the arena of another rank.
  static std::byte* in_arena_of(int64_t peer, const Arena& arena, const at::Tensor& part) {
    return arena.of_rank[static_cast<size_t>(peer)].get() + (static_cast<std::byte*>(part.data_ptr()) - arena.begin);
  }
  // Of the others, each rank begins with another one.
  int64_t peer(int64_t index) const { return (rank_ + 1 + index) % ranks_; }

  std::string open_on_all_ranks(const at::Tensor& buffer, std::shared_ptr<void>& shared);
  void sum_own(void* stream, const Arena& arena, const at::Tensor& values, const Slice& own);
  void send_own(void* stream, const Arena& arena, const at::Tensor& values, const Slice& own);
  void send(void* stream, const Arena& arena, const at::Tensor& values, const Slice& slice, int64_t to);

  PendingPointer start(const std::function<void(void* stream)>& enqueue) {
    watch_.count_collectives();
    if (device::Runtime* gpu = device::runtime())
      return std::make_unique<EventPending>(gpu->run_on_communication_stream(enqueue));
    enqueue(nullptr);
    return std::make_unique<DonePending>();
  }

  std::unique_ptr<Group> other_;
  std::string name_;
  int64_t rank_, ranks_;
  device::PeerAccess& access_;
  std::function<std::vector<std::string>(const std::string& own)> gather_;
  RankWatch& watch_;
  std::unique_ptr<Signals> signals_;
  at::Tensor staging_;
  std::list<Arena> arenas_;
};

// What goes wrong on one rank goes wrong on all. Empty: `work` succeeded everywhere.
std::string first_problem(const std::function<std::vector<std::string>(const std::string& own)>& gather,
                          const std::function<void()>& work) {
  std::string own;
  try {
    work();
  } catch (const std::exception& error) {
    const std::string what = error.what();
    own = what.empty() ? "unknown" : what.substr(0, what.find('\n'));
  }
  const auto all = gather(own);
  const auto found = std::ranges::find_if(all, [](const std::string& one) { return !one.empty(); });
  return found == all.end() ? "" : fmt::format("rank {}: {}", found - all.begin(), *found);
}

std::shared_ptr<void> PeerGroup::share(const at::Tensor& buffer) {
  std::shared_ptr<void> shared;
  const std::string problem = open_on_all_ranks(buffer, shared);
  if (!problem.empty() && rank_ == 0)
    log_info("a buffer of the ranks is exchanged by {} alone: {}", other_->name(), problem);
  return shared;
}

std::string PeerGroup::open_on_all_ranks(const at::Tensor& buffer, std::shared_ptr<void>& shared) {
  std::string exported;
  Arena arena{static_cast<std::byte*>(buffer.data_ptr()), buffer.nbytes(), {}};
  arena.of_rank.resize(static_cast<size_t>(ranks_));
  std::string problem = first_problem(gather_, [&] { exported = access_.export_memory(arena.begin); });
  if (problem.empty()) {
    const auto all = gather_(exported);
    problem = first_problem(gather_, [&] {
      for (int64_t i = 0; i + 1 < ranks_; ++i) {
        const auto rank = static_cast<size_t>(peer(i));
        arena.of_rank[rank] = access_.open_memory(all[rank]);
      }
    });
  }
  if (!problem.empty()) return problem;
  const auto place = arenas_.insert(arenas_.end(), std::move(arena));
  shared = {&*place, [this, place](void*) { arenas_.erase(place); }};
  return "";
}

// There are hosts on which devices open each other's memory, and what they copy does not arrive.
std::string PeerGroup::problem_of_a_trial(const PeerOptions& options) {
  const at::Tensor numbers =
      at::full({int64_t{1} << 18}, static_cast<double>(rank_ + 1), at::dtype(at::kFloat).device(options.device));
  std::shared_ptr<void> shared;
  if (std::string problem = open_on_all_ranks(numbers, shared); !problem.empty()) return problem;
  return first_problem(gather_, [&] {
    Alarm alarm(options.trial_timeout, [this] { signals_->release(); });
    all_reduce(numbers, Reduction::sum)->wait();
    const bool is_right = numbers.eq(static_cast<double>(ranks_ * (ranks_ + 1) / 2)).all().item<bool>();
    if (alarm.stop()) throw Error(ErrorKind::device, "the others did not signal that they copied");
    if (!is_right) throw Error(ErrorKind::device, "what the others copied did not arrive");
  });
}

// In the order of ranks, in float32 where the numbers are narrower: in parts that fit into the memory for what the
// others have.
void PeerGroup::sum_own(void* stream, const Arena& arena, const at::Tensor& values, const Slice& own) {
  constexpr int64_t alignment = 64;
  const bool is_pair = ranks_ == 2; // the sum of two has one order
  const int64_t rows = is_pair ? 1 : ranks_;
  const at::Tensor staging = staging_.view(values.scalar_type());
  const int64_t most = staging.numel() / rows / alignment * alignment;
  for (int64_t begin = own.begin; begin < own.end(); begin += most) {
    const int64_t length = std::min(most, own.end() - begin);
    const at::Tensor part = values.narrow(0, begin, length),
                     staged = staging.narrow(0, 0, rows * length).view({rows, length});
    for (int64_t i = 0; i + 1 < ranks_; ++i)
      access_.copy(stream, staged[is_pair ? 0 : peer(i)].data_ptr(), in_arena_of(peer(i), arena, part), part.nbytes());
    if (is_pair) {
      at::Tensor(part).add_(staged[0]);
      continue;
    }
    access_.copy(stream, staged[rank_].data_ptr(), part.data_ptr(), part.nbytes());
    at::Tensor sums = part;
    at::sum_out(sums, staged, 0);
  }
}

void PeerGroup::send_own(void* stream, const Arena& arena, const at::Tensor& values, const Slice& own) {
  for (int64_t i = 0; i + 1 < ranks_; ++i) send(stream, arena, values, own, peer(i));
}

void PeerGroup::send(void* stream, const Arena& arena, const at::Tensor& values, const Slice& slice, int64_t to) {
  if (slice.length == 0) return;
  const at::Tensor part = values.narrow(0, slice.begin, slice.length);
  access_.copy(stream, in_arena_of(to, arena, part), part.data_ptr(), part.nbytes());
}

} // namespace

std::unique_ptr<Group> with_peer_copies(std::unique_ptr<Group> other, const PeerOptions& options, RankWatch& watch) {
  if (options.ranks > PeerOptions::max_ranks) return other;
  device::PeerAccess* access = nullptr;
  std::optional<SharedMemory> memory;
  std::string problem = first_problem(options.gather, [&] {
    access = &options.access();
    if (options.rank == 0) memory.emplace(SharedMemory::create(Signals::bytes));
  });
  std::unique_ptr<Signals> signals;
  at::Tensor staging;
  if (problem.empty()) {
    const std::string name = options.gather(memory ? memory->name() : "").front();
    problem = first_problem(options.gather, [&] {
      if (!memory) memory.emplace(SharedMemory::open(name));
      signals = std::make_unique<Signals>(std::move(*memory), *access, options);
      staging = at::empty({options.staging_bytes}, at::dtype(at::kByte).device(options.device));
    });
  }
  if (problem.empty()) {
    auto group =
        std::make_unique<PeerGroup>(std::move(other), options, *access, std::move(signals), std::move(staging), watch);
    problem = group->problem_of_a_trial(options);
    if (problem.empty()) return group;
    other = group->take_other();
  }
  if (options.rank == 0) log_info("the ranks exchange without copy engines: {}", problem);
  return other;
}

} // namespace fvlm::dist
