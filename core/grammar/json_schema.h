// JSON that fits a JSON Schema, as a grammar.
//
// Properties come in the order in which the schema names them, those that are not required or not at all; none that it
// does not name, unless it names none. Between the parts stands nothing, a space, or a line break with up to 32 spaces.
// A text that the grammar has is valid by the schema (of oneOf: by one of its schemas at least), while not all that is
// valid is in the grammar.
#pragma once
#include "grammar/grammar.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace fvlm::grammar {

// Throws Error(usage), at the place in the schema, for what is no schema and for keywords that the grammar cannot keep.
Grammar of_json_schema(const nlohmann::ordered_json& schema);
// The same of untrusted text, which parse_json() has to accept; `where`: of its errors; may be empty.
Grammar of_json_schema(std::string_view text, const std::string& where);

// Any JSON object.
Grammar of_json_object();

// One of these texts, as they are.
Grammar of_choices(const std::vector<std::string>& texts);

} // namespace fvlm::grammar
