#include "base/terminal.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
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

std::string without_commands(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0xFFU; };
    const bool long_one = byte(at) == 0xC2 && byte(at + 1) < 0xA0; // U+0080 to U+009F
    const bool command = long_one || byte(at) == 0x7F || (byte(at) < 0x20 && text[at] != '\n' && text[at] != '\t');
    out += command ? ' ' : text[at];
    at += long_one ? 1 : 0;
  }
  return out;
}

} // namespace fvlm
