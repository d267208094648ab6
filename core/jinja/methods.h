// Methods of strings, lists, dictionaries and loops.
#pragma once
#include "jinja/runtime.h"

#include <string_view>

namespace fvlm::jinja {

// Whether the value has a method of that name in Python, supported here or not.
bool is_method(const Value& object, std::string_view name);

// Fails for a method that is not supported, and for those that would change a value.
Value call_method(Runtime& runtime, const Callable& method, const Arguments& arguments);

} // namespace fvlm::jinja
