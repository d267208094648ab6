// JSON that fits a JSON Schema, as a grammar.
//
// Properties come in the order in which the schema names them, those that are not required or not at all; none that it
// does not name, unless it names none. Between the parts stands nothing, a space, or a line break with up to 32 spaces.
// A text that the grammar has is valid by the schema, while not all that is valid is in the grammar.
#pragma once
#include "grammar/grammar.h"

#include <nlohmann/json.hpp>

namespace fvlm::grammar {

// Throws Error(usage), at the place in the schema, for what is no schema and for keywords that the grammar cannot keep.
Grammar of_json_schema(const nlohmann::ordered_json& schema);

// Any JSON object.
Grammar of_json_object();

// One of these texts, as they are.
Grammar of_choices(const std::vector<std::string>& texts);

} // namespace fvlm::grammar
