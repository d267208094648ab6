// Reading what a plugin wrote without believing that it kept to the ABI.
#pragma once
#include <fvlm/abi.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace fvlm {

// Text of a plugin as one line that may be shown: without_commands(), with ends of lines and tabs as spaces.
std::string printable(std::string_view text);

// What a process printed before it ended, in one line: its lines, the last `most` bytes of them, with " | " between.
std::string last_words(std::string_view printed, size_t most = 2000);

// The string at `text`; empty when it is NULL or has no 0 within `most` bytes.
std::optional<std::string> bounded_string(const char* text, size_t most = 256);

// What is being thrown, in words. Only inside a catch block.
std::string current_exception_text();

struct SupportAnswer {
  int32_t score = 0;
  std::string reason;
  std::string defect; // not empty: the answer is not believed, and why
};

// Scores above this are not believed.
constexpr int32_t highest_score = 1000;

// Calls supports(). Exceptions, scores outside 0 .. highest_score, a reason without its final 0 and writes past the
// struct are defects.
SupportAnswer ask_supports(const std::function<void(fvlm_support*)>& supports);

} // namespace fvlm
