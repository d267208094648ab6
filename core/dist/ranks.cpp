#include "dist/ranks.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "device/runtime.h"
#include "dist/gloo_group.h"
#include "dist/nccl_group.h"
#include "dist/peer_group.h"
#include "dist/rank_watch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <utility>

namespace fvlm::dist {
namespace {

using StorePointer = c10::intrusive_ptr<c10d::Store>;
using namespace std::chrono_literals;

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

class C10dStore : public KeyValueStore {
 public:
  explicit C10dStore(StorePointer store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(key, bytes_of(value)); }
  std::optional<std::string> get(const std::string& key) override {
    if (!store_->check({key})) return {};
    return text_of(store_->get(key));
  }
  std::string set_once(const std::string& key, const std::string& value) override {
    return text_of(store_->compareSet(key, {}, bytes_of(value)));
  }

 private:
  StorePointer store_;
};

StorePointer connect(const Launch& launch, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.isServer = launch.rank == 0 && !launch.has_store;
  options.numWorkers = static_cast<size_t>(launch.ranks);
  options.waitWorkers = false;
  options.timeout = timeout;
  // A prefix of each attempt, as the store of a launcher outlives the ranks that it starts anew.
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("fvlm/{}", launch.attempt),
                                                c10::make_intrusive<c10d::TCPStore>(launch.host, options));
}

StorePointer below(const StorePointer& store, const std::string& name) {
  return c10::make_intrusive<c10d::PrefixStore>(name, store);
}

// NCCL refuses two ranks on one GPU.
bool have_gpu_each(const StorePointer& store, const Launch& launch) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const int64_t before = store->add(fmt::format("gpu/{}/{}", host, visible ? visible : ""), 1);
  if (before > 1) store->set("gpu/shared", bytes_of("1"));
  if (store->add("gpu/ranks", 1) == launch.ranks) store->set("gpu/known", bytes_of("1"));
  store->wait({"gpu/known"});
  return !store->check({"gpu/shared"});
}

// The ranks of a group find each other by a key of the store.
std::unique_ptr<Group> nccl_group(const StorePointer& store, const std::string& key, int64_t rank, int64_t ranks,
                                  RankWatch& watch) {
  const auto share = [&](const std::string& id) {
    if (rank == 0) store->set(key, bytes_of(id));
    return text_of(store->get(key));
  };
  return make_nccl_group(rank, ranks, share, watch);
}

// While one of these exists, c10d does not log, whose log has a stack trace for each attempt to connect.
class QuietC10d {
 public:
  QuietC10d() {
    const std::lock_guard hold(lock_);
    if (count_++ == 0) level_ = std::exchange(FLAGS_caffe2_log_level, c10::GLOG_FATAL);
  }
  ~QuietC10d() {
    const std::lock_guard hold(lock_);
    if (--count_ == 0) FLAGS_caffe2_log_level = level_;
  }
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;

 private:
  static inline std::mutex lock_; // several threads are ranks in tests
  static inline int count_ = 0, level_ = 0;
};

// Says that ranks look for each other, where it takes long.
std::jthread notice_of_waiting(std::string text) {
  return std::jthread([text = std::move(text)](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    const auto never = [] { return false; };
    while (!std::condition_variable_any().wait_for(lock, stop, 5s, never) && !stop.stop_requested())
      log_info("{}", text);
  });
}

[[noreturn]] void end_process(const Error& error) {
  log_error("{}", error.text());
  _exit(error.exit_code());
}

} // namespace

struct Ranks::Connection {
  StorePointer store;
  bool serves = false;
  int64_t ranks;
  std::unique_ptr<RankWatch> watch;
  std::unique_ptr<Group> hosts, devices, context;

