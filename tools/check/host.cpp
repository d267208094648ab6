#include "check/host.h"

#include "check/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <thread>
#include <time.h>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace fvlm::check {
namespace {

struct Job {
  int64_t count, pieces;
  bool backwards, interleaved;
  void (*task)(void*, int64_t, int64_t);
  void* context;
  std::atomic<int64_t> next{0}, done{0};
};

thread_local bool inside_task = false;

// Name and CPUs of the calling thread.
std::string thread_settings() {
  char name[17] = "";
  prctl(PR_GET_NAME, name);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(0, sizeof cpus, &cpus);
  return name + std::string(reinterpret_cast<const char*>(&cpus), sizeof cpus);
}

} // namespace

// A timer's signal to this thread alone, whose handler yields.
int yield_signal() {
  return SIGRTMIN + 3;
}

void yield_after_a_while(timer_t timer) {
  const itimerspec soon{{}, {0, 30'000}};
  timer_settime(timer, 0, &soon, nullptr);
}

// The timer is set anew behind each yield: where one takes longer than that, the thread would get nowhere otherwise.
void install_yield_handler() {
  struct sigaction yields {};
  yields.sa_sigaction = [](int, siginfo_t* info, void*) {
    const int error = errno;
    sched_yield();
    yield_after_a_while(*static_cast<timer_t*>(info->si_value.sival_ptr));
    errno = error;
  };
  yields.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(yield_signal(), &yields, nullptr);
}

FrequentYields::FrequentYields() {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = yield_signal();
  event._sigev_un._tid = gettid();
  event.sigev_value.sival_ptr = &timer_; // the thread itself deletes it, behind its last signal
  timer_t timer{};
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return;
  timer_ = timer, runs_ = true; // a kernel's first timer is number 0
  yield_after_a_while(timer);
}

FrequentYields::~FrequentYields() {
  if (runs_) timer_delete(timer_);
}

struct TestHost::Pool {
  int threads;
  bool backwards, serial;
  std::atomic<bool> interleaved{false};
  std::function<void(int64_t)> between;
  std::mutex mutex;
  std::condition_variable wake, finished;
  std::deque<std::shared_ptr<Job>> jobs;
  std::string misuse;

  Pool(int count, bool backwards_, bool serial_) : threads(count), backwards(backwards_), serial(serial_) {
    // The pool lives as long as the process, so its workers are never joined.
    for (int i = 1; i < threads && !serial; ++i) std::thread([this] { work(); }).detach();
  }

  void note(std::string text) {
    std::lock_guard lock(mutex);
    if (misuse.empty()) misuse = std::move(text);
  }

  // Runs pieces of the job until none is left to start.
  void help(Job& job) {
    for (;;) {
      int64_t index = job.next.fetch_add(1);
      if (index >= job.pieces) return;
      int64_t piece = job.backwards ? job.pieces - 1 - index : index;
      int64_t begin = job.count * piece / job.pieces, end = job.count * (piece + 1) / job.pieces;
      if (serial && between) between(index);
      if (job.interleaved) wait_for_others(job);
      std::optional<FrequentYields> yields;
      if (job.interleaved) yields.emplace();
      inside_task = true;
      const uint32_t mode = float_mode();
      sigset_t blocked{}, blocked_now{};
      const std::string settings = thread_settings();
      pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
      try {
        job.task(job.context, begin, end);
      } catch (...) {
        note("an exception left a task that it gave to parallel_for");
      }
      inside_task = false;
      if (float_mode() != mode) {
        note("left the floating-point control of a thread of parallel_for changed");
        set_float_mode(mode);
      }
      pthread_sigmask(SIG_SETMASK, nullptr, &blocked_now);
      if (std::memcmp(&blocked, &blocked_now, sizeof blocked) != 0) {
        note("left the signal mask of a thread of parallel_for changed");
        pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
      }
      if (thread_settings() != settings) note("left the name or the set of CPUs of a thread of parallel_for changed");
      if (job.done.fetch_add(1) + 1 == job.pieces) {
        std::lock_guard lock(mutex);
        finished.notify_all();
      }
    }
  }

  // Waits until every piece has a thread, or at most 0.2 s.
  static void wait_for_others(const Job& job) {
    for (int i = 0; i < 10000 && job.next < job.pieces; ++i) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [this] { return !jobs.empty(); });
      auto job = jobs.front();
      if (job->next >= job->pieces) {
        jobs.pop_front();
        continue;
      }
      lock.unlock();
      help(*job);
      lock.lock();
    }
  }

  void run(int64_t count, int64_t grain, void (*task)(void*, int64_t, int64_t), void* context) {
    if (inside_task) return note("called parallel_for inside a task of parallel_for");
    if (count < 0 || grain < 1)
      return note(fmt::format("called parallel_for with count {} and grain {}", count, grain));
    if (count == 0) return;
    auto job = std::make_shared<Job>();
    job->count = count;
    job->pieces = std::clamp<int64_t>(count / grain, 1, threads);
    job->backwards = backwards;
    job->interleaved = interleaved && job->pieces > 1;
    job->task = task;
    job->context = context;
    if (job->pieces > 1 && !serial) {
      std::lock_guard lock(mutex);
      jobs.push_back(job);
      wake.notify_all();
    }
    help(*job);
    if (serial && between) between(job->pieces);
    std::unique_lock lock(mutex);
    finished.wait(lock, [&] { return job->done == job->pieces; });
    // A worker that never woke has not removed it; without this the queue would grow on a busy machine.
    std::erase(jobs, job);
  }
};

