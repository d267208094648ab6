#include "report/progress_line.h"

#include "base/terminal.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <unistd.h>
#include <utility>
#include <vector>

namespace fvlm::report {
namespace {

constexpr double memory_seconds = 20, plain_pause_seconds = 30;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string rate_text(double rate) {
  if (rate >= 100) return grouped(std::llround(rate)) + " samples/s";
  return fmt::format("{:.{}f} samples/s", rate, rate >= 10 ? 1 : 2);
}

} // namespace

void SmoothedRate::add(double samples, double seconds) {
  if (!(seconds > 0)) return;
  double kept = std::exp(-seconds / memory_seconds);
  samples_ = samples_ * kept + samples;
  seconds_ = seconds_ * kept + seconds;
}

std::optional<double> SmoothedRate::value() const {
  if (seconds_ <= 0) return std::nullopt;
  return samples_ / seconds_;
}

ProgressLine::ProgressLine(int descriptor, std::function<double()> seconds)
    : descriptor_(descriptor), line_(descriptor), colour_(color_on(descriptor)),
      seconds_(seconds ? std::move(seconds) : steady_seconds) {}

bool ProgressLine::plain_due(double now) {
  if (plain_written_ && now - *plain_written_ < plain_pause_seconds) return false;
  plain_written_ = now;
  return true;
}

void ProgressLine::show(const Moment& moment) {
  double now = seconds_();
  if (moment.stage != last_.stage || moment.samples < last_.samples) {
    rate_ = {};
    if (moment.stage != last_.stage) plain_written_.reset();
  } else {
    rate_.add(static_cast<double>(moment.samples - last_.samples), now - last_seconds_);
  }
  last_ = moment;
  last_seconds_ = now;
  if (line_.due()) {
    line_.show(text(moment, static_cast<size_t>(terminal_width(descriptor_))));
  } else if (!line_.on_terminal() && plain_due(now)) {
    std::string line = text(moment, 1000) + "\n";
    [[maybe_unused]] ssize_t ignored = write(descriptor_, line.data(), line.size());
  }
}

std::string ProgressLine::text(const Moment& moment, size_t width) const {
  std::string step = "step " + grouped(moment.step);
  if (moment.steps) step += " of " + grouped(*moment.steps);
  std::vector<std::pair<int, std::string>> parts; // with what is left out first where there is no room: the highest
  parts.emplace_back(0, styled(moment.stage, Style::bold, colour_));
  parts.emplace_back(1, step);
  if (!std::isnan(moment.loss)) parts.emplace_back(2, fmt::format("loss {:.4g}", moment.loss));
  auto rate = rate_.value();
  if (rate) parts.emplace_back(4, rate_text(*rate));
  if (!std::isnan(moment.data_wait_share))
    parts.emplace_back(5, fmt::format("data wait {:.0f} %", 100 * moment.data_wait_share));
  if (rate && *rate > 0 && moment.all_samples > 0) {
    double left = static_cast<double>(std::max<int64_t>(0, moment.all_samples - moment.samples)) / *rate;
    parts.emplace_back(3, human_duration(left) + " left");
  }
  auto joined = [&] {
    std::vector<std::string> texts;
    texts.reserve(parts.size());
    for (const auto& part : parts) texts.push_back(part.second);
    return join(texts, "  ");
  };
  std::string line = joined();
  while (display_width(line) >= width && parts.size() > 1) { // a full line would wrap
    parts.erase(std::max_element(parts.begin(), parts.end()));
    line = joined();
  }
  return line;
}

} // namespace fvlm::report
