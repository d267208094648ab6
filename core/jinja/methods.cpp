#include "jinja/methods.h"

#include "jinja/code_points.h"
#include "jinja/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace fvlm::jinja {
namespace {

using Names = std::set<std::string_view>;

const Names& method_names(const Value& object) {
  static const Names none,
      of_text = {"capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
                 "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
                 "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
                 "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
                 "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
                 "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
                 "swapcase",   "title",        "translate",    "upper",   "zfill"};
  static const Names of_list = {"append", "clear", "copy",   "count",   "extend", "index",
                                "insert", "pop",   "remove", "reverse", "sort"},
                     of_tuple = {"count", "index"},
                     of_dict = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                "pop",   "popitem", "setdefault", "update", "values"},
                     of_loop = {"cycle", "changed"};
  if (object.text()) return of_text;
  if (const List* list = object.list())
    return list->kind == List::Kind::list ? of_list : list->kind == List::Kind::tuple ? of_tuple : none;
  return object.dict() ? of_dict : object.loop() ? of_loop : none;
}

Value checked_case(Runtime& runtime, std::string_view method, std::optional<std::string> made) {
  if (!made)
    runtime.fail(fmt::format("{} of text beyond ASCII is not supported", method), "change the case before templating");
  return runtime.text(std::move(*made));
}

Value stripped(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, method.name, arguments, {"chars"});
  std::optional<std::string_view> set;
  if (bound[0] && !bound[0]->is_none()) set = text_of(runtime, method.name, *bound[0]);
  const Side side = method.name == "strip" ? Side::both : method.name == "lstrip" ? Side::left : Side::right;
  runtime.charge_bytes(method.self.text()->size());
  return std::string(strip(*method.self.text(), side, set));
}

Value split(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, method.name, arguments, {"sep", "maxsplit"});
  std::string_view text = *method.self.text();
  int64_t most = bound[1] ? integer_of(runtime, method.name, *bound[1]) : -1;
  const bool right = method.name == "rsplit";
  runtime.charge_bytes(text.size() * 2);
  std::vector<Value> parts;
  if (!bound[0] || bound[0]->is_none()) { // at runs of white space, of which none stands at either end
    if (right && most >= 0) runtime.fail("rsplit at white space with maxsplit is not supported");
    text = strip(text, Side::left);
    while (!text.empty()) {
      size_t end = 0;
      const auto points = most == 0 ? std::vector<std::string_view>{} : code_points(text);
      for (std::string_view point : points) {
        if (is_python_space(code_point(point))) break;
        end += point.size();
      }
      if (most == 0) end = text.size(); // with the white space at its end
      runtime.step(std::ssize(points));
      parts.emplace_back(text.substr(0, end));
      text = strip(text.substr(end), Side::left);
      --most;
    }
    return runtime.list(std::move(parts));
  }
  const std::string& separator = text_of(runtime, method.name, *bound[0]);
  if (separator.empty()) runtime.fail("split: the separator is empty");
  for (; most != 0; --most) {
    const size_t at = right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    runtime.step();
    const std::string_view before = text.substr(0, at), behind = text.substr(at + separator.size());
    parts.emplace_back(right ? behind : before);
    text = right ? before : behind;
  }
  parts.emplace_back(text);
  if (right) std::ranges::reverse(parts);
  return runtime.list(std::move(parts));
}

Value starts_or_ends(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, method.name, arguments, {"prefix"}, 1);
  const std::string& text = *method.self.text();
  auto holds = [&](const Value& affix) {
    const std::string& wanted = text_of(runtime, method.name, affix);
    return method.name == "startswith" ? text.starts_with(wanted) : text.ends_with(wanted);
  };
  if (const List* several = bound[0]->list()) return std::ranges::any_of(several->items, holds);
  return holds(*bound[0]);
}

Value changed_case(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  bind_arguments(runtime, method.name, arguments, {});
  const std::string& text = *method.self.text();
  if (method.name == "upper") return checked_case(runtime, "upper", upper(text));
  auto lowered = lower(text);
  if (lowered && method.name == "capitalize" && !lowered->empty()) (*lowered)[0] = (*upper(lowered->substr(0, 1)))[0];
  if (lowered && method.name == "title") {
    bool begins = true; // the letter is not behind another one
    for (char& c : *lowered) {
      const bool letter = c >= 'a' && c <= 'z';
      if (letter && begins) c = static_cast<char>(c - 32);
      begins = !letter;
    }
  }
  return checked_case(runtime, method.name, std::move(lowered));
}

