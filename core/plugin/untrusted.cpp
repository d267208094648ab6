#include "plugin/untrusted.h"

#include "base/terminal.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cxxabi.h>
#include <exception>
#include <memory>

namespace fvlm {
namespace {

std::string demangled(const char* name) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

// An fvlm_support followed by a guard zone.
struct WatchedSupport {
  fvlm_support support{};
  std::array<unsigned char, 512> after;
};

} // namespace

std::string printable(std::string_view text) {
  std::string out = strip_control_characters(text);
  std::ranges::replace_if(
      out, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  out.erase(out.find_last_not_of(' ') + 1);
  return out;
}

std::string last_output(std::string_view printed) {
  constexpr size_t max_bytes = 2000;
  std::string all;
  for (const std::string& line : split(printed, '\n'))
    if (const std::string text = trimmed(printable(line)); text.find_first_not_of("= ") != std::string::npos)
      all += (all.empty() ? "" : " | ") + text;
  return all.size() > max_bytes ? "..." + printable(std::string_view(all).substr(all.size() - max_bytes)) : all;
}

std::optional<std::string> bounded_string(const char* text, size_t max_bytes) {
  if (!text) return std::nullopt;
  size_t length = strnlen(text, max_bytes);
  if (length == max_bytes) return std::nullopt;
  return std::string(text, length);
}

std::string current_exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return fmt::format("{}: {}", demangled(typeid(error).name()), printable(error.what()));
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return type ? "a " + demangled(type->name()) : "a foreign exception";
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
  if (std::ranges::any_of(watched.after, [](unsigned char byte) { return byte != pattern; })) {
    answer.defect = "supports() wrote past the end of fvlm_support";
    return answer;
  }
  auto reason = bounded_string(watched.support.reason, sizeof watched.support.reason);
  if (!reason) {
    answer.defect = "supports() returned an unterminated reason";
    return answer;
  }
  answer.reason = printable(*reason);
  answer.score = watched.support.score;
  if (answer.score < 0 || answer.score > highest_score)
    answer.defect = fmt::format("supports() returned the score {}; expected 0 to {}", answer.score, highest_score);
  return answer;
}

} // namespace fvlm
