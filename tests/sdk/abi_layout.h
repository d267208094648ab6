// Assertions on the layout of the ABI, at compile time.
#pragma once
#include <fvlm/fvlm.h>

#include <cstddef>
#include <type_traits>

#define SIZE(type, size) static_assert(sizeof(type) == (size), "the size of " #type " changed")
#define FIELD(type, field, offset, ...)                                                                                \
  static_assert(offsetof(type, field) == (offset), #type "." #field " moved");                                         \
  static_assert(std::is_same_v<decltype(type::field), __VA_ARGS__>, "the type of " #type "." #field " changed")
#define VALUE(name, value) static_assert((name) == (value), "the value of " #name " changed")
