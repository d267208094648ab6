#include "jinja/operators.h"

#include "jinja/code_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace fvlm::jinja {
namespace {

[[noreturn]] void wrong_operands(Runtime& runtime, std::string_view op, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right})
    if (value->is_undefined()) runtime.fail(value->undefined_name());
  std::string advice;
  if (op == "+" && (left.text() || right.text())) advice = "join text and other values with ~";
  runtime.fail(fmt::format("operator {} cannot take a {} and a {}", op, left.type(), right.type()), advice);
}

int64_t power(Runtime& runtime, int64_t base, int64_t exponent) {
  int64_t made = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    runtime.step();
    if (__builtin_mul_overflow(made, base, &made)) runtime.fail("an integer has more than 64 bits");
    if (made == 0 || (made == 1 && base == 1)) break;
  }
  return made;
}

// The quotient rounded down and the remainder with the sign of the divisor.
std::pair<int64_t, int64_t> divide(Runtime& runtime, int64_t left, int64_t right) {
  if (right == 0) runtime.fail("division by zero");
  if (right == -1) {
    if (left == INT64_MIN) runtime.fail("an integer has more than 64 bits");
    return {-left, 0};
  }
  int64_t quotient = left / right, remainder = left % right;
  if (remainder != 0 && (remainder < 0) != (right < 0)) --quotient, remainder += right;
  return {quotient, remainder};
}

Value real_arithmetic(Runtime& runtime, std::string_view op, double left, double right) {
  if (op == "+") return left + right;
  if (op == "-") return left - right;
  if (op == "*") return left * right;
  if (op == "**") {
    if (left == 0 && right < 0) runtime.fail("division by zero");
    if (left < 0 && right != std::floor(right)) runtime.fail("complex numbers are not supported");
    return std::pow(left, right);
  }
  if (right == 0) runtime.fail("division by zero");
  if (op == "/") return left / right;
  double remainder = std::fmod(left, right);
  if (remainder != 0 && (remainder < 0) != (right < 0)) remainder += right;
  return op == "%" ? remainder : std::floor((left - remainder) / right + 0.5);
}

Value integer_arithmetic(Runtime& runtime, std::string_view op, int64_t left, int64_t right) {
  int64_t made = 0;
  bool overflow = false;
  if (op == "+")
    overflow = __builtin_add_overflow(left, right, &made);
  else if (op == "-")
    overflow = __builtin_sub_overflow(left, right, &made);
  else if (op == "*")
    overflow = __builtin_mul_overflow(left, right, &made);
  else if (op == "//")
    made = divide(runtime, left, right).first;
  else if (op == "%")
    made = divide(runtime, left, right).second;
  else if (right < 0) // **
    return real_arithmetic(runtime, op, static_cast<double>(left), static_cast<double>(right));
  else
    made = power(runtime, left, right);
  if (overflow) runtime.fail("an integer has more than 64 bits");
  return made;
}

Value repeated(Runtime& runtime, const Value& value, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  const size_t size = value.text() ? value.text()->size() : value.list()->items.size();
  size_t total = 0;
  if (__builtin_mul_overflow(size, times, &total) || total > runtime.limits().output_bytes)
    runtime.fail(fmt::format("a repetition has more than {} bytes or items", runtime.limits().output_bytes));
  if (const std::string* text = value.text()) {
    runtime.charge_bytes(total);
    std::string made;
    made.reserve(total);
    for (size_t i = 0; size > 0 && i < times; ++i) made += *text;
    return made;
  }
  runtime.step(static_cast<int64_t>(total));
  std::vector<Value> items;
  const auto& source = value.list()->items;
  for (size_t i = 0; size > 0 && i < times; ++i) items.insert(items.end(), source.begin(), source.end());
  return runtime.list(std::move(items), value.list()->kind);
}

bool are_equal(Runtime& runtime, std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return false;
  runtime.charge_bytes(left.size());
  return left == right;
}

