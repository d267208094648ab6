#include "jinja/functions.h"

#include "jinja/format.h"
#include "jinja/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace fvlm::jinja {
namespace {

constexpr int64_t max_range = 100'000; // as in Jinja's sandbox

Value make_range(Runtime& runtime, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "range", arguments, {"start", "stop", "step"}, 1);
  auto number = [&](size_t i) { return integer_of(runtime, "range", *bound[i]); };
  const int64_t begin = bound[1] ? number(0) : 0, end = bound[1] ? number(1) : number(0);
  const int64_t step = bound[2] ? number(2) : 1;
  if (step == 0) runtime.fail("the step of a range is zero");
  std::vector<Value> items;
  for (int64_t at = begin; step > 0 ? at < end : at > end;) {
    if (std::ssize(items) == max_range) runtime.fail(fmt::format("a range has more than {} items", max_range));
    items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return runtime.list(std::move(items));
}

Value make_dictionary(Runtime& runtime, const Arguments& arguments) {
  Dict made;
  if (arguments.positional.size() > 1) runtime.fail("dict takes at most one argument without a name");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (const Dict* dict = source.dict()) {
      made = *dict;
    } else {
      for (const Value& pair : items_of(runtime, source)) {
        const auto items = items_of(runtime, pair);
        if (items.size() != 2) runtime.fail("dict expects pairs of a key and a value");
        set(runtime, made, items[0], items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) made.set(name, value);
  return runtime.dict(std::move(made));
}

Value make_namespace(Runtime& runtime, const Arguments& arguments,
                     std::vector<std::shared_ptr<Namespace>>& namespaces) {
  const Value initial = make_dictionary(runtime, arguments);
  auto made = std::make_shared<Namespace>();
  for (const auto& [name, value] : initial.dict()->items) {
    const std::string& key = text_of(runtime, "namespace", name);
    if (key.starts_with('_')) runtime.fail(fmt::format("a namespace cannot hold '{}', which begins with _", key));
    made->attributes.emplace_back(key, value);
  }
  namespaces.push_back(made);
  return made;
}

// strftime in the C locale, which the process may not be in.
Value format_now(Runtime& runtime, const Arguments& arguments) {
  const std::string format =
      text_of(runtime, "strftime_now", *bind_arguments(runtime, "strftime_now", arguments, {"format"}, 1)[0]);
  static constexpr std::array<std::string_view, 7> days = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                           "Thursday", "Friday", "Saturday"};
  static constexpr std::array<std::string_view, 12> months = {"January",   "February", "March",    "April",
                                                              "May",       "June",     "July",     "August",
                                                              "September", "October",  "November", "December"};
  const std::tm& now = runtime.now();
  const std::string_view day = days.at(static_cast<size_t>(now.tm_wday)),
                         month = months.at(static_cast<size_t>(now.tm_mon));
  struct Number {
    char letter;
    int value, digits;
  };
  const std::array<Number, 9> numbers = {{{'Y', now.tm_year + 1900, 4},
                                          {'y', now.tm_year % 100, 2},
                                          {'m', now.tm_mon + 1, 2},
                                          {'d', now.tm_mday, 2},
                                          {'j', now.tm_yday + 1, 3},
                                          {'H', now.tm_hour, 2},
                                          {'I', (now.tm_hour + 11) % 12 + 1, 2},
                                          {'M', now.tm_min, 2},
                                          {'S', now.tm_sec, 2}}};
  const std::array<std::pair<char, std::string_view>, 6> words = {{{'p', now.tm_hour < 12 ? "AM" : "PM"},
                                                                   {'B', month},
                                                                   {'b', month.substr(0, 3)},
                                                                   {'A', day},
                                                                   {'a', day.substr(0, 3)},
                                                                   {'%', "%"}}};
  std::string made;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      made += format[i];
      continue;
    }
    char c = format[++i];
    const bool bare = c == '-' && i + 1 < format.size(); // %-d: without a leading zero
    if (bare) c = format[++i];
    const auto number = std::ranges::find(numbers, c, &Number::letter);
    const auto word = std::ranges::find(words, c, &std::pair<char, std::string_view>::first);
    if (number != numbers.end())
      made += fmt::format("{:0{}}", number->value, bare ? 1 : number->digits);
    else if (word != words.end())
      made += word->second;
    else
      runtime.fail(fmt::format("strftime_now: the format %{} is not supported", c));
  }
  return runtime.text(std::move(made));
}

} // namespace

bool is_function(std::string_view name) {
  static constexpr std::array<std::string_view, 5> names = {"range", "dict", "namespace", "raise_exception",
                                                            "strftime_now"};
  return std::ranges::find(names, name) != names.end();
}

Value call_function(Runtime& runtime, std::string_view name, const Arguments& arguments,
                    std::vector<std::shared_ptr<Namespace>>& namespaces) {
  if (name == "range") return make_range(runtime, arguments);
  if (name == "dict") return make_dictionary(runtime, arguments);
  if (name == "namespace") return make_namespace(runtime, arguments, namespaces);
  if (name == "strftime_now") return format_now(runtime, arguments);
  auto bound = bind_arguments(runtime, "raise_exception", arguments, {"message"}, 1);
  runtime.fail("the template refuses the conversation: " + to_text(runtime, *bound[0]));
}

} // namespace fvlm::jinja
