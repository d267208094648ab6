// Lists in tables: a column of text has them as Python prints them, or as JSON.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::evaluation {

// "['a b', \"it's\", 3]" -> its items, numbers as they stand there. Nothing: the text is no list of texts and numbers.
std::optional<std::vector<std::string>> python_list(std::string_view text);

} // namespace fvlm::evaluation
