#include "train/checkpoint_exchange.h"

#include "base/text.h"

#include <fmt/format.h>

#include <cstdlib>
#include <thread>

namespace fvlm::train {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr const char *written_mark = "written", *failed_mark = "failed";

LostRank no_answer(const std::exception& error) {
  const std::string text = error.what();
  return LostRank(
      fmt::format("the store of the rendezvous does not answer: the launcher or rank 0, which serves it, has "
                  "ended, or the connection to it broke ({})",
                  text.substr(0, text.find('\n'))));
}

} // namespace

LostRank::LostRank(std::string what) : Error(ErrorKind::stopped, std::move(what)) {
  advise("start the same command again: it resumes from the last checkpoint; torchrun --max-restarts N does so by "
         "itself");
}

CheckpointExchange::CheckpointExchange(std::unique_ptr<dist::KeyValueStore> store, int64_t rank, int64_t ranks,
                                       std::chrono::milliseconds timeout,
                                       std::function<std::optional<std::string>()> failure)
    : store_(std::move(store)), rank_(rank), ranks_(ranks), timeout_(timeout), failure_(std::move(failure)) {}

CheckpointExchange::CheckpointExchange(const dist::Ranks& ranks)
    : CheckpointExchange(ranks.store("checkpoints"), ranks.rank(), ranks.count(), ranks.timeout(),
                         [&ranks] { return ranks.failure(); }) {}

void CheckpointExchange::begin(std::string name) {
  ++number_;
  name_ = std::move(name);
}

std::string CheckpointExchange::key(const std::string& name) const {
  return fmt::format("{}/{}", number_, name);
}

std::string CheckpointExchange::wait_for(const std::string& key, const std::string& what) {
  const auto until = Clock::now() + timeout_;
  try {
    while (true) {
      if (const auto found = store_->get(key)) return *found;
      if (const auto failure = failure_()) throw LostRank(*failure);
      if (Clock::now() > until)
        throw LostRank(fmt::format("{} of {} within {}", what, name_,
                                   human_duration(std::chrono::duration<double>(timeout_).count())));
      std::this_thread::sleep_for(20ms);
    }
  } catch (const LostRank&) {
    throw;
  } catch (const std::exception& error) {
    throw no_answer(error);
  }
}

void CheckpointExchange::set(const std::string& key, const std::string& text) {
  try {
    store_->set(key, text);
  } catch (const std::exception& error) {
    throw no_answer(error);
  }
}

void CheckpointExchange::announce(const std::string& folder) {
  set(key("folder"), folder);
}

std::string CheckpointExchange::folder() {
  return wait_for(key("folder"), "rank 0 has not begun the checkpoint");
}

void CheckpointExchange::report(const std::string& file, const WrittenFile& written) {
  set(key(std::to_string(rank_)), fmt::format("{} {} {} {}", written_mark, written.hash, written.bytes, file));
}

void CheckpointExchange::report_failure(const std::string& why) {
  set(key(std::to_string(rank_)), fmt::format("{} {}", failed_mark, why));
}

WrittenFiles CheckpointExchange::wait_for_parts() {
  WrittenFiles files;
  std::string failures;
  for (int64_t rank = 1; rank < ranks_; ++rank) {
    const std::string text =
        wait_for(key(std::to_string(rank)), fmt::format("rank {} has not written its part of the checkpoint", rank));
    const auto words = split(text, ' ');
    if (words.size() == 4 && words[0] == written_mark)
      files[words[3]] = {std::strtoull(words[1].c_str(), nullptr, 10), std::strtoull(words[2].c_str(), nullptr, 10)};
    else
      failures += fmt::format("{}rank {}: {}", failures.empty() ? "" : "\n  ", rank,
                              text.substr(std::min(text.size(), text.find(' ') + 1)));
  }
  if (!failures.empty()) throw Error(ErrorKind::output, failures);
  return files;
}

} // namespace fvlm::train
