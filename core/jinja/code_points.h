// Python's string functions, which count code points, on valid UTF-8.
#pragma once
#include "base/utf8.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::jinja {

std::vector<std::string_view> code_points(std::string_view text);
size_t count_code_points(std::string_view text);

// Whether Python's str.isspace() holds for the code point.
bool is_python_space(uint32_t point);

// str.strip(), lstrip() and rstrip(): of white space, or of the characters of `set`.
enum class Side { left, right, both };
std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> set = {});

// Only the letters of ASCII have cases here; nothing for text with others.
std::optional<std::string> upper(std::string_view text);
std::optional<std::string> lower(std::string_view text);

// str.splitlines(), without the line breaks.
std::vector<std::string_view> split_lines(std::string_view text);

std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t count);

} // namespace fvlm::jinja
