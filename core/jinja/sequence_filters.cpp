// The filters of sequences and dictionaries.
#include "jinja/attributes.h"
#include "jinja/code_points.h"
#include "jinja/filters.h"
#include "jinja/format.h"
#include "jinja/operators.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::jinja {
namespace {

Value filter_length(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  bind_arguments(runtime, "length", arguments, {});
  return length_of(runtime, subject);
}

Value filter_list(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  bind_arguments(runtime, "list", arguments, {});
  return runtime.list(items_of(runtime, subject));
}

Value filter_join(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "join", arguments, {"d", "attribute"});
  const std::string separator = bound[0] ? to_text(runtime, *bound[0]) : "";
  std::string made;
  bool first = true;
  for (const Value& item : items_of(runtime, subject)) {
    if (!std::exchange(first, false)) made += separator;
    runtime.charge_bytes(separator.size());
    made += to_text(runtime, bound[1] && !bound[1]->is_none() ? path_of(runtime, item, *bound[1]) : item);
  }
  return made;
}

Value filter_first(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  bind_arguments(runtime, "first", arguments, {});
  auto items = items_of(runtime, subject);
  return items.empty() ? Value::undefined("the sequence is empty, so it has no first item") : items.front();
}

Value filter_last(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  bind_arguments(runtime, "last", arguments, {});
  if (const List* list = subject.list(); list && list->kind == List::Kind::generator)
    runtime.fail("last: a generator cannot be read from its end", "pass it through the filter list");
  auto items = items_of(runtime, subject);
  return items.empty() ? Value::undefined("the sequence is empty, so it has no last item") : items.back();
}

Value filter_items(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  bind_arguments(runtime, "items", arguments, {});
  if (subject.is_undefined()) return runtime.list({}, List::Kind::generator);
  if (!subject.dict()) runtime.fail(fmt::format("items expects a dictionary but got a {}", subject.type()));
  std::vector<Value> items;
  for (const auto& [key, value] : subject.dict()->items) items.push_back(make_list({key, value}, List::Kind::tuple));
  return runtime.list(std::move(items), List::Kind::generator);
}

Value filter_reverse(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  bind_arguments(runtime, "reverse", arguments, {});
  auto items = items_of(runtime, subject);
  std::ranges::reverse(items);
  if (!subject.text()) return runtime.list(std::move(items), List::Kind::generator);
  std::string made;
  for (const Value& item : items) made += *item.text();
  return made;
}

// The rest of `arguments` from `from` on.
Arguments behind(const Arguments& arguments, size_t from) {
  return {{arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(from, arguments.positional.size())),
           arguments.positional.end()},
          arguments.named};
}

Value selected(const char* name, bool attribute, bool wanted, Runtime& runtime, const Value& subject,
               const Arguments& arguments) {
  const size_t offset = attribute ? 1 : 0;
  if (arguments.positional.size() < offset) runtime.fail(fmt::format("{} needs the name of an attribute", name));
  const bool has_test = arguments.positional.size() > offset;
  const std::string test = has_test ? text_of(runtime, name, arguments.positional[offset]) : "";
  const Arguments rest = behind(arguments, offset + 1);
  std::vector<Value> kept;
  for (const Value& item : items_of(runtime, subject)) {
    const Value value = attribute ? path_of(runtime, item, arguments.positional[0]) : item;
    const bool holds = has_test ? apply_test(runtime, test, value, rest) : value.truthy();
    if (holds == wanted) kept.push_back(item);
  }
  return runtime.list(std::move(kept), List::Kind::generator);
}

Value filter_map(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  std::vector<Value> made;
  if (arguments.positional.empty()) {
    auto bound = bind_arguments(runtime, "map", arguments, {"attribute", "default"}, 1);
    for (const Value& item : items_of(runtime, subject)) {
      Value value = path_of(runtime, item, *bound[0]);
      made.push_back(value.is_undefined() && bound[1] && !bound[1]->is_none() ? *bound[1] : std::move(value));
    }
  } else {
    const std::string& name = text_of(runtime, "map", arguments.positional[0]);
    const Arguments rest = behind(arguments, 1);
    for (const Value& item : items_of(runtime, subject)) made.push_back(apply_filter(runtime, name, item, rest));
  }
  return runtime.list(std::move(made), List::Kind::generator);
}

Value without_case(Runtime& runtime, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.text()) return value;
  auto made = lower(*value.text());
  if (!made) runtime.fail("sorting text beyond ASCII without case is not supported", "pass case_sensitive=true");
  return runtime.text(std::move(*made));
}

// What items are compared by.
struct Keyed {
  Value key, item;
};

std::vector<Keyed> keyed(Runtime& runtime, const Value& subject, bool case_sensitive, const Value* attribute) {
  std::vector<Keyed> made;
  for (const Value& item : items_of(runtime, subject)) {
    const Value value = attribute && !attribute->is_none() ? path_of(runtime, item, *attribute) : item;
    made.push_back({without_case(runtime, value, case_sensitive), item});
  }
  return made;
}

