// Values as text: Python's str() and repr(), and the filter tojson.
#pragma once
#include "jinja/runtime.h"

#include <optional>
#include <string>

namespace fvlm::jinja {

// Fails for what Python would print with an address, such as a macro.
std::string to_text(Runtime& runtime, const Value& value);

// "0.1", "1e-05", "3.0"
std::string format_float(double value);

struct JsonStyle {
  bool ascii_only = false, sort_keys = false;
  std::optional<std::string> indent; // of one level; without it everything is on one line
  std::string item_separator, key_separator;
};

// Python's json.dumps().
std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style);

} // namespace fvlm::jinja
