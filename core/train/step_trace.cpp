#include "train/step_trace.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

namespace fvlm::train {
namespace {

std::optional<int64_t> positive(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 1) return {};
  return number;
}

// The names of PartTimes say where a step's time went; these say what was done.
std::string shown(const std::string& part) {
  if (part == PartTimes::waiting) return "data";
  return part == "data" ? "pack" : part;
}

bool is_of_forward_backward(const std::string& name) {
  static const std::set<std::string> others{"data",       "pack",       "optimizer", "metrics",
                                            "evaluation", "checkpoint", "device"};
  return !others.contains(name);
}

bool is_step(const auto& span) {
  return !span.arguments.empty();
}

// What of a thread's spans follows each other in forward and backward passes: the first and the last of each pass. What
// is measured in the middle of one belongs to it. The pieces of a backward pass come before it, but end before its end.
template <class Span>
std::vector<std::pair<const Span*, const Span*>> forward_backward(const std::vector<Span>& spans) {
  std::vector<std::pair<const Span*, const Span*>> found;
  const auto is_part = [&](size_t i) {
    return i < spans.size() && !is_step(spans[i]) && is_of_forward_backward(spans[i].name);
  };
  for (size_t i = 0; i < spans.size(); ++i) {
    if (!is_part(i)) continue;
    const size_t first = i;
    while (is_part(i + 1) || (i + 1 < spans.size() && spans[i + 1].name == "metrics" && is_part(i + 2))) ++i;
    found.emplace_back(&spans[first], &spans[i]);
  }
  return found;
}

} // namespace

StepRange step_range(const std::string& text) {
  const size_t dash = text.find('-');
  StepRange range;
  const auto first = dash == std::string::npos ? 1 : positive(std::string_view(text).substr(0, dash));
  const auto last = positive(std::string_view(text).substr(dash == std::string::npos ? 0 : dash + 1));
  if (!first || !last || *first > *last)
    throw Error(ErrorKind::usage, "--profile: expected steps as 10-14 or 5, got '{}'", text)
        .advise("steps count from 1 in each call of train; the first ones are slower than the others");
  return {*first, *last};
}

// A span that began before the step does, by what lies between the two clocks' readings, is cut.
void StepTrace::add(const std::string& part, Clock::time_point begin, Clock::time_point end) {
  const std::scoped_lock lock(mutex_);
  const auto [found, is_new] = threads_.try_emplace(std::this_thread::get_id(), host_.size());
  if (is_new) host_.emplace_back();
  begin = std::max(begin, found->second == 0 ? step_begin_ : origin_);
  if (end > begin) host_[found->second].push_back({shown(part), begin, end, ""});
}

void StepTrace::record(PartTimes& times, const std::function<bool()>& advance) {
  if (host_.empty()) {
    origin_ = Clock::now();
    threads_[std::this_thread::get_id()] = 0;
    host_.emplace_back();
  }
  step_begin_ = Clock::now();
  records_ = true;
  times.set_spans([this](const auto& part, auto begin, auto end) { add(part, begin, end); });
  const auto stop = [&] {
    records_ = false;
    times.set_spans(nullptr);
  };
  const auto work = [&] {
    while (is_due() && advance()) {
    }
  };
  std::vector<device::Activity> activities;
  Clock::time_point host_now;
  uint64_t device_now = 0;
  try {
    if (device::Runtime* gpu = device::runtime()) {
      device_now = gpu->now();
      host_now = Clock::now();
      activities = gpu->profile(work);
    } else {
      work();
    }
  } catch (...) {
    stop();
    throw;
  }
  stop();
  const auto on_host = [&](uint64_t time) {
    return host_now + std::chrono::nanoseconds(static_cast<int64_t>(time - device_now));
  };
  for (device::Activity& activity : activities) {
    const Span span{std::move(activity.name), on_host(activity.begin), on_host(activity.end), ""};
    auto row = std::ranges::find_if(device_, [&](const auto& spans) { return spans.back().end <= span.begin; });
    if (row == device_.end()) row = device_.emplace(row);
    row->push_back(span);
  }
  write();
}

void StepTrace::end_step(const std::string& stage) {
  ++taken_;
  if (!records_) return;
  const std::scoped_lock lock(mutex_);
  const auto now = Clock::now();
  auto& spans = host_.front();
  spans.push_back({fmt::format("step {}", taken_), step_begin_, now,
                   fmt::format(R"({{"stage": {}}})", nlohmann::json(stage).dump())});
  step_begin_ = now;
}

void StepTrace::report() const {
  if (taken_ < steps_.first)
    log_warning("--profile: the run took {} steps, and the trace was to begin with step {}", taken_, steps_.first);
  else
    log_info("{}: open it in chrome://tracing or ui.perfetto.dev", file_.string());
}

void StepTrace::write() const {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  const auto microseconds = [&](Clock::time_point time) {
    return std::chrono::duration<double, std::micro>(time - origin_).count();
  };
  enum { host = 1, gpu = 2 };
  const auto row = [&](int process, size_t thread, const std::string& name, const std::vector<Span>& spans) {
    text += fmt::format(R"({{"ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "args": {{"name": "{}"}}}},)"
                        "\n",
                        process, thread, name);
    const auto event = [&](const std::string& what, const Span& span, Clock::time_point end) {
      text += fmt::format(R"({{"ph": "X", "name": {}, "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f})",
                          nlohmann::json(what).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), process,
                          thread, microseconds(span.begin), microseconds(end) - microseconds(span.begin));
      text += (span.arguments.empty() ? "" : ", \"args\": " + span.arguments) + "},\n";
    };
    // Of two spans with the same times the first one is the outer one.
    for (const Span& span : spans)
      if (is_step(span)) event(span.name, span, span.end);
    if (process == host)
      for (const auto& [first, last] : forward_backward(spans)) event("forward-backward", *first, last->end);
    for (const Span& span : spans)
      if (!is_step(span)) event(span.name, span, span.end);
  };
  text += R"({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "host"}},)";
  text += "\n";
  for (size_t i = 0; i < host_.size(); ++i) row(host, i, i == 0 ? "training" : fmt::format("replica {}", i), host_[i]);
  if (!device_.empty())
    text += R"({"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "GPU"}},)"
            "\n";
  for (size_t i = 0; i < device_.size(); ++i) row(gpu, i, fmt::format("kernels and copies {}", i + 1), device_[i]);
  text.erase(text.rfind(','), 1);
  write_file_atomic(file_, text + "]}\n");
}

} // namespace fvlm::train