  // Whoever serves the store goes last.
  ~Connection() {
    context.reset();
    devices.reset();
    hosts.reset();
    watch.reset();
    if (!store) return;
    try {
      store->add("gone", 1);
      // After a failure for as long as the others may need to learn of it: whoever was lost will not say that it goes.
      const auto until = std::chrono::steady_clock::now() + (store->check({"watch/failure"}) ? 3s : 10s);
      while (serves && store->add("gone", 0) < ranks && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(10ms);
    } catch (const std::exception&) { // the launcher has ended
    }
  }
};

Ranks::Ranks() = default;
Ranks::~Ranks() = default;

std::unique_ptr<Ranks> Ranks::join(const Launch& launch, at::Device device, std::chrono::milliseconds timeout,
                                   int64_t context, bool peer_copies) {
  if (context < 1 || launch.ranks % context != 0)
    throw Error(ErrorKind::usage, "--context-parallel {}: {} cannot be divided into groups of {}", context,
                counted(launch.ranks, "rank"), context)
        .advise("start a multiple of it, or choose a divisor of the number of ranks");
  std::signal(SIGPIPE, SIG_IGN); // Gloo writes to ranks that may be gone: an error names them, a signal would not
  auto ranks = std::make_unique<Ranks>();
  ranks->rank_ = launch.rank;
  ranks->count_ = launch.ranks;
  ranks->on_this_machine_ = launch.local_ranks;
  ranks->context_ = context;
  ranks->timeout_ = timeout;
  auto connection = std::make_unique<Connection>();
  try {
    const QuietC10d quiet;
    const std::jthread notice = notice_of_waiting(fmt::format("rank {} of {} waits for the others at {}:{}",
                                                              launch.rank, launch.ranks, launch.host, launch.port));
    connection->store = connect(launch, timeout);
    connection->serves = launch.rank == 0 && !launch.has_store;
    connection->ranks = launch.ranks;
    const auto watch_store = [&] { return std::make_unique<C10dStore>(below(connection->store->clone(), "watch")); };
    RankWatch::Options options{launch.rank, launch.ranks, timeout};
    options.end_process = end_process;
    connection->watch = std::make_unique<RankWatch>(watch_store(), watch_store(), std::move(options));
    connection->hosts =
        make_gloo_group(below(connection->store, "hosts"), launch.rank, launch.ranks, timeout, *connection->watch);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    throw Error(ErrorKind::device, "rank {} of {} did not meet the others: {}", launch.rank, launch.ranks,
                what.substr(0, what.find('\n')))
        .at("{}:{}", launch.host, launch.port)
        .advise("check that all ranks were started with this address, and that it can be reached");
  }
  Connection& made = *connection;
  ranks->device_group_ = made.hosts.get();
  ranks->connection_ = std::move(connection);
  const bool by_nccl = device.is_cuda() && device::runtime() && have_gpu_each(made.store, launch);
  if (by_nccl) {
    ranks->form_device_group(launch, device, peer_copies);
  } else if (device.is_cuda() && launch.rank == 0) {
    log_warning("several ranks share a GPU, which NCCL refuses: gradients go through the host's memory");
  }
  ranks->form_contexts(by_nccl, timeout);
  made.watch->set_abort([&made] {
    if (made.devices) made.devices->abort();
    if (made.context) made.context->abort();
  });
  return ranks;
}

void Ranks::form_device_group(const Launch& launch, at::Device device, bool peer_copies) {
  Connection& made = *connection_;
  made.devices = nccl_group(made.store, "nccl", launch.rank, launch.ranks, *made.watch);
  if (are_several()) {
    PeerOptions options;
    options.rank = rank_;
    options.ranks = count_;
    options.device = device;
    options.access = [peer_copies]() -> device::PeerAccess& {
      if (!peer_copies) throw Error(ErrorKind::device, "--no-peer-copies");
      device::PeerAccess* access = device::runtime()->peer_access();
      if (!access) throw Error(ErrorKind::device, "the device has none");
      return *access;
    };
    options.gather = [this](const std::string& own) { return gather(own); };
    made.devices = with_peer_copies(std::move(made.devices), options, *made.watch);
  }
  device_group_ = made.devices.get();
}

// Each group has a part of the store.
void Ranks::form_contexts(bool by_nccl, std::chrono::milliseconds timeout) {
  Connection& made = *connection_;
  if (is_first()) made.store->set("context", bytes_of(std::to_string(context_)));
  if (const std::string first = text_of(made.store->get("context")); first != std::to_string(context_))
    throw Error(ErrorKind::usage, "rank {} was started with --context-parallel {}, and rank 0 with {}", rank_, context_,
                first)
        .advise("start every rank with the same options");
  if (context_ == 1) return;
  const std::string name = fmt::format("context/{}", data_rank());
  made.context = by_nccl ? nccl_group(made.store, name, context_rank(), context_, *made.watch)
                         : make_gloo_group(below(made.store, name), context_rank(), context_, timeout, *made.watch);
  context_group_ = made.context.get();
}

void Ranks::sum(std::span<double> numbers) const {
  if (!connection_) return;
  connection_->hosts->all_reduce(at::from_blob(numbers.data(), {std::ssize(numbers)}, at::kDouble), Reduction::sum)
      ->wait();
}

std::string Ranks::from_first(const std::string& text) const {
  if (!connection_) return text;
  at::Tensor length = at::empty({1}, at::kLong);
  length.fill_(static_cast<int64_t>(text.size()));
  connection_->hosts->broadcast(length, 0)->wait();
  std::string shared(static_cast<size_t>(length.item<int64_t>()), '\0');
  if (is_first()) shared = text;
  if (shared.empty()) return shared;
  connection_->hosts->broadcast(at::from_blob(shared.data(), {std::ssize(shared)}, at::kByte), 0)->wait();
  return shared;
}

std::vector<std::string> Ranks::gather(const std::string& own) const {
  if (!connection_) return {own};
  std::vector<double> sizes(static_cast<size_t>(count_));
  sizes[static_cast<size_t>(rank_)] = static_cast<double>(own.size());
  sum(sizes);
  std::vector<Slice> slices;
  int64_t bytes = 0;
  for (const double size : sizes) {
    slices.push_back({bytes, static_cast<int64_t>(size)});
    bytes = slices.back().end();
  }
  std::string all(static_cast<size_t>(bytes), '\0');
  all.replace(static_cast<size_t>(slices[static_cast<size_t>(rank_)].begin), own.size(), own);
  if (bytes > 0) connection_->hosts->all_gather(at::from_blob(all.data(), {bytes}, at::kByte), slices)->wait();
  std::vector<std::string> texts;
  texts.reserve(slices.size());
  for (const Slice& slice : slices)
    texts.push_back(all.substr(static_cast<size_t>(slice.begin), static_cast<size_t>(slice.length)));
  return texts;
}

void Ranks::enter(const char* phase, const std::string& stage, int64_t step) const {
  if (connection_) connection_->watch->enter(phase, stage, step);
}

void Ranks::enter_beside(const std::string& what) const {
  if (connection_) connection_->watch->enter_beside(what);
}

void Ranks::wait_for_device(bool waits) const {
  if (connection_) connection_->watch->wait_for_device(waits);
}

void Ranks::report_failure(const std::string& why) const {
  if (connection_) connection_->watch->report(why);
}

std::optional<std::string> Ranks::failure() const {
  return connection_ ? connection_->watch->failure() : std::nullopt;
}

std::unique_ptr<KeyValueStore> Ranks::store(const std::string& name) const {
  return std::make_unique<C10dStore>(below(connection_->store->clone(), name));
}

} // namespace fvlm::dist
