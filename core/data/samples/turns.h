// Parses one turn of a conversation.
#pragma once
#include "data/own_template.h"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace fvlm {

// Of either naming: { role, content } or { from, value }, with flags that say whether an answer is learnt. `name`: for
// messages. `keeps_marks`: images and videos among the parts of what a user says become <image> and <video>. Throws
// Error(data) without a location.
Turn parse_turn(const nlohmann::json& value, const std::string& name, bool keeps_marks);

// Tools or calls of them: a list, or its JSON as a text, which alone has its keys in their order.
nlohmann::ordered_json list_with_order(const nlohmann::json& value, const std::string& name);

// Whether the value is a list of turns: of objects with a role, or `from`.
bool is_turns(const nlohmann::json& value);

// The flags of an answer that stands in a form of its own.
void copy_turn_flags(const nlohmann::json& from, nlohmann::json& to);

} // namespace fvlm
