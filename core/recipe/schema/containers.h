// Types composed of other types: lists, maps, optionals, and variants.
#pragma once
#include "recipe/schema/basic.h"
#include "recipe/schema/record.h"
#include "recipe/schema/table.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace fvlm::recipe {

struct ListShape {
  size_t min = 0;
  size_t exactly = 0;           // 0: any length
  size_t max = 0;               // 0: no limit
  bool allow_single = false;    // a single item may stand for a list of one
  bool named = false;           // items are records with a unique field `name`, which is used in paths
  const char* constructor = ""; // fvlm.sum { } is a plain list too
};

// The part of List<T> that does not depend on T.
namespace list_detail {
// The items of `value`. Returns null and reports a mistake where it is not a list.
const std::vector<Value>* items(Reader& reader, const Value& value, const ListShape& shape, const Node& item,
                                const Node& list, std::vector<Value>& one);
// The path part of an item: ".align" for a named item, else "[2]".
std::string part(const Value& item, size_t index_from_one, const ListShape& shape);
Value assign(Reader& reader, const Assignment& assignment, const Value* current, std::span<const std::string> rest,
             const ListShape& shape, const Node& item);
void leaves(const Json& json, const std::string& path, const FieldInfo* field, const ListShape& shape, const Node& item,
            const LeafSink& sink);
bool unique_names(Reader& reader, const std::vector<Value>& items, const ListShape& shape);
std::string expected(const ListShape& shape, const Node& item);
} // namespace list_detail

template <class T>
class List : public Type<std::vector<T>> {
 public:
  List(Ref<T> item, ListShape shape) : item_(item), shape_(shape) {}
  std::string expected() const override { return list_detail::expected(shape_, *item_); }
  std::string lua_type() const override {
    std::string item = item_->lua_type();
    return shape_.allow_single ? fmt::format("{}|({})[]", item, item) : fmt::format("({})[]", item);
  }
  std::string plain_expected() const override { return shape_.allow_single ? item_->plain_expected() : expected(); }
  bool is_leaf() const override { return item_->is_leaf(); }
  bool accepts(const Value& value) const override {
    const Table* table = as_table(value);
    return table ? table->fields.empty() : shape_.allow_single && item_->accepts(value);
  }
  std::vector<const Node*> parts() const override { return {item_}; }
  bool read(Reader& reader, const Value& value, std::vector<T>& out) const override {
    reader.record_origin(value.origin, is_leaf());
    std::vector<Value> one;
    const auto* items = list_detail::items(reader, value, shape_, *item_, *this, one);
    if (!items) return false;
    out.clear();
    out.resize(items->size());
    bool good = !shape_.named || list_detail::unique_names(reader, *items, shape_);
    for (size_t i = 0; i < items->size(); ++i)
      good &= reader.within(list_detail::part((*items)[i], i + 1, shape_),
                            [&] { return item_->read(reader, (*items)[i], out[i]); });
    return good;
  }
  Json write(const std::vector<T>& in, Write what) const override {
    Json json = Json::array();
    for (const auto& item : in) json.push_back(item_->write(item, what));
    return json;
  }
  Value assign(Reader& reader, const Assignment& assignment, const Value* current,
               std::span<const std::string> rest) const override {
    return list_detail::assign(reader, assignment, current, rest, shape_, *item_);
  }
  void leaves(const Json& json, const std::string& path, const FieldInfo* field, const LeafSink& sink) const override {
    list_detail::leaves(json, path, field, shape_, *item_, sink);
  }

 private:
  Ref<T> item_;
  ListShape shape_;
};

template <class T>
Ref<std::vector<T>> list(Ref<T> item, ListShape shape = {}) {
  return make_type<List<T>>(item, shape);
}

// The part of Map<T> that does not depend on T.
namespace map_detail {
using ReadEntry = std::function<bool(const std::string& key, const Value&)>;
bool read(Reader& reader, const Value& value, const Node& map, const Node* single, const ReadEntry& read_entry);
Value assign(Reader& reader, const Assignment& assignment, const Value* current, std::span<const std::string> rest,
             const Node& entry, bool allow_single);
} // namespace map_detail

