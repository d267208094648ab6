// Filters (a | b) and tests (a is b).
#pragma once
#include "jinja/runtime.h"

#include <functional>
#include <map>
#include <string_view>

namespace fvlm::jinja {

// Fails for a filter or test that is not supported.
Value apply_filter(Runtime& runtime, std::string_view name, const Value& subject, const Arguments& arguments);
bool apply_test(Runtime& runtime, std::string_view name, const Value& subject, const Arguments& arguments);

using FilterFunction = std::function<Value(Runtime&, const Value& subject, const Arguments&)>;
using Filters = std::map<std::string_view, FilterFunction>;
const Filters& text_filters();     // and numbers, in filters.cpp
const Filters& sequence_filters(); // in sequence_filters.cpp

// Fails for a value without a length.
int64_t length_of(Runtime& runtime, const Value& value);
bool has_length(const Value& value);

} // namespace fvlm::jinja
