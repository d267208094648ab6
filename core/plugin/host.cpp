#include "plugin/host.h"

#include "base/log.h"
#include "plugin/active_call.h"
#include "plugin/plugin_cache.h"
#include "plugin/untrusted.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <sched.h>
#include <string>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

namespace fvlm {
namespace {

thread_local bool inside_parallel = false;

int32_t processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int32_t threads_wanted() {
  const char* text = std::getenv("FVLM_THREADS");
  if (!text || !*text) return processors();
  int32_t number = 0;
  auto [end, error] = std::from_chars(text, text + std::strlen(text), number);
  if (error != std::errc{} || *end || number < 1 || number > 1024) {
    log_warning("FVLM_THREADS is '{}', but has to be a number from 1 to 1024: using {}", printable(text), processors());
    return processors();
  }
  return number;
}

// A thread pool that runs one job at a time. Never destroyed, because plugins may call it until the process ends.
class Pool {
 public:
  // `before`: the pool of the parent process, after fork(). Its threads do not exist here, but its memory is still
  // used.
  Pool(int32_t threads, Pool* before) : process_(getpid()), before_(before) {
    for (int32_t i = 1; i < threads; ++i) try {
        std::thread([this] { work(); }).detach();
      } catch (const std::system_error& error) {
        log_warning("only {} of {} threads could be started: {}", i, threads, error.code().message());
        break;
      }
  }

  // False after fork(), which does not copy threads.
  bool usable() const { return process_ == getpid(); }

  // Returns false without running anything while another thread's job is running.
  bool try_run(int64_t pieces, const std::function<void(int64_t)>& piece) {
    std::unique_lock one_job(job_mutex_, std::try_to_lock);
    if (!one_job) return false;
    {
      std::lock_guard lock(mutex_);
      piece_ = &piece;
      pieces_ = pieces;
      next_ = 0;
      unfinished_ = pieces;
    }
    wake_.notify_all();
    take_pieces();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return unfinished_ == 0 && busy_ == 0; });
    piece_ = nullptr;
    return true;
  }

 private:
  void work() {
    inside_parallel = true;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return piece_ && next_ < pieces_; });
      ++busy_;
      lock.unlock();
      take_pieces();
      lock.lock();
      --busy_;
      if (unfinished_ == 0 && busy_ == 0) done_.notify_one();
    }
  }

  void take_pieces() {
    std::unique_lock lock(mutex_);
    while (next_ < pieces_) {
      int64_t mine = next_++;
      const auto* piece = piece_;
      lock.unlock();
      (*piece)(mine);
      lock.lock();
      --unfinished_;
    }
  }

  pid_t process_;
  [[maybe_unused]] Pool* before_;
  std::mutex job_mutex_, mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t)>* piece_ = nullptr;
  int64_t pieces_ = 0, next_ = 0, unfinished_ = 0, busy_ = 0;
};

struct Parallel {
  int32_t threads;
  ParallelBackend backend; // empty: the pool
};

// Replaced by [setup] calls and never freed, because another thread may still be reading the previous one.
std::atomic<const Parallel*> current{nullptr};
std::mutex setup_mutex;

void replace_parallel(Parallel next) {
  static auto& all = *new std::vector<std::unique_ptr<const Parallel>>;
  all.push_back(std::make_unique<const Parallel>(std::move(next)));
  current.store(all.back().get(), std::memory_order_release);
}

const Parallel& parallel() {
  if (const Parallel* now = current.load(std::memory_order_acquire)) return *now;
  std::lock_guard lock(setup_mutex);
  if (!current.load(std::memory_order_acquire)) replace_parallel({threads_wanted(), {}});
  return *current.load(std::memory_order_acquire);
}

std::atomic<Pool*> pool{nullptr};

Pool& the_pool(int32_t threads) {
  if (Pool* now = pool.load(std::memory_order_acquire); now && now->usable()) return *now;
  std::lock_guard lock(setup_mutex);
  if (Pool* now = pool.load(std::memory_order_acquire); now && now->usable()) return *now;
  pool.store(new Pool(threads, pool.load()), std::memory_order_release);
  return *pool.load(std::memory_order_acquire);
}

// One plugin's host table. The table has to be the first member: the plugin passes its address back, from which the
// name is found.
struct Host {
  fvlm_caching_host table;
  std::string name;
  std::mutex mutex;
  std::string identity; // of the plugin's file

