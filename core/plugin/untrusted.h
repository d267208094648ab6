// Reads what a plugin wrote without relying on it to follow the ABI.
#pragma once
#include <fvlm/abi.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace fvlm {

// Text of a plugin as a single line that is safe to print: strip_control_characters(), with newlines and tabs as
// spaces.
std::string printable(std::string_view text);

// The last output of a process as a single line of at most 2,000 bytes, its lines separated by " | ".
std::string last_output(std::string_view printed);

// The string at `text`; empty where it is NULL or not terminated within `max_bytes`.
std::optional<std::string> bounded_string(const char* text, size_t max_bytes = 256);

// For use in a catch block: the type and message of the current exception.
std::string current_exception_text();

struct SupportAnswer {
  int32_t score = 0;
  std::string reason;
  std::string defect; // why the answer is invalid; empty where it is valid
};

// The maximal valid score.
constexpr int32_t highest_score = 1000;

// Calls supports(). Exceptions, scores out of 0 to highest_score, an unterminated reason and writes past the end of the
// struct are defects.
SupportAnswer ask_supports(const std::function<void(fvlm_support*)>& supports);

} // namespace fvlm