Value replaced(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "replace", arguments, {"old", "new", "count"}, 2);
  const std::string &text = *method.self.text(), &from = text_of(runtime, "replace", *bound[0]),
                    &to = text_of(runtime, "replace", *bound[1]);
  const int64_t count = bound[2] ? integer_of(runtime, "replace", *bound[2]) : -1;
  runtime.charge_bytes(text.size() + (text.size() / std::max<size_t>(from.size(), 1) + 1) * to.size());
  return replace(text, from, to, count);
}

Value found(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  const std::string &text = *method.self.text(), &name = method.name;
  auto bound = bind_arguments(runtime, name, arguments, {"sub"}, 1);
  const std::string& wanted = text_of(runtime, name, *bound[0]);
  runtime.charge_bytes(text.size());
  const size_t at = name[0] == 'r' ? text.rfind(wanted) : text.find(wanted);
  if (at != std::string::npos) return static_cast<int64_t>(count_code_points(text.substr(0, at)));
  if (name.ends_with("index")) runtime.fail(fmt::format("{}: the text is not found", name));
  return -1;
}

Value counted_text(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "count", arguments, {"sub"}, 1);
  const std::string &text = *method.self.text(), &wanted = text_of(runtime, "count", *bound[0]);
  runtime.charge_bytes(text.size());
  if (wanted.empty()) return static_cast<int64_t>(count_code_points(text) + 1);
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(wanted, at)) != std::string::npos; at += wanted.size()) ++count;
  return count;
}

Value joined(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "join", arguments, {"iterable"}, 1);
  std::string made;
  bool first = true;
  for (const Value& item : items_of(runtime, *bound[0])) {
    if (!std::exchange(first, false)) made += *method.self.text();
    made += text_of(runtime, "join", item);
    runtime.charge_bytes(item.text()->size() + method.self.text()->size());
  }
  return made;
}

Value without_affix(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, method.name, arguments, {"affix"}, 1);
  std::string_view text = *method.self.text(), affix = text_of(runtime, method.name, *bound[0]);
  if (method.name == "removeprefix" && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (method.name == "removesuffix" && text.ends_with(affix)) text.remove_suffix(affix.size());
  return runtime.text(std::string(text));
}

Value lines_of(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  bind_arguments(runtime, "splitlines", arguments, {});
  std::vector<Value> lines;
  runtime.step(std::ssize(*method.self.text()));
  for (std::string_view line : split_lines(*method.self.text())) lines.emplace_back(line);
  return runtime.list(std::move(lines));
}

Value partitioned(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, method.name, arguments, {"sep"}, 1);
  const std::string_view text = *method.self.text(), separator = text_of(runtime, method.name, *bound[0]);
  if (separator.empty()) runtime.fail(fmt::format("{}: the separator is empty", method.name));
  runtime.charge_bytes(text.size());
  const bool right = method.name == "rpartition";
  const size_t at = right ? text.rfind(separator) : text.find(separator);
  std::vector<Value> parts;
  if (at == std::string_view::npos)
    parts = right ? std::vector<Value>{"", "", text} : std::vector<Value>{text, "", ""};
  else
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  return runtime.list(std::move(parts), List::Kind::tuple);
}

Value classified(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  bind_arguments(runtime, method.name, arguments, {});
  const std::string& text = *method.self.text();
  runtime.step(std::ssize(text));
  const auto points = code_points(text);
  if (method.name == "isspace")
    return !points.empty() &&
           std::ranges::all_of(points, [](auto point) { return is_python_space(code_point(point)); });
  auto lowered = lower(text), raised = upper(text);
  if (!lowered) runtime.fail(fmt::format("{} of text beyond ASCII is not supported", method.name));
  auto all = [&](auto holds) { return !text.empty() && std::ranges::all_of(text, holds); };
  auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (method.name == "isalpha") return all(is_letter);
  if (method.name == "isalnum") return all([&](char c) { return is_letter(c) || is_digit(c); });
  if (method.name == "isupper") return text == *raised && text != *lowered;
  if (method.name == "islower") return text == *lowered && text != *raised;
  return all(is_digit);
}