// A table whose keys the author chooses. Written entries replace those of the default, key by key.
template <class T>
class Map : public Type<std::map<std::string, T>> {
 public:
  Map(const char* key, Ref<T> entry, bool allow_single) : key_(key), entry_(entry), allow_single_(allow_single) {}
  std::string expected() const override {
    std::string table = fmt::format("a table that gives {} for each {}", entry_->expected(), key_);
    return allow_single_ ? fmt::format("{}, or {}", entry_->expected(), table) : table;
  }
  std::string lua_type() const override {
    std::string table = fmt::format("table<string, {}>", entry_->lua_type());
    return allow_single_ ? fmt::format("{}|{}", entry_->lua_type(), table) : table;
  }
  bool is_leaf() const override { return false; }
  bool accepts(const Value& value) const override {
    return as_table(value) ? constructor_of(value).empty() : allow_single_ && entry_->accepts(value);
  }
  std::vector<const Node*> parts() const override { return {entry_}; }
  bool read(Reader& reader, const Value& value, std::map<std::string, T>& out) const override {
    return map_detail::read(
        reader, value, *this, allow_single_ ? entry_ : nullptr,
        [&](const std::string& key, const Value& part) { return entry_->read(reader, part, out[key]); });
  }
  Json write(const std::map<std::string, T>& in, Write what) const override {
    Json json = Json::object();
    for (const auto& [key, entry] : in) json[key] = entry_->write(entry, what);
    return json;
  }
  Value assign(Reader& reader, const Assignment& assignment, const Value* current,
               std::span<const std::string> rest) const override {
    return map_detail::assign(reader, assignment, current, rest, *entry_, allow_single_);
  }
  void leaves(const Json& json, const std::string& path, const FieldInfo* field, const LeafSink& sink) const override {
    for (const auto& [key, entry] : json.items()) entry_->leaves(entry, join_path(path, key_part(key)), field, sink);
  }

 private:
  std::string key_;
  Ref<T> entry_;
  bool allow_single_;
};

// `key` describes the keys in messages, like "parameter group".
template <class T>
Ref<std::map<std::string, T>> map(const char* key, Ref<T> entry) {
  return make_type<Map<T>>(key, entry, false);
}

// One value for all keys, or a table by key. The key "default" applies to keys that are not listed.
template <class T>
Ref<std::map<std::string, T>> by(const char* key, Ref<T> entry) {
  return make_type<Map<T>>(key, entry, true);
}

// A value that may be absent, or a word instead: automatic(integer(above(0))) accepts a number or "auto".
template <class T>
class Optional : public Type<std::optional<T>> {
 public:
  Optional(Ref<T> value, const char* word) : value_(value), word_(word) {}
  std::string expected() const override {
    return word_.empty() ? value_->expected() : fmt::format("{} or \"{}\"", value_->expected(), word_);
  }
  std::string lua_type() const override {
    return word_.empty() ? value_->lua_type() : fmt::format("{}|\"{}\"", value_->lua_type(), word_);
  }
  bool is_leaf() const override { return value_->is_leaf(); }
  bool accepts(const Value& value) const override { return is_word(value) || value_->accepts(value); }
  const RecordInfo* record() const override { return value_->record(); }
  std::vector<const Node*> parts() const override { return value_->parts(); }
  bool read(Reader& reader, const Value& value, std::optional<T>& out) const override {
    out.reset();
    if (is_word(value)) {
      reader.record_origin(value.origin);
      return true;
    }
    if (!word_.empty() && !value_->accepts(value)) return reader.report_unexpected(value, expected());
    T inner{};
    if (!value_->read(reader, value, inner)) return false;
    out = std::move(inner);
    return true;
  }
  bool present(const std::optional<T>& in) const override { return in || !word_.empty(); }
  Json write(const std::optional<T>& in, Write what) const override {
    return in ? value_->write(*in, what) : word_.empty() ? Json() : Json(word_);
  }
  Value assign(Reader& reader, const Assignment& assignment, const Value* current,
               std::span<const std::string> rest) const override {
    if (rest.empty() && assignment.text == word_) return {word_, assignment.origin};
    return value_->assign(reader, assignment, current, rest);
  }
  void leaves(const Json& json, const std::string& path, const FieldInfo* field, const LeafSink& sink) const override {
    value_->leaves(json, path, field, sink);
  }

 private:
  bool is_word(const Value& value) const {
    auto* text = std::get_if<std::string>(&value.data);
    return text && !word_.empty() && *text == word_;
  }
  Ref<T> value_;
  std::string word_;
};

