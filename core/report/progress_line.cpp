#include "report/progress_line.h"

#include "base/clock.h"
#include "base/terminal.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unistd.h>
#include <utility>
#include <vector>

namespace fvlm::report {
namespace {

constexpr double memory_seconds = 20, first_pause_seconds = 5, longest_pause_seconds = 30;

std::string rate_text(double rate) {
  if (rate >= 100) return grouped(std::llround(rate)) + " samples/s";
  return fmt::format("{:.{}f} samples/s", rate, rate >= 10 ? 1 : 2);
}

// "845", "7.1 k", "29 k", "1.2 M"
std::string short_number(double number) {
  const char* unit = "";
  for (const char* larger : {" k", " M", " G"}) {
    if (number < 999.5) break;
    number /= 1000;
    unit = larger;
  }
  return fmt::format("{:.{}f}{}", number, *unit && number < 9.95 ? 1 : 0, unit);
}

// "1.9e-3"
std::string scientific(double number) {
  std::string text = fmt::format("{:.1e}", number);
  const size_t exponent = text.find('e') + 2; // after its sign
  if (text[exponent] == '0' && exponent + 1 < text.size()) text.erase(exponent, 1);
  return text;
}

std::string step_time(double seconds) {
  if (seconds >= 9.95) return human_duration(seconds);
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  return fmt::format("{:.{}f} ms", 1e3 * seconds, seconds < 0.00995 ? 1 : 0);
}

} // namespace

void SmoothedRate::add(double amount, double seconds) {
  if (!(seconds > 0)) return;
  double kept = std::exp(-seconds / memory_seconds);
  amount_ = amount_ * kept + amount;
  seconds_ = seconds_ * kept + seconds;
}

std::optional<double> SmoothedRate::value() const {
  if (seconds_ <= 0) return std::nullopt;
  return amount_ / seconds_;
}

ProgressLine::ProgressLine(int descriptor, std::function<double()> seconds)
    : descriptor_(descriptor), line_(descriptor), colour_(color_on(descriptor)),
      seconds_(seconds ? std::move(seconds) : steady_seconds) {}

// The first line is shown once a speed is known.
bool ProgressLine::plain_due(double now) {
  if (!samples_.value()) return false;
  if (plain_written_ && now - *plain_written_ < plain_pause_) return false;
  plain_pause_ = plain_written_ ? std::min(2 * plain_pause_, longest_pause_seconds) : first_pause_seconds;
  plain_written_ = now;
  return true;
}

void ProgressLine::show(const TrainingProgress& progress) {
  if (progress.stage != last_.stage || progress.samples < last_.samples) {
    samples_ = tokens_ = steps_ = waited_ = {};
    if (progress.stage != last_.stage) plain_written_.reset();
  } else {
    const double seconds = progress.seconds - last_.seconds;
    samples_.add(static_cast<double>(progress.samples - last_.samples), seconds);
    tokens_.add(static_cast<double>(progress.tokens - last_.tokens), seconds);
    steps_.add(static_cast<double>(progress.step - last_.step), seconds);
    waited_.add(progress.waited - last_.waited, seconds);
  }
  last_ = progress;
  if (line_.due()) {
    line_.show(text(progress, static_cast<size_t>(terminal_width(descriptor_))));
  } else if (!line_.on_terminal() && plain_due(seconds_())) {
    std::string line = text(progress, 1000) + "\n";
    [[maybe_unused]] ssize_t ignored = write(descriptor_, line.data(), line.size());
  }
}

void ProgressLine::note(const std::string& text) {
  if (line_.due() && display_width(text) < static_cast<size_t>(terminal_width(descriptor_))) line_.show(text);
}

std::string ProgressLine::text(const TrainingProgress& progress, size_t width) const {
  std::string step = grouped(progress.step);
  if (progress.steps) step += "/" + grouped(*progress.steps);
  if (progress.run_samples > 0)
    step += fmt::format(" (overall {:.0f} %)", 100 * static_cast<double>(progress.samples_before + progress.samples) /
                                                   static_cast<double>(progress.run_samples));
  std::vector<std::pair<int, std::string>> parts; // with a priority: parts of the highest number are left out first
  parts.emplace_back(0, styled(progress.stage, Style::bold, colour_) + " " + step);
  if (!std::isnan(progress.loss)) parts.emplace_back(1, fmt::format("loss {:.4g}", progress.loss));
  if (!std::isnan(progress.lr)) parts.emplace_back(5, "lr " + scientific(progress.lr));
  const auto rate = samples_.value(), steps = steps_.value(), tokens = tokens_.value(), waited = waited_.value();
  if (steps && *steps > 0) parts.emplace_back(6, "dt " + step_time(1 / *steps));
  if (rate) parts.emplace_back(3, rate_text(*rate));
  if (tokens && *tokens > 0) parts.emplace_back(7, short_number(*tokens) + " tokens/s");
  if (waited && *waited >= 0.005) parts.emplace_back(4, fmt::format("data wait {:.0f} %", 100 * *waited));
  const int64_t all = progress.run_samples > 0 ? progress.run_samples - progress.samples_before : progress.all_samples;
  if (rate && *rate > 0 && all > 0)
    parts.emplace_back(
        2, "eta " + human_duration(static_cast<double>(std::max<int64_t>(0, all - progress.samples)) / *rate));
  auto joined = [&] {
    std::vector<std::string> texts;
    texts.reserve(parts.size());
    for (const auto& part : parts) texts.push_back(part.second);
    return join(texts, "  ");
  };
  std::string line = joined();
  while (display_width(line) >= width && parts.size() > 1) { // a full line would wrap
    parts.erase(std::ranges::max_element(parts));
    line = joined();
  }
  return line;
}

} // namespace fvlm::report