// Of the item with an equal key; the number of items where there is none.
size_t place_of(Runtime& runtime, const Dict& dict, std::string_view key) {
  runtime.step(std::ssize(dict.items) / 8);
  size_t place = 0;
  for (; place < dict.items.size(); ++place)
    if (const std::string* text = dict.items[place].first.text(); text && are_equal(runtime, *text, key)) break;
  return place;
}

size_t place_of(Runtime& runtime, const Dict& dict, const Value& key) {
  if (key.text()) return place_of(runtime, dict, std::string_view(*key.text()));
  size_t place = 0;
  while (place < dict.items.size() && !equal(runtime, dict.items[place].first, key)) ++place;
  return place;
}

const Value* value_at(const Dict& dict, size_t place) {
  return place == dict.items.size() ? nullptr : &dict.items[place].second;
}

bool is_list(const Value& value) {
  return value.list() && (value.list()->kind == List::Kind::list || value.list()->kind == List::Kind::tuple);
}

// The bounds of a slice, brought into the sequence as Python does.
struct Bounds {
  int64_t begin, end, step;
};

Bounds bounds_of(Runtime& runtime, int64_t size, const Value* begin, const Value* end, const Value* step) {
  auto given = [&](const Value* value) { return value && !value->is_none(); };
  auto number = [&](const Value* value) { return integer_of(runtime, "a slice", *value); };
  Bounds made{0, 0, given(step) ? number(step) : 1};
  if (made.step == 0) runtime.fail("the step of a slice is zero");
  const bool back = made.step < 0;
  const int64_t least = back ? -1 : 0, most = back ? size - 1 : size;
  auto placed = [&](const Value* value) {
    const int64_t at = number(value);
    return std::clamp(at < 0 ? std::max(at, -size - 1) + size : at, least, most);
  };
  made.begin = given(begin) ? placed(begin) : back ? most : least;
  made.end = given(end) ? placed(end) : back ? least : most;
  return made;
}

} // namespace

Value arithmetic(Runtime& runtime, std::string_view op, const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    if (left.is_integer() && right.is_integer() && op != "/")
      return integer_arithmetic(runtime, op, left.integer(), right.integer());
    return real_arithmetic(runtime, op, left.number(), right.number());
  }
  if (op == "+" && left.text() && right.text()) {
    runtime.charge_bytes(left.text()->size() + right.text()->size());
    return *left.text() + *right.text();
  }
  if (op == "+" && is_list(left) && is_list(right) && left.list()->kind == right.list()->kind) {
    std::vector<Value> items = left.list()->items;
    items.insert(items.end(), right.list()->items.begin(), right.list()->items.end());
    return runtime.list(std::move(items), left.list()->kind);
  }
  if (op == "*" && (left.text() || is_list(left)) && right.is_integer())
    return repeated(runtime, left, right.integer());
  if (op == "*" && left.is_integer() && (right.text() || is_list(right)))
    return repeated(runtime, right, left.integer());
  if (op == "%" && left.text()) runtime.fail("formatting a string with % is not supported", "join text with ~");
  wrong_operands(runtime, op, left, right);
}

Value negative(Runtime& runtime, const Value& value) {
  if (value.is_float()) return -value.number();
  return integer_arithmetic(runtime, "-", 0, integer_of(runtime, "operator -", value));
}