template <class T>
Ref<std::optional<T>> optional(Ref<T> value) {
  return make_type<Optional<T>>(value, "");
}
template <class T>
Ref<std::optional<T>> automatic(Ref<T> value) {
  return make_type<Optional<T>>(value, "auto");
}

// The part of OneOf<...> that does not depend on its types.
namespace one_of_detail {
// The index of the alternative that `value` is for. Returns nothing and reports a mistake where there is none.
std::optional<size_t> pick(Reader& reader, const Value& value, const std::vector<const Node*>& alternatives);
Value assign(Reader& reader, const Assignment& assignment, const Value* current, std::span<const std::string> rest,
             const std::vector<const Node*>& alternatives);
void leaves(const Json& json, const std::string& path, const FieldInfo* field, const LeafSink& sink,
            const std::vector<const Node*>& alternatives);
std::string expected(const std::vector<const Node*>& alternatives);
std::string lua_type(const std::vector<const Node*>& alternatives);
} // namespace one_of_detail

// One of the types that a value V may have.
template <class V>
struct OneType {
  const Node* node;
  std::function<void*(V&)> emplace;          // makes `value` one of this type and returns what `node` reads into
  std::function<const void*(const V&)> find; // null where the value is of another type
};

// What a table without a constructor stands for.
enum class PlainTable {
  mistake,
  first, // type, which is written without its `kind` too
};

// A std::variant or Polymorphic. Tables are distinguished by their constructor (in a plan file by `kind`), other values
// by their shape.
template <class V>
class OneOf : public Type<V> {
 public:
  OneOf(std::vector<OneType<V>> types, PlainTable plain) : types_(std::move(types)), plain_(plain) {
    for (const OneType<V>& type : types_) nodes_.push_back(type.node);
  }
  std::string expected() const override { return one_of_detail::expected(nodes_); }
  std::string lua_type() const override { return one_of_detail::lua_type(nodes_); }
  bool is_leaf() const override { return false; }
  bool accepts(const Value& value) const override {
    return std::ranges::any_of(nodes_, [&](const Node* node) { return node->accepts(value); });
  }
  std::vector<const Node*> parts() const override { return nodes_; }
  bool read(Reader& reader, const Value& value, V& out) const override {
    const auto index = is_first(value) ? std::optional<size_t>(0) : one_of_detail::pick(reader, value, nodes_);
    if (!index) return false;
    if (has_kind(*index))
      reader.within(".kind", [&] {
        reader.record_origin(value.origin);
        return true;
      });
    return nodes_[*index]->read_at(reader, value, types_[*index].emplace(out));
  }
  Json write(const V& in, Write what) const override {
    for (size_t i = 0; i < types_.size(); ++i)
      if (const void* found = types_[i].find(in)) {
        Json inner = nodes_[i]->write_at(found, what);
        if (!has_kind(i)) return inner;
        Json json = {{"kind", nodes_[i]->record()->constructor}};
        json.update(inner);
        return json;
      }
    return {};
  }
  Value assign(Reader& reader, const Assignment& assignment, const Value* current,
               std::span<const std::string> rest) const override {
    if (current && !rest.empty() && is_first(*current))
      return nodes_.front()->assign(reader, assignment, current, rest);
    return one_of_detail::assign(reader, assignment, current, rest, nodes_);
  }
  void leaves(const Json& json, const std::string& path, const FieldInfo* field, const LeafSink& sink) const override {
    if (plain_ == PlainTable::first && json.is_object() && !json.contains("kind"))
      return nodes_.front()->leaves(json, path, field, sink);
    one_of_detail::leaves(json, path, field, sink, nodes_);
  }

 private:
  bool has_kind(size_t index) const { return nodes_[index]->record() && (plain_ == PlainTable::mistake || index > 0); }
  bool is_first(const Value& value) const {
    return plain_ == PlainTable::first && as_table(value) && constructor_of(value).empty();
  }

  std::vector<OneType<V>> types_;
  PlainTable plain_;
  std::vector<const Node*> nodes_;
};

template <class... Ts>
Ref<std::variant<Ts...>> one_of(Ref<Ts>... types) {
  using V = std::variant<Ts...>;
  std::vector<OneType<V>> all = {{types, [](V& value) { return &value.template emplace<Ts>(); },
                                  [](const V& value) { return std::get_if<Ts>(&value); }}...};
  return make_type<OneOf<V>>(std::move(all), PlainTable::mistake);
}

} // namespace fvlm::recipe