// Methods of lists, tuples and dictionaries.
Value found_item(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, method.name, arguments, {"value"}, 1);
  const auto& items = method.self.list()->items;
  auto same = [&](const Value& item) { return equal(runtime, item, *bound[0]); };
  if (method.name == "count") return static_cast<int64_t>(std::ranges::count_if(items, same));
  const auto at = std::ranges::find_if(items, same);
  if (at == items.end()) runtime.fail("index: the value is not in the list");
  return static_cast<int64_t>(at - items.begin());
}

Value got(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "get", arguments, {"key", "default"}, 1);
  const Value* found = find(runtime, *method.self.dict(), *bound[0]);
  return found ? *found : bound[1] ? *bound[1] : Value();
}

Value viewed(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  bind_arguments(runtime, method.name, arguments, {});
  std::vector<Value> items;
  for (const auto& [key, value] : method.self.dict()->items)
    items.push_back(method.name == "keys"     ? key
                    : method.name == "values" ? value
                                              : make_list({key, value}, List::Kind::tuple));
  return runtime.list(std::move(items), List::Kind::view);
}

Value copied(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  bind_arguments(runtime, "copy", arguments, {});
  return method.self;
}

Value cycled(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) runtime.fail("loop.cycle needs values to choose from");
  return arguments.positional[method.self.loop()->index % arguments.positional.size()];
}

Value changed(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  Loop& loop = *method.self.loop();
  if (!arguments.named.empty()) runtime.fail("loop.changed takes no named arguments");
  if (loop.ended) runtime.fail("loop.changed is called behind its loop");
  const bool differs =
      !std::exchange(loop.has_changed, true) ||
      !std::ranges::equal(loop.changed, arguments.positional, std::bind_front(equal, std::ref(runtime)));
  loop.changed = arguments.positional;
  return differs;
}

using Method = Value (*)(Runtime&, const Callable&, const Arguments&);
using Methods = std::map<std::string_view, Method>;

const Methods& methods_of(const Value& object) {
  static const Methods text = {{"strip", stripped},
                               {"lstrip", stripped},
                               {"rstrip", stripped},
                               {"split", split},
                               {"rsplit", split},
                               {"startswith", starts_or_ends},
                               {"endswith", starts_or_ends},
                               {"upper", changed_case},
                               {"lower", changed_case},
                               {"title", changed_case},
                               {"capitalize", changed_case},
                               {"replace", replaced},
                               {"find", found},
                               {"rfind", found},
                               {"index", found},
                               {"rindex", found},
                               {"count", counted_text},
                               {"join", joined},
                               {"removeprefix", without_affix},
                               {"removesuffix", without_affix},
                               {"splitlines", lines_of},
                               {"partition", partitioned},
                               {"rpartition", partitioned},
                               {"isspace", classified},
                               {"isalpha", classified},
                               {"isalnum", classified},
                               {"isdigit", classified},
                               {"isdecimal", classified},
                               {"isnumeric", classified},
                               {"isupper", classified},
                               {"islower", classified}};
  static const Methods list = {{"count", found_item}, {"index", found_item}, {"copy", copied}};
  static const Methods dict = {{"get", got}, {"items", viewed}, {"keys", viewed}, {"values", viewed}, {"copy", copied}};
  static const Methods loop = {{"cycle", cycled}, {"changed", changed}};
  return object.text() ? text : object.list() ? list : object.dict() ? dict : loop;
}

} // namespace

bool is_method(const Value& object, std::string_view name) {
  return method_names(object).contains(name);
}

Value call_method(Runtime& runtime, const Callable& method, const Arguments& arguments) {
  const Methods& methods = methods_of(method.self);
  auto found = methods.find(method.name);
  if (found == methods.end()) {
    const bool mutating = method.self.dict() || method.self.list();
    runtime.fail(fmt::format("the method {} of a {} is not supported", method.name, method.self.type()),
                 mutating ? "a template cannot change a list or dictionary: join lists with +" : "");
  }
  return found->second(runtime, method, arguments);
}

} // namespace fvlm::jinja
