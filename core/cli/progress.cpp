#include "cli/progress.h"

#include "base/text.h"

#include <fmt/format.h>

#include <cstdio>
#include <unistd.h>
#include <utility>

namespace fvlm::cli {

constexpr auto pause = std::chrono::milliseconds(100);

Progress::Progress(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO)), last_(std::chrono::steady_clock::now()) {}

void Progress::finish() {
  if (std::exchange(shown_, false)) fmt::print(stderr, "\r\x1b[K");
}

bool Progress::due() {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || (shown_ && now - last_ < pause)) return false;
  last_ = now;
  shown_ = true;
  return true;
}

void Progress::bytes(uint64_t done, uint64_t total) {
  if (due()) fmt::print(stderr, "\r{}: {} of {}\x1b[K", label_, human_bytes(done), human_bytes(total));
}

void Progress::steps(const std::string& what, uint64_t done, uint64_t total) {
  if (due()) fmt::print(stderr, "\r{} {}: {} of {} steps\x1b[K", label_, what, done, total);
}

void Progress::samples(uint64_t done, uint64_t total) {
  if (due()) fmt::print(stderr, "\r{}: {} of {} samples\x1b[K", label_, done, total);
}

} // namespace fvlm::cli
