// Runtime: what all functions of the interpreter share: limits, the line that is executed, and errors that name it.
#pragma once
#include "jinja/value.h"

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::jinja {

// A template that exceeds one of these ends with an error.
struct Limits {
  int64_t steps = 5'000'000; // evaluated nodes, items that are visited, and 64 bytes of text each
  size_t output_bytes = size_t{16} << 20;
  int depth = 300;                        // nested expressions, statements and calls
  static constexpr int value_depth = 100; // lists and dictionaries inside of each other
  static constexpr size_t source_bytes = 1 << 20;
};

class Runtime {
 public:
  Runtime(std::string where, const Limits& limits, const std::tm& now)
      : where_(std::move(where)), limits_(limits), now_(now) {}

  void at_line(int line) { line_ = line; }
  int line() const { return line_; }
  // Throws Error(data) at the current line.
  [[noreturn]] void fail(const std::string& what, const std::string& advice = "") const;

  void step(int64_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.steps) too_many_steps();
  }
  // Called before text of that length is made.
  void charge_bytes(size_t bytes);
  Value text(std::string made);
  Value list(std::vector<Value> items, List::Kind kind = List::Kind::list);
  Value dict(Dict made);

  const Limits& limits() const { return limits_; }
  const std::tm& now() const { return now_; }

  // Counts how deep evaluation is nested, for as long as it lives.
  class Deeper {
   public:
    explicit Deeper(Runtime& runtime) : runtime_(runtime) {
      if (++runtime_.depth_ > runtime_.limits_.depth) runtime_.too_deep();
    }
    ~Deeper() { --runtime_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Runtime& runtime_;
  };

 private:
  [[noreturn]] void too_many_steps() const;
  [[noreturn]] void too_deep(); // called from a constructor, so it takes back the level that it counted

  std::string where_;
  Limits limits_;
  std::tm now_;
  int line_ = 1, depth_ = 0;
  int64_t steps_ = 0;
};

// The arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Assigns arguments to parameters. An argument that was not passed is null. Fails for too many, unknown or doubled
// arguments, and for a missing one of the first `required`.
std::vector<const Value*> bind_arguments(Runtime& runtime, std::string_view function, const Arguments& arguments,
                                         const std::vector<const char*>& parameters, size_t required = 0);

// Values of an argument, or an error that names the function.
int64_t integer_of(Runtime& runtime, std::string_view function, const Value& value);
const std::string& text_of(Runtime& runtime, std::string_view function, const Value& value);

// The items that iterating over a value yields: of a list, keys of a dictionary, characters of text, nothing for an
// undefined value. Fails for other values.
std::vector<Value> items_of(Runtime& runtime, const Value& value);

} // namespace fvlm::jinja
