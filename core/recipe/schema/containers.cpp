#include "recipe/schema/containers.h"

#include "base/text.h"
#include "base/utf8.h"

#include <algorithm>
#include <charconv>
#include <set>

namespace fvlm::recipe {
namespace {

std::string name_of(const Value& item) {
  const Table* table = as_table(item);
  if (!table) return "";
  const Value* name = find_field(*table, "name");
  if (!name && !table->arguments.empty()) name = &table->arguments[0];
  auto* text = name ? std::get_if<std::string>(&name->data) : nullptr;
  return text ? *text : "";
}

} // namespace

namespace list_detail {

const std::vector<Value>* items(Reader& reader, const Value& value, const ListShape& shape, const Node& item,
                                const Node& list, std::vector<Value>& one) {
  const Table* table = as_table(value);
  std::string constructor = constructor_of(value);
  bool is_list = table && (constructor.empty() || constructor == shape.constructor) && table->fields.empty();
  if (!is_list) {
    if (!shape.allow_single || !item.accepts(value)) return reader.report_unexpected(value, list.expected()), nullptr;
    one = {value};
    return &one;
  }
  size_t count = table->items.size();
  if (count < shape.min || (shape.exactly && count != shape.exactly)) {
    reader.report(value.origin, fmt::format("expected {}, got {} of them", list.expected(), count));
    return nullptr;
  }
  if (shape.max && count > shape.max) {
    reader.report(value.origin, fmt::format("expected at most {}, got {}", grouped(static_cast<int64_t>(shape.max)),
                                            grouped(static_cast<int64_t>(count))));
    return nullptr;
  }
  return &table->items;
}

std::string part(const Value& item, size_t index_from_one, const ListShape& shape) {
  std::string name = shape.named ? name_of(item) : "";
  return name.empty() ? index_part(index_from_one) : key_part(name);
}

bool unique_names(Reader& reader, const std::vector<Value>& items, const ListShape& shape) {
  bool good = true;
  std::set<std::string> seen;
  for (size_t i = 0; i < items.size(); ++i) {
    std::string name = name_of(items[i]);
    if (name.empty() || seen.insert(name).second) continue;
    good = reader.within(part(items[i], i + 1, shape), [&] {
      return reader.report(items[i].origin, fmt::format("the name '{}' is used twice", name),
                           "give each a unique name");
    });
  }
  return good;
}

Value assign(Reader& reader, const Assignment& assignment, const Value* current, std::span<const std::string> rest,
             const ListShape& shape, const Node& item) {
  if (rest.empty()) {
    Value whole = literal(assignment);
    auto* text = std::get_if<std::string>(&whole.data);
    if (!text) return whole;
    std::vector<Value> items;
    for (const auto& word : split(*text, ',')) {
      Assignment one{word, assignment.origin};
      items.push_back(item.assign(reader, one, nullptr, {}));
    }
    return list_value(std::move(items), assignment.origin);
  }
  bool is_single = current && shape.allow_single &&
                   (!as_table(*current) || !constructor_of(*current).empty() || !as_table(*current)->fields.empty());
  if (is_single && constructor_of(*current) == shape.constructor && as_table(*current)) is_single = false;
  auto table = is_single ? copy_table(nullptr, current->origin) : copy_table(current, assignment.origin);
  if (is_single) table->items = {*current};

  const std::string& key = rest[0];
  size_t number = 0;
  bool numbered = std::from_chars(key.data(), key.data() + key.size(), number).ptr == key.data() + key.size();
  std::vector<size_t> chosen;
  std::vector<std::string> names;
  for (size_t i = 0; i < table->items.size(); ++i) {
    names.push_back(shape.named ? name_of(table->items[i]) : std::to_string(i + 1));
    if (key == "*" || names.back() == key || (numbered && number == i + 1)) chosen.push_back(i);
  }
  auto below = rest.subspan(1);
  if (chosen.empty() && table->items.size() == 1 && !numbered &&
      !shape.named) { // objective.beta means objective[1].beta
    chosen = {0};
    below = rest;
  }
  if (chosen.empty()) {
    reader.report(assignment.origin, fmt::format("has no entry '{}'", key), advise_key(key, names));
    return current ? *current : Value{};
  }
  for (size_t i : chosen)
    reader.within(part(table->items[i], i + 1, shape), [&] {
      table->items[i] = item.assign(reader, assignment, &table->items[i], below);
      return true;
    });
  return table_value(std::move(table));
}

void leaves(const Json& json, const std::string& path, const FieldInfo* field, const ListShape& shape, const Node& item,
            const LeafSink& sink) {
  if (item.is_leaf()) return sink(path, json, field);
  for (size_t i = 0; i < json.size(); ++i) {
    std::string part = shape.named ? key_part(json[i].value("name", "")) : index_part(i + 1);
    item.leaves(json[i], join_path(path, part), field, sink);
  }
}

std::string expected(const ListShape& shape, const Node& item) {
  if (shape.exactly) return fmt::format("a list of {}, each {}", shape.exactly, item.expected());
  std::string list = fmt::format("a list{} of {}", shape.min ? " (not an empty one)" : "", item.expected());
  return shape.allow_single ? fmt::format("{}, or {}", item.expected(), list) : list;
}

} // namespace list_detail

namespace map_detail {

bool read(Reader& reader, const Value& value, const Node& map, const Node* single, const ReadEntry& read_entry) {
  const Table* table = as_table(value);
  if (!table && single && single->accepts(value)) {
    reader.record_origin(value.origin);
    return read_entry("default", value);
  }
  reader.record_origin(value.origin, false);
  if (!table || !table->constructor.empty() || !table->items.empty())
    return reader.report_unexpected(value, map.expected());
  bool good = true;
  for (const auto& [key, entry] : table->fields)
    good &= reader.within(key_part(key), [&, &key = key, &entry = entry] {
      if (key.empty() || !is_utf8(key)) return reader.report(entry.origin, "this key is not a UTF-8 string");
      return read_entry(key, entry);
    });
  for (const auto& [key, origin] : table->nils)
    good = reader.within(key_part(key), [&, &origin = origin] {
      return reader.report(origin, "is nil here",
                           "is the variable misspelled? if nil is intended, write 'or nil' after it");
    });
  return good;
}

Value assign(Reader& reader, const Assignment& assignment, const Value* current, std::span<const std::string> rest,
             const Node& entry, bool allow_single) {
  if (rest.empty()) return literal(assignment);
  auto table = copy_table(current, assignment.origin);
  if (current && !as_table(*current) && allow_single) set_field(*table, "default", *current);
  const Value* old = find_field(*table, rest[0]);
  Value changed;
  reader.within(key_part(rest[0]), [&] {
    changed = entry.assign(reader, assignment, old, rest.subspan(1));
    return true;
  });
  set_field(*table, rest[0], std::move(changed));
  return table_value(std::move(table));
}

} // namespace map_detail

namespace one_of_detail {
namespace {

const Node* by_constructor(const std::vector<const Node*>& alternatives, const std::string& constructor) {
  for (const Node* node : alternatives)
    if (node->record() && node->record()->constructor == constructor) return node;
  return nullptr;
}

const Node* find(const Value& value, const std::vector<const Node*>& alternatives) {
  std::string constructor = constructor_of(value);
  if (!constructor.empty()) return by_constructor(alternatives, constructor);
  for (const Node* node : alternatives)
    if (!node->record() && node->accepts(value)) return node;
  return nullptr;
}

} // namespace

std::optional<size_t> pick(Reader& reader, const Value& value, const std::vector<const Node*>& alternatives) {
  const Node* node = find(value, alternatives);
  if (node) return std::ranges::find(alternatives, node) - alternatives.begin();
  reader.record_origin(value.origin, false);
  auto* text = std::get_if<std::string>(&value.data);
  std::vector<std::string> constructors;
  for (const Node* each : alternatives)
    if (each->record()) constructors.push_back(each->record()->constructor);
  auto near = text ? nearest(*text, constructors) : std::nullopt;
  if (near)
    reader.report(value.origin, fmt::format("expected {}, got {}", expected(alternatives), describe_value(value)),
                  "did you mean " + by_constructor(alternatives, *near)->expected() + "?");
  else
    reader.report_unexpected(value, expected(alternatives));
  return std::nullopt;
}

Value assign(Reader& reader, const Assignment& assignment, const Value* current, std::span<const std::string> rest,
             const std::vector<const Node*>& alternatives) {
  if (rest.empty()) {
    if (by_constructor(alternatives, assignment.text)) { // schedule=cosine: a cosine schedule with default values
      auto table = copy_table(nullptr, assignment.origin);
      table->constructor = assignment.text;
      return table_value(std::move(table));
    }
    for (const Node* node : alternatives)
      if (!node->record() && node->accepts({assignment.text, assignment.origin}))
        return node->assign(reader, assignment, current, rest);
    return literal(assignment);
  }
  const Node* node = current ? find(*current, alternatives) : alternatives[0];
  if (!node) return *current;
  Value changed = node->assign(reader, assignment, current, rest);
  if (current || !node->record()) return changed;
  auto table = copy_table(&changed, assignment.origin);
  table->constructor = node->record()->constructor;
  return table_value(std::move(table));
}

void leaves(const Json& json, const std::string& path, const FieldInfo* field, const LeafSink& sink,
            const std::vector<const Node*>& alternatives) {
  if (json.is_object() && json.contains("kind")) {
    sink(join_path(path, ".kind"), json["kind"], field);
    if (const Node* node = by_constructor(alternatives, json["kind"].get<std::string>()))
      return node->leaves(json, path, field, sink);
  }
  sink(path, json, field);
}

std::string expected(const std::vector<const Node*>& alternatives) {
  std::vector<std::string> all;
  all.reserve(alternatives.size());
  for (const Node* node : alternatives) all.push_back(node->expected());
  return join_or(all);
}

std::string lua_type(const std::vector<const Node*>& alternatives) {
  std::vector<std::string> all;
  all.reserve(alternatives.size());
  for (const Node* node : alternatives) all.push_back(node->lua_type());
  return join(all, "|");
}

} // namespace one_of_detail
} // namespace fvlm::recipe
