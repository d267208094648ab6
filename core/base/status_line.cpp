#include "base/status_line.h"

#include "base/terminal.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unistd.h>
#include <utility>

namespace fvlm {
namespace {

constexpr auto interval = std::chrono::milliseconds(100);

// The status line that is shown: at most one in a process.
struct Shown {
  std::mutex mutex;
  StatusLine* line = nullptr;
};

Shown& shown() {
  static Shown instance;
  return instance;
}

// Ignores errors, because a closed terminal is no reason to stop.
void write_text(int descriptor, std::string_view text) {
  [[maybe_unused]] ssize_t ignored = write(descriptor, text.data(), text.size());
}

} // namespace

StatusLine::StatusLine(int descriptor) : descriptor_(descriptor) {
  const char* term = std::getenv("TERM");
  terminal_ = isatty(descriptor) == 1 && !(term && std::strcmp(term, "dumb") == 0);
}

bool StatusLine::due() const {
  return terminal_ && std::chrono::steady_clock::now() - last_ >= interval;
}

void StatusLine::show(std::string_view text) {
  if (!terminal_) return;
  std::lock_guard lock(shown().mutex);
  last_ = std::chrono::steady_clock::now();
  shown_ = true;
  shown().line = this;
  write_text(descriptor_, fmt::format("\r{}\x1b[K", strip_control_characters(text, true)));
}

void StatusLine::clear() {
  std::lock_guard lock(shown().mutex);
  erase();
}

void StatusLine::erase() {
  if (std::exchange(shown_, false)) write_text(descriptor_, "\r\x1b[K");
  if (shown().line == this) shown().line = nullptr;
}

void StatusLine::step_aside() {
  std::lock_guard lock(shown().mutex);
  if (shown().line) shown().line->erase();
}

} // namespace fvlm
