// Value: what an expression of a template evaluates to. Values are Python's, as Jinja is written in Python.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fvlm::jinja {

class Value;
struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

// What a name or an attribute that does not exist evaluates to. It prints as nothing and iterates as nothing.
struct Undefined {
  std::shared_ptr<const std::string> what; // such as "'tools' is undefined"
};
struct None {};
// An integer beyond 64 bits. It prints as its digits, and is a float of its size in all else.
struct LongInteger {
  std::string digits;
  double size;
};

class Value {
 public:
  using String = std::shared_ptr<const std::string>; // valid UTF-8
  using Variant = std::variant<Undefined, None, bool, int64_t, double, String, std::shared_ptr<const List>,
                               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<Loop>,
                               std::shared_ptr<const Callable>, std::shared_ptr<const LongInteger>>;

  Value() : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(int value) : data_(int64_t{value}) {}
  Value(double value) : data_(value) {}
  Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::shared_ptr<const List> list) : data_(std::move(list)) {}
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}
  Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}
  Value(std::shared_ptr<const Callable> callable) : data_(std::move(callable)) {}
  Value(LongInteger integer) : data_(std::make_shared<const LongInteger>(std::move(integer))) {}
  static Value undefined(std::string what);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const std::string* text() const { return pointer<String>(); }
  const List* list() const { return pointer<std::shared_ptr<const List>>(); }
  const Dict* dict() const { return pointer<std::shared_ptr<const Dict>>(); }
  Namespace* space() const { return pointer<std::shared_ptr<Namespace>>(); }
  Loop* loop() const { return pointer<std::shared_ptr<Loop>>(); }
  const Callable* callable() const { return pointer<std::shared_ptr<const Callable>>(); }
  const LongInteger* long_integer() const { return pointer<std::shared_ptr<const LongInteger>>(); }
  const std::string& undefined_name() const { return *std::get<Undefined>(data_).what; }

  // Python counts booleans as integers, and integers as numbers.
  bool is_integer() const { return boolean() || std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_) || long_integer(); }
  bool is_number() const { return is_integer() || is_float(); }
  int64_t integer() const; // of an is_integer()
  double number() const;   // of an is_number()

  bool truthy() const;
  // "str", "list": Python's name of the type.
  const char* type() const;
  // Nesting of lists and dictionaries.
  int depth() const;

 private:
  template <class Pointer>
  auto pointer() const -> decltype(std::declval<const Pointer&>().get()) {
    const auto* held = std::get_if<Pointer>(&data_);
    return held ? held->get() : nullptr;
  }
  Variant data_;
};

// A sequence. A generator is what filters such as selectattr return: it has no length, counts as true and can be read
// once.
struct List {
  enum class Kind { list, tuple, view, generator };
  std::vector<Value> items;
  Kind kind = Kind::list;
  int depth = 1;
  mutable bool consumed = false;
};

// Keeps the order of insertion. Dictionaries in templates are small, so that a lookup is a scan (find in operators.h).
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  void set(std::string_view key, Value value);
};

// The one kind of object that a template can change: {% set ns.x = 1 %}.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

// The variable `loop` inside of {% for %}.
struct Loop {
  std::vector<Value> items;
  size_t index = 0;
  std::vector<Value> changed; // arguments of the last loop.changed()
  bool has_changed = false, ended = false;
};

struct Macro;
struct Scope;

struct Callable {
  std::string name;
  Value self; // the object of a method
  bool is_method = false;
  const Macro* macro = nullptr; // null for a method and for a function of the environment
  std::shared_ptr<Scope> scope; // where the macro was defined
};

Value make_list(std::vector<Value> items, List::Kind kind = List::Kind::list);
Value make_dict(Dict dict);
Value dict_of(std::initializer_list<std::pair<std::string_view, Value>> items);
// Of a parsed document, where integers of 2^64 and more are floats, or a value of exact_json(), which has all digits.
Value from_json(const nlohmann::ordered_json& json);

} // namespace fvlm::jinja
