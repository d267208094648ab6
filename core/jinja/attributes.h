// a.b and a[b]: what a template can see of a value. Objects have data and the methods of methods.h, nothing else.
#pragma once
#include "jinja/runtime.h"

#include <string_view>

namespace fvlm::jinja {

// Jinja looks for a method or attribute first and for a key second in a.b, the other way round in a["b"]. What does not
// exist is undefined; only an undefined object has none at all, and fails.
Value attribute_of(Runtime& runtime, const Value& object, std::string_view name);
Value item_of(Runtime& runtime, const Value& object, const Value& index);

// A path such as "function.name" or an index, as filters like map and selectattr take it.
Value path_of(Runtime& runtime, const Value& object, const Value& path);

} // namespace fvlm::jinja