void sort_by_key(Runtime& runtime, std::vector<Keyed>& items, bool reverse) {
  std::ranges::stable_sort(items, [&](const Keyed& a, const Keyed& b) {
    runtime.step();
    return reverse ? less(runtime, b.key, a.key) : less(runtime, a.key, b.key);
  });
}

Value list_of(Runtime& runtime, std::vector<Keyed> items, List::Kind kind = List::Kind::list) {
  std::vector<Value> made;
  for (Keyed& keyed_item : items) made.push_back(std::move(keyed_item.item));
  return runtime.list(std::move(made), kind);
}

Value filter_sort(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "sort", arguments, {"reverse", "case_sensitive", "attribute"});
  auto items = keyed(runtime, subject, bound[1] && bound[1]->truthy(), bound[2]);
  sort_by_key(runtime, items, bound[0] && bound[0]->truthy());
  return list_of(runtime, std::move(items));
}

Value filter_dictsort(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (!subject.dict()) runtime.fail(fmt::format("dictsort expects a dictionary but got a {}", subject.type()));
  const std::string by = bound[1] ? text_of(runtime, "dictsort", *bound[1]) : "key";
  if (by != "key" && by != "value") runtime.fail("dictsort sorts by 'key' or by 'value'");
  std::vector<Keyed> items;
  for (const auto& [key, value] : subject.dict()->items)
    items.push_back({without_case(runtime, by == "key" ? key : value, bound[0] && bound[0]->truthy()),
                     make_list({key, value}, List::Kind::tuple)});
  sort_by_key(runtime, items, bound[2] && bound[2]->truthy());
  return list_of(runtime, std::move(items));
}

Value filter_unique(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "unique", arguments, {"case_sensitive", "attribute"});
  std::vector<Keyed> kept;
  for (Keyed& candidate : keyed(runtime, subject, bound[0] && bound[0]->truthy(), bound[1])) {
    if (std::ranges::none_of(kept, [&](const Keyed& other) { return equal(runtime, other.key, candidate.key); }))
      kept.push_back(std::move(candidate));
  }
  return list_of(runtime, std::move(kept), List::Kind::generator);
}

Value extreme(const char* name, bool largest, Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, name, arguments, {"case_sensitive", "attribute"});
  auto items = keyed(runtime, subject, bound[0] && bound[0]->truthy(), bound[1]);
  if (items.empty()) return Value::undefined("the sequence is empty, so it has no extreme");
  const Keyed* best = &items.front();
  for (const Keyed& item : items)
    if (largest ? less(runtime, best->key, item.key) : less(runtime, item.key, best->key)) best = &item;
  return best->item;
}

Value filter_sum(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  auto bound = bind_arguments(runtime, "sum", arguments, {"attribute", "start"});
  Value total = bound[1] ? *bound[1] : Value(0);
  if (total.text()) runtime.fail("sum adds numbers", "join text with the filter join");
  for (const Value& item : items_of(runtime, subject))
    total =
        arithmetic(runtime, "+", total, bound[0] && !bound[0]->is_none() ? path_of(runtime, item, *bound[0]) : item);
  return total;
}

} // namespace

const Filters& sequence_filters() {
  static const Filters filters = {
      {"length", filter_length},
      {"count", filter_length},
      {"list", filter_list},
      {"join", filter_join},
      {"first", filter_first},
      {"last", filter_last},
      {"items", filter_items},
      {"reverse", filter_reverse},
      {"select", std::bind_front(selected, "select", false, true)},
      {"reject", std::bind_front(selected, "reject", false, false)},
      {"map", filter_map},
      {"selectattr", std::bind_front(selected, "selectattr", true, true)},
      {"rejectattr", std::bind_front(selected, "rejectattr", true, false)},
      {"sort", filter_sort},
      {"dictsort", filter_dictsort},
      {"unique", filter_unique},
      {"min", std::bind_front(extreme, "min", false)},
      {"max", std::bind_front(extreme, "max", true)},
      {"sum", filter_sum},
  };
  return filters;
}

bool has_length(const Value& value) {
  const List* list = value.list();
  return value.is_undefined() || value.text() || value.dict() || value.loop() ||
         (list && list->kind != List::Kind::generator);
}

int64_t length_of(Runtime& runtime, const Value& value) {
  if (!has_length(value)) {
    const bool generator = value.list();
    runtime.fail(fmt::format("a {} has no length", value.type()), generator ? "pass it through the filter list" : "");
  }
  if (value.is_undefined()) return 0;
  if (const std::string* text = value.text()) {
    runtime.charge_bytes(text->size());
    return static_cast<int64_t>(count_code_points(*text));
  }
  if (const Loop* loop = value.loop()) return std::ssize(loop->items);
  return value.dict() ? std::ssize(value.dict()->items) : std::ssize(value.list()->items);
}

} // namespace fvlm::jinja
