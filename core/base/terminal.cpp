#include "base/terminal.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/ioctl.h>
#include <unistd.h>

namespace fvlm {

bool color_on(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color && *no_color) return false;
  const char* term = std::getenv("TERM");
  if (!term || std::strcmp(term, "dumb") == 0) return false;
  return isatty(descriptor) == 1;
}

int terminal_width(int descriptor) {
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 100;
}

std::string styled(std::string_view text, Style style) {
  static const bool on = color_on(STDOUT_FILENO);
  return styled(text, style, on);
}

std::string styled(std::string_view text, Style style, bool on) {
  if (!on) return std::string(text);
  int code = 0;
  switch (style) {
  case Style::bold:
    code = 1;
    break;
  case Style::dim:
    code = 2;
    break;
  case Style::red:
    code = 31;
    break;
  case Style::green:
    code = 32;
    break;
  case Style::yellow:
    code = 33;
    break;
  case Style::cyan:
    code = 36;
    break;
  }
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

namespace {

bool is_command(uint32_t code) {
  const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  const bool is_bidirectional_mark = code == 0x061C || code == 0x200E || code == 0x200F ||
                                     (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  return control || is_bidirectional_mark;
}

// The length of an escape sequence of styled() at the beginning of `text`; 0 where there is none.
size_t colour_size(std::string_view text) {
  for (const char* sequence : {"\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"})
    if (text.starts_with(sequence)) return std::strlen(sequence);
  return 0;
}

constexpr size_t max_colour_size = 5;

// Moves `text` to `out`, cleaned. An incomplete character or escape sequence at the end remains in `text`, because the
// rest may follow.
void move_cleaned(std::string& text, std::string& out, bool keep_colours) {
  size_t at = 0;
  while (at < text.size()) {
    const auto rest = std::string_view(text).substr(at);
    if (keep_colours && rest[0] == '\x1b') {
      if (const size_t size = colour_size(rest)) {
        out += rest.substr(0, size);
        at += size;
        continue;
      }
      if (rest.size() < max_colour_size && rest.find('m') == std::string_view::npos) break;
    }
    const size_t size = utf8_size(rest);
    if (size > rest.size()) break;
    if (size == 0)
      out += "\uFFFD";
    else if (rest[0] != '\n' && rest[0] != '\t' && is_command(code_point(rest.substr(0, size))))
      out += ' ';
    else
      out += rest.substr(0, size);
    at += std::max<size_t>(size, 1);
  }
  text.erase(0, at);
}

// The state of the stream that replaces stdout.
struct CleanedOutput {
  const bool keep_colours = color_on(STDOUT_FILENO);
  std::string pending;
};

ssize_t write_cleaned(void* cookie, const char* bytes, size_t size) {
  auto& output = *static_cast<CleanedOutput*>(cookie);
  output.pending.append(bytes, size);
  std::string clean;
  move_cleaned(output.pending, clean, output.keep_colours);
  for (std::string_view rest = clean; !rest.empty();) {
    const ssize_t written = write(STDOUT_FILENO, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return 0; // with errno set: how fopencookie expects a failure
    rest.remove_prefix(static_cast<size_t>(written));
  }
  return static_cast<ssize_t>(size);
}

} // namespace

std::string strip_control_characters(std::string_view text, bool keep_colours) {
  std::string rest(text), out;
  move_cleaned(rest, out, keep_colours);
  if (!rest.empty()) out += "\uFFFD"; // an incomplete character
  return out;
}

std::string escape_control_characters(std::string_view json) {
  std::string out;
  while (!json.empty()) {
    const size_t size = utf8_size(json);
    if (size == 0 || size > json.size()) return out += json; // not JSON
    const uint32_t code = code_point(json.substr(0, size));
    if (code >= 0x20 && is_command(code))
      out += fmt::format("\\u{:04x}", code);
    else
      out += json.substr(0, size);
    json.remove_prefix(size);
  }
  return out;
}

void sanitize_standard_output() {
  static auto* output = new CleanedOutput; // never deleted: stdout is flushed last at exit
  std::FILE* cleaned = fopencookie(output, "w", {nullptr, write_cleaned, nullptr, nullptr});
  if (!cleaned) throw std::bad_alloc();
  std::setvbuf(cleaned, nullptr, isatty(STDOUT_FILENO) == 1 ? _IOLBF : _IOFBF, BUFSIZ);
  std::fflush(stdout);
  stdout = cleaned;
}

} // namespace fvlm
