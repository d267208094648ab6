#include "plugin/untrusted.h"

#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cxxabi.h>
#include <exception>
#include <memory>

namespace fvlm {
namespace {

// How many bytes the UTF-8 sequence at the beginning of `text` has; 0: it is none.
size_t sequence_length(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  size_t length = byte(0) < 0x80                      ? 1
                  : byte(0) >= 0xc2 && byte(0) < 0xe0 ? 2
                  : byte(0) >= 0xe0 && byte(0) < 0xf0 ? 3
                  : byte(0) >= 0xf0 && byte(0) < 0xf5 ? 4
                                                      : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  if (byte(0) == 0xe0 && byte(1) < 0xa0) return 0;
  if (byte(0) == 0xed && byte(1) >= 0xa0) return 0; // surrogates
  if (byte(0) == 0xf0 && byte(1) < 0x90) return 0;
  if (byte(0) == 0xf4 && byte(1) >= 0x90) return 0;
  return length;
}

// U+0080 to U+009F, which terminals take for commands, and the marks that turn the direction of letters: U+061C,
// U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069.
bool is_hidden(std::string_view character) {
  const auto last = static_cast<unsigned char>(character.back());
  if (character.size() == 2) return (character[0] == '\xc2' && last < 0xa0) || character == "\xd8\x9c";
  if (character.starts_with("\xe2\x80")) return last == 0x8e || last == 0x8f || (last >= 0xaa && last <= 0xae);
  return character.starts_with("\xe2\x81") && last >= 0xa6 && last <= 0xa9;
}

std::string demangled(const char* name) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

// fvlm_support as a plugin sees it, with room behind it that must stay as it is.
struct WatchedSupport {
  fvlm_support support{};
  std::array<unsigned char, 512> after;
};

} // namespace

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    size_t length = sequence_length(text);
    auto first = static_cast<unsigned char>(text[0]);
    if (length == 0)
      out += '?';
    else if (first < 0x20 || first == 0x7f || is_hidden(text.substr(0, length)))
      out += ' ';
    else
      out += text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::string last_words(std::string_view printed, size_t most) {
  std::string all;
  for (const std::string& line : split(printed, '\n'))
    if (const std::string text = trimmed(printable(line)); text.find_first_not_of("= ") != std::string::npos)
      all += (all.empty() ? "" : " | ") + text;
  return all.size() > most ? "..." + printable(std::string_view(all).substr(all.size() - most)) : all;
}

std::optional<std::string> bounded_string(const char* text, size_t most) {
  if (!text) return std::nullopt;
  size_t length = strnlen(text, most);
  if (length == most) return std::nullopt;
  return std::string(text, length);
}

std::string current_exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return fmt::format("{}: {}", demangled(typeid(error).name()), printable(error.what()));
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return type ? "a " + demangled(type->name()) : "an exception of another language";
  }
}

SupportAnswer ask_supports(const std::function<void(fvlm_support*)>& supports) {
  constexpr unsigned char pattern = 0xa5;
  WatchedSupport watched;
  watched.support.struct_size = sizeof watched.support;
  watched.after.fill(pattern);
  SupportAnswer answer;
  try {
    supports(&watched.support);
  } catch (...) {
    answer.defect = "supports() threw " + current_exception_text();
    return answer;
  }
  if (std::any_of(watched.after.begin(), watched.after.end(), [](unsigned char byte) { return byte != pattern; })) {
    answer.defect = "supports() wrote past the end of fvlm_support";
    return answer;
  }
  auto reason = bounded_string(watched.support.reason, sizeof watched.support.reason);
  if (!reason) {
    answer.defect = "supports() gave a reason without its final 0";
    return answer;
  }
  answer.reason = printable(*reason);
  answer.score = watched.support.score;
  if (answer.score < 0 || answer.score > highest_score)
    answer.defect =
        fmt::format("supports() gave the score {}, which is not within 0 .. {}", answer.score, highest_score);
  return answer;
}

} // namespace fvlm
