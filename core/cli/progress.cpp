#include "cli/progress.h"

#include "base/text.h"

#include <fmt/format.h>

#include <cstdio>
#include <unistd.h>

namespace fvlm::cli {

constexpr auto pause = std::chrono::milliseconds(100);

Progress::Progress(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO)), last_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

void Progress::bytes(uint64_t done, uint64_t total) {
  auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now - last_ < pause) return;
  last_ = now;
  shown_ = true;
  fmt::print(stderr, "\r{}: {} of {}\x1b[K", label_, human_bytes(done), human_bytes(total));
}

} // namespace fvlm::cli