  CachingPlugin plugin() {
    const std::lock_guard lock(mutex);
    return {name, identity};
  }
};

void host_log(const fvlm_host* host, int32_t level, const char* text) {
  const std::string& name = reinterpret_cast<const Host*>(host)->name;
  auto to = level <= FVLM_LOG_DEBUG     ? LogLevel::debug
            : level == FVLM_LOG_INFO    ? LogLevel::info
            : level == FVLM_LOG_WARNING ? LogLevel::warning
                                        : LogLevel::error;
  log_text(to, fmt::format("[{}] {}", name, text ? printable(text) : "(null)"));
}

void host_parallel_for(const fvlm_host*, int64_t count, int64_t grain, void (*task)(void*, int64_t, int64_t),
                       void* context) {
  const ActiveCall* call = ActiveCall::current();
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    const ActiveCall mark(call);
    task(context, begin, end);
  });
}

int32_t host_parallel_threads(const fvlm_host*) {
  return parallel_threads();
}

// Hosts are made below, not const; plugins see them as const.
CachingPlugin plugin_of(const fvlm_host* host) {
  return const_cast<Host*>(reinterpret_cast<const Host*>(host))->plugin();
}

constexpr size_t max_key = 1000; // characters

int32_t host_cache_load(const fvlm_host* host, fvlm_device device, const char* key, void* value, uint64_t size) {
  if (!key || !value || strnlen(key, max_key + 1) > max_key) return 0;
  return load_cached(plugin_of(host), device, printable(key), value, size);
}

void host_cache_store(const fvlm_host* host, fvlm_device device, const char* key, const void* value, uint64_t size) {
  if (!key || !value || strnlen(key, max_key + 1) > max_key) return;
  store_cached(plugin_of(host), device, printable(key), value, size);
}

} // namespace

SerialScope::SerialScope() : before_(inside_parallel) {
  inside_parallel = true;
}

SerialScope::~SerialScope() {
  inside_parallel = before_;
}

int32_t parallel_threads() {
  return parallel().threads;
}

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& task) {
  if (count <= 0) return;
  const Parallel& how = parallel();
  int64_t pieces = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, how.threads);
  // Without overflow of count * i.
  int64_t quotient = count / pieces, remainder = count % pieces;
  auto bound = [&](int64_t i) { return quotient * i + remainder * i / pieces; };
  std::exception_ptr thrown;
  std::mutex thrown_mutex;
  std::function<void(int64_t)> piece = [&](int64_t i) {
    const SerialScope mark;
    try {
      task(bound(i), bound(i + 1));
    } catch (...) {
      std::lock_guard lock(thrown_mutex);
      if (!thrown) thrown = std::current_exception();
    }
  };
  auto in_order = [&] {
    for (int64_t i = 0; i < pieces; ++i) piece(i);
  };
  const bool alone = pieces == 1 || inside_parallel;
  if (!alone && how.backend)
    how.backend(pieces, piece);
  else if (alone || !the_pool(how.threads).try_run(pieces, piece))
    in_order();
  if (thrown) std::rethrow_exception(thrown);
}

void set_parallel_backend(ParallelBackend backend, int32_t threads) {
  std::lock_guard lock(setup_mutex);
  if (!backend) threads = threads_wanted();
  replace_parallel({std::max(1, threads), std::move(backend)});
}

static Host& host_of(std::string_view plugin) {
  static std::mutex mutex;
  static auto& hosts = *new std::map<std::string, std::unique_ptr<Host>, std::less<>>;
  std::lock_guard lock(mutex);
  auto found = hosts.find(plugin);
  if (found == hosts.end()) {
    auto host = std::make_unique<Host>();
    host->table = {{sizeof(fvlm_caching_host), FVLM_ABI_MAJOR, FVLM_ABI_MINOR, FVLM_VERSION, host_log,
                    host_parallel_for, host_parallel_threads},
                   host_cache_load,
                   host_cache_store};
    host->name = plugin;
    found = hosts.emplace(std::string(plugin), std::move(host)).first;
  }
  return *found->second;
}

const fvlm_host* host_for(std::string_view plugin) {
  return &host_of(plugin).table.host;
}

void identify_plugin(std::string_view plugin, const std::string& identity) {
  Host& host = host_of(plugin);
  const std::lock_guard lock(host.mutex);
  host.identity = identity;
}

} // namespace fvlm