struct TestHost::Block {
  fvlm_host abi; // first: plugins hand us its address
  Pool* pool;

  // In a page of its own, which is made read-only once it is filled: a plugin may only read its host.
  static Block* make() {
    void* page = mmap(nullptr, sizeof(Block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    return new (page) Block{};
  }
};

namespace {

TestHost::Pool& pool_of(const fvlm_host* host) {
  return *reinterpret_cast<const TestHost::Block*>(host)->pool;
}

// Reads the text to its end, as the engine would, and drops it.
void host_log(const fvlm_host*, int32_t, const char* text) {
  static std::atomic<size_t> length;
  length = text ? std::strlen(text) : 0;
}

void host_parallel_for(const fvlm_host* host, int64_t count, int64_t grain, void (*task)(void*, int64_t, int64_t),
                       void* context) {
  pool_of(host).run(count, grain, task, context);
}

int32_t host_threads(const fvlm_host* host) {
  return pool_of(host).threads;
}

} // namespace

TestHost::TestHost(int threads, bool backwards, bool serial)
    : block_(Block::make()), pool_(new Pool(threads, backwards, serial)) {
  block_->abi = {sizeof(fvlm_host), FVLM_ABI_MAJOR,    FVLM_ABI_MINOR, FVLM_VERSION,
                 host_log,          host_parallel_for, host_threads};
  block_->pool = pool_.get();
  mprotect(block_, sizeof(Block), PROT_READ);
}

TestHost::~TestHost() = default;

TestHost& TestHost::shared(int threads, bool backwards, bool serial) {
  static std::mutex mutex;
  static auto& hosts = *new std::map<std::tuple<int, bool, bool>, TestHost*>;
  std::lock_guard lock(mutex);
  auto& host = hosts[{threads, backwards, serial}];
  if (!host) host = new TestHost(threads, backwards, serial);
  return *host;
}

TestHost& TestHost::with_threads(int threads, bool backwards) {
  return shared(threads, backwards, false);
}

TestHost& TestHost::serial(int threads, bool backwards) {
  return shared(threads, backwards, true);
}

void TestHost::between_pieces(std::function<void(int64_t)> hook) {
  pool_->between = std::move(hook);
}

void TestHost::run_between(int64_t done) {
  if (pool_->between) pool_->between(done);
}

TestHost::Interleaved::Interleaved(TestHost& host) : host_(host) {
  host_.pool_->interleaved = true;
}

TestHost::Interleaved::~Interleaved() {
  host_.pool_->interleaved = false;
}

const fvlm_host* TestHost::abi() const {
  return &block_->abi;
}

std::string TestHost::take_misuse() {
  std::lock_guard lock(pool_->mutex);
  return std::exchange(pool_->misuse, "");
}

} // namespace fvlm::check
