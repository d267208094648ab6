#include "dist/rank_watch.h"

#include "base/log.h"
#include "base/task_thread.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace fvlm::dist {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr const char* failure_key = "failure";
constexpr std::chrono::milliseconds max_silence = 60s; // of a process that lives, whatever its main thread does

std::string heartbeat_key(int64_t rank) {
  return fmt::format("heartbeat/{}", rank);
}

// `phase`: that of its last heartbeat, so it may have gone further since.
std::string silence_of(int64_t rank, const std::string& phase) {
  return fmt::format("rank {} gives no sign of life: it was killed or is stopped (when last heard of: {})", rank,
                     phase);
}

} // namespace

RankWatch::RankWatch(std::unique_ptr<KeyValueStore> store, std::unique_ptr<KeyValueStore> thread_store, Options options)
    : store_(std::move(store)), thread_store_(std::move(thread_store)), options_(std::move(options)),
      next_since_(Clock::now()), thread_(start_thread([this] { work(); })) {}

RankWatch::~RankWatch() {
  {
    const std::lock_guard hold(lock_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RankWatch::enter(const char* phase, const std::string& stage, int64_t step) {
  const std::lock_guard hold(lock_);
  phase_ = stage.empty() ? phase : fmt::format("{}, stage {}, step {}", phase, stage, step);
}

void RankWatch::enter_beside(const std::string& what) {
  const std::lock_guard hold(lock_);
  beside_ = what;
}

std::optional<std::string> RankWatch::failure() {
  const std::lock_guard hold(lock_);
  return failure_;
}

void RankWatch::wait_for_device(bool waits) {
  const std::lock_guard hold(lock_);
  waits_since_ = waits ? std::optional(Clock::now()) : std::nullopt;
}

std::string RankWatch::phase() {
  const std::lock_guard hold(lock_);
  return phase_;
}

std::string RankWatch::heartbeat_text() {
  const std::lock_guard hold(lock_);
  return fmt::format("{}|{}|{}{}", ++heartbeats_, collectives_.load(), phase_,
                     beside_.empty() ? "" : fmt::format("; beside it {}", beside_));
}

RankWatch::Heartbeat RankWatch::parse(const std::string& text) {
  const auto parts = split(text, '|');
  if (parts.size() < 3) return {};
  return {std::atoll(parts[0].c_str()), std::atoll(parts[1].c_str()), parts[2]};
}

void RankWatch::report(const std::string& why) {
  try {
    store_->set_once(failure_key, fmt::format("rank {} failed ({}): {}", options_.rank, phase(), why));
  } catch (const std::exception& error) {
    log_debug("the other ranks are not told of it: {}", error.what());
  }
}

Error RankWatch::explain(const std::string& what) {
  std::string text;
  try {
    text = cause(*store_, what);
  } catch (const std::exception&) {
    text =
        fmt::format("the store of the rendezvous does not answer: the launcher or rank 0, which serves it, has ended "
                    "({})",
                    what);
  }
  {
    const std::lock_guard hold(lock_);
    leaves_since_ = Clock::now();
  }
  if (abort_) abort_();
  return lost(text);
}

Error RankWatch::lost(const std::string& text) {
  return Error(ErrorKind::stopped, text)
      .at("rank {} ({})", options_.rank, phase())
      .advise("start the same command again: it resumes from the last checkpoint; torchrun --max-restarts N does so by "
              "itself");
}

// Whoever failed says so before its connections close. A rank that gives no sign of life was killed or is stopped. If
// all live, those that called fewer operations are waited for.
std::string RankWatch::cause(KeyValueStore& store, const std::string& what) {
  std::vector<Heartbeat> before;
  const auto heartbeats = [&] {
    std::vector<Heartbeat> found;
    for (int64_t rank = 0; rank < options_.ranks; ++rank)
      found.push_back(parse(store.get(heartbeat_key(rank)).value_or("")));
    return found;
  };
  const auto until = Clock::now() + 5 * options_.interval;
  before = heartbeats();
  do {
    if (const auto failure = store.get(failure_key)) return *failure;
    std::this_thread::sleep_for(options_.interval / 4);
  } while (Clock::now() < until);
  const auto now = heartbeats();
  std::string text = fmt::format("the connection between ranks broke: {}", what);
  int64_t fewest = collectives_;
  for (size_t rank = 0; rank < now.size(); ++rank) {
    if (static_cast<int64_t>(rank) == options_.rank) continue;
    if (now[rank].count == before[rank].count) {
      text = silence_of(static_cast<int64_t>(rank), now[rank].phase);
      break;
    }
    if (now[rank].collectives >= fewest) continue;
    fewest = now[rank].collectives;
    text = fmt::format("rank {} hangs ({}): the other ranks wait for it", rank, now[rank].phase);
  }
  return store.set_once(failure_key, text);
}

void RankWatch::work() {
  std::optional<Clock::time_point> failed_at;
  std::unique_lock hold(lock_);
  while (!changed_.wait_for(hold, options_.interval, [&] { return ends_; })) {
    const auto waits_since = waits_since_, leaves_since = leaves_since_;
    hold.unlock();
    try {
      thread_store_->set(heartbeat_key(options_.rank), heartbeat_text());
      check_next_rank();
      const auto now = Clock::now();
      auto failure = thread_store_->get(failure_key);
      const bool waits_too_long = waits_since && now - *waits_since > options_.timeout;
      if (!failure && waits_too_long) failure = cause(*thread_store_, "a device waits for other ranks");
      if (failure && !failed_at) {
        failed_at = now;
        const std::lock_guard note(lock_);
        failure_ = failure;
      }
      const bool waits = failed_at && waits_since && now - std::max(*failed_at, *waits_since) > options_.grace;
      const bool leaves = leaves_since && now - *leaves_since > options_.grace;
      if ((waits || leaves) && options_.end_process) options_.end_process(lost(failure.value_or("a rank was lost")));
    } catch (const std::exception& error) { // the main thread finds out with its next operation
      log_debug("the store of the rendezvous does not answer: {}", error.what());
    }
    hold.lock();
  }
}

// In a ring, so that the store is not read by everyone for everyone.
void RankWatch::check_next_rank() {
  const int64_t next = (options_.rank + 1) % options_.ranks;
  const auto heartbeat = thread_store_->get(heartbeat_key(next));
  const auto now = Clock::now();
  if (heartbeat != next_heartbeat_ || !heartbeat) {
    next_heartbeat_ = heartbeat;
    next_since_ = now;
  } else if (next != options_.rank && now - next_since_ > std::min(options_.timeout, max_silence)) {
    thread_store_->set_once(failure_key, silence_of(next, parse(*heartbeat).phase));
  }
}

} // namespace fvlm::dist
