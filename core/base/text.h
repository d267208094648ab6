// Text utilities: suggestions, joining, splitting, human-readable sizes and times.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

// The candidate with the smallest edit distance to `word`, if one is close enough to be suggested.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

// A name from a file as an error may show it: in quotes, escaped, and shortened.
std::string shown(std::string_view name);

// "a, b or c"
std::string join_or(std::span<const std::string> words);
std::string join(std::span<const std::string> words, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);

std::string lower_case(std::string text); // letters of ASCII alone

// Without leading and trailing spaces, tabs and newlines.
std::string trimmed(std::string_view text);

// "1.4 GiB"
std::string human_bytes(uint64_t bytes);

std::string grouped(int64_t number); // 31,250

// "1 frame", "2,000 frames": of a noun with a plural in s.
std::string counted(int64_t number, std::string_view noun);

// "45 s", "3 min 20 s", "1 h 02 min", "2 d 03 h"
std::string human_duration(double seconds);

// The columns that UTF-8 text takes on a terminal, not counting colour codes.
size_t display_width(std::string_view text);

} // namespace fvlm
