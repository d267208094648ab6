// Operators on values, as Python defines them.
#pragma once
#include "jinja/runtime.h"

#include <string_view>

namespace fvlm::jinja {

// + - * / // % and **. Integers have 64 bits here, and an overflow fails.
Value arithmetic(Runtime& runtime, std::string_view op, const Value& left, const Value& right);
Value negative(Runtime& runtime, const Value& value);

// Python's ==. It takes a step for each pair of values, and more for long texts.
bool equal(Runtime& runtime, const Value& left, const Value& right);
// The value of an equal key; null where there is none.
const Value* find(Runtime& runtime, const Dict& dict, std::string_view key);
const Value* find(Runtime& runtime, const Dict& dict, const Value& key);
void set(Runtime& runtime, Dict& dict, Value key, Value value);

// == != < <= > >= in, and "not in".
bool compare(Runtime& runtime, std::string_view op, const Value& left, const Value& right);
bool contains(Runtime& runtime, const Value& container, const Value& value);
// Whether left sorts before right.
bool less(Runtime& runtime, const Value& left, const Value& right);

// value[begin:end:step], where null stands for a bound that is not written.
Value slice(Runtime& runtime, const Value& value, const Value* begin, const Value* end, const Value* step);

} // namespace fvlm::jinja
