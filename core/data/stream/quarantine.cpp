#include "data/stream/quarantine.h"

#include "base/file.h"
#include "base/log.h"
#include "base/new_file.h"
#include "base/text.h"
#include "data/shards/grouping.h"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <mutex>
#include <unistd.h>

namespace fvlm {
namespace {

constexpr size_t most_told = 10;
constexpr uint64_t most_log = uint64_t{1} << 30;

std::string dumped(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Of a line of the log: the same for a sample wherever an epoch has it.
std::string identity(nlohmann::json line) {
  line.erase("position");
  return dumped(line);
}

// Whether the process says it for the first time: loaders come and go, with every evaluation.
bool is_news(const std::string& text) {
  static std::mutex lock;
  static std::set<std::string> said;
  const std::lock_guard hold(lock);
  return said.insert(text).second;
}

} // namespace

std::string place_of(const SkippedSample& skipped) {
  return skipped.key.empty() ? skipped.place : skipped.place + ", " + sample_name(skipped.key);
}

std::string reason_of(const Error& error) {
  return Error(error.kind(), error.what()).advise(error.advice()).text();
}

Quarantine::Quarantine(std::filesystem::path log, const plan::Quarantine& limits)
    : log_(std::move(log)), limits_(limits) {
  if (!log_.empty() && std::filesystem::exists(log_)) read_log();
}

// A line that a dying process left half written is finished off with an end of line by the next one.
void Quarantine::read_log() {
  const std::string text = read_file(log_, most_log);
  for (const auto& line : split(text, '\n'))
    if (auto json = nlohmann::json::parse(line, nullptr, false); json.is_object()) known_.insert(identity(json));
  if (!text.empty() && text.back() != '\n') append("\n");
}

void Quarantine::add(const SkippedSample& skipped) {
  const std::string text = fmt::format("{}: {}", place_of(skipped), skipped.reason);
  const nlohmann::json line{{"position", skipped.position},
                            {"shard", skipped.place},
                            {"key", skipped.key},
                            {"reason", skipped.reason},
                            {"broken", skipped.broken}};
  const bool known = !known_.insert(identity(line)).second;
  if (skipped.broken) {
    if (!known && is_news(log_.string() + text)) log_warning("skipped: {}", text);
    last_.push_back(text);
    if (last_.size() > most_told) last_.erase(last_.begin());
  } else {
    log_debug("left out: {}", text);
  }
  if (!log_.empty() && !known) append(dumped(line) + "\n");
}

void Quarantine::append(const std::string& text) const {
  try {
    const Descriptor file = open_kept_file(log_);
    // Other ranks write to it at the same time, so that the kernel has to find its end.
    if (fcntl(file.get(), F_SETFL, O_APPEND) == 0 && write(file.get(), text.data(), text.size()) == std::ssize(text))
      return;
    fail_to_write(log_, "write the file");
  } catch (const Error& error) {
    log_warning("the list of broken samples could not be written: {}", error.text());
  }
}

void Quarantine::check(int64_t broken, int64_t read) const {
  if (!limits_.exceeded_by(broken, read)) return;
  throw Error(ErrorKind::data, "{} of {} samples read are broken; the last of them:\n  {}", broken, read,
              join(last_, "\n  "))
      .at(log_.empty() ? "loader.quarantine" : log_.string())
      .advise("raise loader.quarantine.share to train without them; or repair them (fvlm-engine data check RECIPE "
              "lists every "
              "one) and go on with --allow-plan-change; with fewer samples the data are others: train into another "
              "--run-dir");
}

} // namespace fvlm