bool equal(Runtime& runtime, const Value& left, const Value& right) {
  runtime.step();
  if (left.is_number() && right.is_number())
    return left.is_integer() && right.is_integer() ? left.integer() == right.integer()
                                                   : left.number() == right.number();
  if (left.text() && right.text()) return are_equal(runtime, *left.text(), *right.text());
  if (const List* a = left.list(), *b = right.list(); a && b) {
    if (a == b || a->kind == List::Kind::generator || b->kind == List::Kind::generator) return a == b;
    return a->kind == b->kind && std::ranges::equal(a->items, b->items, std::bind_front(equal, std::ref(runtime)));
  }
  if (const Dict* a = left.dict(), *b = right.dict(); a && b) {
    if (a == b) return true;
    if (a->items.size() != b->items.size()) return false;
    return std::ranges::all_of(a->items, [&](const auto& item) {
      const Value* other = find(runtime, *b, item.first);
      return other && equal(runtime, item.second, *other);
    });
  }
  if (left.space() || right.space()) return left.space() == right.space();
  if (left.loop() || right.loop()) return left.loop() == right.loop();
  if (left.callable() || right.callable()) return left.callable() == right.callable();
  return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

const Value* find(Runtime& runtime, const Dict& dict, std::string_view key) {
  return value_at(dict, place_of(runtime, dict, key));
}

const Value* find(Runtime& runtime, const Dict& dict, const Value& key) {
  return value_at(dict, place_of(runtime, dict, key));
}

void set(Runtime& runtime, Dict& dict, Value key, Value value) {
  dict.depth = std::max({dict.depth, key.depth() + 1, value.depth() + 1});
  const size_t place = place_of(runtime, dict, key);
  if (place == dict.items.size())
    dict.items.emplace_back(std::move(key), std::move(value));
  else
    dict.items[place].second = std::move(value);
}

bool less(Runtime& runtime, const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) return left.number() < right.number();
  if (left.text() && right.text()) {
    runtime.charge_bytes(std::min(left.text()->size(), right.text()->size()));
    return *left.text() < *right.text();
  }
  if (is_list(left) && is_list(right) && left.list()->kind == right.list()->kind) {
    const auto &a = left.list()->items, &b = right.list()->items;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      runtime.step();
      if (!equal(runtime, a[i], b[i])) return less(runtime, a[i], b[i]);
    }
    return a.size() < b.size();
  }
  wrong_operands(runtime, "<", left, right);
}

bool contains(Runtime& runtime, const Value& container, const Value& value) {
  if (const std::string* text = container.text()) {
    if (!value.text())
      runtime.fail(fmt::format("'in' looks for a {} in a string, where only strings are", value.type()));
    runtime.charge_bytes(text->size());
    return text->find(*value.text()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return find(runtime, *dict, value);
  const auto items = items_of(runtime, container);
  return std::ranges::any_of(items, [&](const Value& item) { return equal(runtime, item, value); });
}

bool compare(Runtime& runtime, std::string_view op, const Value& left, const Value& right) {
  runtime.step();
  if (op == "==") return equal(runtime, left, right);
  if (op == "!=") return !equal(runtime, left, right);
  if (op == "in") return contains(runtime, right, left);
  if (op == "not in") return !contains(runtime, right, left);
  if (op == "<") return less(runtime, left, right);
  if (op == ">") return less(runtime, right, left);
  if (equal(runtime, left, right)) return true;
  return op == "<=" ? less(runtime, left, right) : less(runtime, right, left);
}

Value slice(Runtime& runtime, const Value& value, const Value* begin, const Value* end, const Value* step) {
  if (value.is_undefined()) runtime.fail(value.undefined_name());
  if (!value.text() && !is_list(value)) runtime.fail(fmt::format("a {} cannot be sliced", value.type()));
  const auto points = value.text() ? code_points(*value.text()) : std::vector<std::string_view>{};
  runtime.step(std::ssize(points));
  const auto size = value.text() ? std::ssize(points) : std::ssize(value.list()->items);
  const Bounds bounds = bounds_of(runtime, size, begin, end, step);
  std::string text;
  std::vector<Value> items;
  for (int64_t at = bounds.begin; bounds.step > 0 ? at < bounds.end : at > bounds.end;) {
    if (value.text())
      text += points[static_cast<size_t>(at)];
    else
      items.push_back(value.list()->items[static_cast<size_t>(at)]);
    if (__builtin_add_overflow(at, bounds.step, &at)) break;
  }
  if (value.text()) return runtime.text(std::move(text));
  return runtime.list(std::move(items), value.list()->kind);
}

} // namespace fvlm::jinja
