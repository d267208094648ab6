// JSON that models write: keys stay in their order, and numbers keep their digits.
#pragma once
#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace fvlm {

// Discarded where the text is no JSON, has more than 256 levels of nesting, or an object of more than 1,024 keys, as
// looking for one takes long. A number that is no integer of 64 bits is a binary value: its text.
nlohmann::ordered_json exact_json(std::string_view text);

// Whether a value of exact_json() is a number.
bool is_exact_number(const nlohmann::ordered_json& value);

// A value of exact_json() without white space. What is no UTF-8 is replaced.
std::string exact_text(const nlohmann::ordered_json& value);

} // namespace fvlm
