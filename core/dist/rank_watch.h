// Finds which rank is lost when a collective operation fails or takes too long. A thread of every rank writes
// heartbeats to a store that all share, with what its main thread is doing, so that a rank whose main thread hangs is
// told from one that was killed or is stopped.
#pragma once
#include "base/error.h"
#include "dist/key_value_store.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace fvlm::dist {

class RankWatch {
 public:
  struct Options {
    int64_t rank = 0, ranks = 1;
    std::chrono::milliseconds timeout;       // for how long a rank may be waited for, or silent: at most a minute
    std::chrono::milliseconds interval{400}; // between two heartbeats
    // Ends the process when its main thread does not get out of wait_for_device(), or of what explain() made it leave,
    // for so long after a rank was lost: a device may wait for that one.
    std::function<void(const Error& error)> end_process = {};
    std::chrono::milliseconds grace{10000};
  };
  // The thread has a connection of its own to the store.
  RankWatch(std::unique_ptr<KeyValueStore> store, std::unique_ptr<KeyValueStore> thread_store, Options options);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // What the main thread does from here on: "forward and backward" of a step of a stage. [main thread]
  void enter(const char* phase, const std::string& stage, int64_t step);
  // What another thread does beside it; empty: nothing. [any thread]
  void enter_beside(const std::string& what);
  void count_collectives(int64_t more = 1) { collectives_ += more; }
  // Between these two the main thread waits for a device, which waits for other ranks.
  void wait_for_device(bool waits);

  // Is called by the main thread before it throws what explain() says, as memory of a device may be needed by
  // operations that wait for the lost rank. [setup]
  void set_abort(std::function<void()> abort) { abort_ = std::move(abort); }

  // This rank fails: the others are told why, unless another one failed before. [main thread]
  void report(const std::string& why);
  // What to throw where a collective operation failed, as `what` says. Names the rank that is to blame. [main thread]
  Error explain(const std::string& what);
  // Why a rank failed or was lost, once the thread has heard of it. [any thread]
  std::optional<std::string> failure();

 private:
  struct Heartbeat {
    int64_t count = 0, collectives = 0;
    std::string phase;
  };
  void work();
  void check_next_rank();
  std::string heartbeat_text();
  static Heartbeat parse(const std::string& text);
  std::string phase();
  std::string cause(KeyValueStore& store, const std::string& what);
  Error lost(const std::string& text);

  std::unique_ptr<KeyValueStore> store_, thread_store_;
  Options options_;
  std::function<void()> abort_;
  std::atomic<int64_t> collectives_ = 0;
  std::mutex lock_; // guards what follows
  std::condition_variable changed_;
  std::string phase_ = "start", beside_;
  std::optional<std::string> failure_;
  int64_t heartbeats_ = 0;
  std::optional<std::chrono::steady_clock::time_point> waits_since_, leaves_since_; // of the main thread
  bool ends_ = false;
  std::optional<std::string> next_heartbeat_; // of the next rank, and since when it is the same
  std::chrono::steady_clock::time_point next_since_;
  std::thread thread_;
};

} // namespace fvlm::dist
