// Record<T>: a table of a recipe whose fields are bound to the members of the struct T.
//
//   Ref<Cosine> cosine() {
//     static const auto type = record<Cosine>("Cosine", "cosine", "Falls along a half cosine.")
//                                  .field("to_share", &Cosine::to_share, number(between(0, 1)), "Share of ... at the
//                                  end.") .done();
//     return type;
//   }
//
// The default of a field is the member's initializer.
#pragma once
#include "recipe/schema/type.h"

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fvlm::recipe {

// Where a field's value is written in a recipe.
enum class Place {
  key,      // lr = 1e-3
  argument, // fvlm.stage "align" { }
  items,    // entries of the table without a key
};

struct FieldInfo {
  std::string name, doc;
  const Node* node = nullptr;
  Json default_value; // null: none
  std::string unit, example;
  std::string hint;                 // advice where the value is wrong
  std::vector<std::string> aliases; // names in other frameworks, recognized only to suggest this one
  Place place = Place::key;
  bool required = false;
  std::string required_unless;     // the name of a field that makes this one optional
  bool derived = false;            // computed by resolve(), never read
  bool excluded_from_hash = false; // cannot change the results of a run
  bool added_later = false;        // its default is not hashed, so that plans of earlier versions keep their hash
};

// A key of an earlier version. It is ignored in a plan file of that version and an error elsewhere.
struct RemovedKey {
  std::string name, reason;
};

// A key of other programs that is no field by another name. It is recognized only to say what to write instead.
struct ForeignKey {
  std::string name, advice;
};

struct RecordInfo {
  std::string title;       // "Cosine": fvlm.Cosine in the editor
  std::string constructor; // "cosine"; empty: a plain table
  std::string doc, example;
  std::string shorthand;  // a value that is not a table is read as this field
  bool broadcast = false; // a value that is not a table is given to every field
  bool call_only = false; // fvlm.scale_lr(0.5): arguments, no table
  std::vector<FieldInfo> fields;
  std::vector<RemovedKey> removed;
  std::vector<ForeignKey> foreign;

  const FieldInfo* find(std::string_view name) const;
  const RemovedKey* find_removed(std::string_view name) const;
  std::vector<std::string> keys() const; // the keys that an author may write
};

// batchSize, batch-size and batchsize are all the same as batch_size.
bool same_name(std::string_view a, std::string_view b);
// The field that other frameworks call so; null: none.
const FieldInfo* field_by_alias(const RecordInfo& info, std::string_view key);
// Null: none of that name.
const ForeignKey* foreign_key(const RecordInfo& info, std::string_view key);

// The part of Record<T> that does not depend on T, compiled once for all records.
class RecordFields {
 public:
  // Locates a field in a record: by `find`, or at a byte offset where `find` is null.
  struct Access {
    ptrdiff_t offset = 0;
    void* (*find)(void* record, const std::string& name) = nullptr;
  };

  RecordFields(const char* title, const char* constructor, const char* doc);
  RecordFields(RecordFields&& other) noexcept;
  ~RecordFields();

  void add(std::string_view name, Access access, const Node& node, const void* defaults, std::string_view doc);
  FieldInfo& last() { return info_.fields.back(); }
  void aliases(std::initializer_list<const char*> names);
  RecordInfo& info() { return info_; }
  const RecordInfo& info() const { return info_; }

  bool read(Reader& reader, const Value& value, void* out) const;
  Json write(const void* in, Write what) const;
  Value assign(Reader& reader, const Assignment& assignment, const Value* current,
               std::span<const std::string> rest) const;
  void leaves(const Json& json, const std::string& path, const LeafSink& sink) const;
  bool accepts(const Value& value) const;
  std::string expected() const;
  std::string lua_type() const;
  std::vector<const Node*> parts() const;

 private:
  void* find(size_t field, void* record) const;

  RecordInfo info_;
  std::vector<Access> accesses_; // of info_.fields
};

template <class T>
class Record : public Type<T> {
 public:
  // Validates several fields together.
  using Check = void (*)(Reader&, const T&);

  Record(const char* title, const char* constructor, const char* doc) : fields_(title, constructor, doc) {}

  template <class M, class Owner>
  requires std::derived_from<T, Owner> Record& field(const char* name, M Owner::*member, Ref<M> type,
                                                     std::string_view doc) {
    const T& record = defaults();
    auto at = [](const auto& object) { return reinterpret_cast<const char*>(&object); };
    fields_.add(name, {.offset = at(record.*member) - at(record)}, *type, &record, doc);
    return *this;
  }

  // A field that is not a member of T: get(record, name) returns a reference to it.
  template <auto get, class M>
  Record& field_with(std::string_view name, Ref<M> type, std::string_view doc) {
    auto find = [](void* record, const std::string& name) -> void* {
      M& found = get(*static_cast<T*>(record), name);
      return &found;
    };
    fields_.add(name, {.find = find}, *type, &defaults(), doc);
    return *this;
  }

  // These modify the field declared last.
  Record& required() { return fields_.last().required = true, *this; }
  Record& required_without(const char* other) { return fields_.last().required_unless = other, required(); }
  Record& derived() { return fields_.last().derived = true, *this; }
  Record& excluded_from_hash() { return fields_.last().excluded_from_hash = true, *this; }
  Record& added_later() { return fields_.last().added_later = true, *this; }
  Record& unit(const char* unit) { return fields_.last().unit = unit, *this; }
  Record& example(const char* lua) { return fields_.last().example = lua, *this; }
  Record& hint(const char* advice) { return fields_.last().hint = advice, *this; }
  Record& aliases(std::initializer_list<const char*> names) { return fields_.aliases(names), *this; }
  Record& argument() { return fields_.last().place = Place::argument, *this; }
  Record& items() { return fields_.last().place = Place::items, *this; }

  // These modify the record as a whole.
  Record& usage(const char* lua) { return fields_.info().example = lua, *this; }
  Record& shorthand(const char* field) { return fields_.info().shorthand = field, *this; }
  Record& broadcast() { return fields_.info().broadcast = true, *this; }
  Record& call_only() { return fields_.info().call_only = true, *this; }
  Record& removed(const char* name, const char* reason) {
    return fields_.info().removed.push_back({name, reason}), *this;
  }
  Record& foreign(const char* name, const char* advice) {
    return fields_.info().foreign.push_back({name, advice}), *this;
  }
  // Runs where every field was valid. Reports with reader.report_at(".field", ...).
  Record& check(Check check) { return checks_.push_back(check), *this; }
  Ref<T> done() { return make_type<Record<T>>(std::move(*this)); }

  std::string expected() const override { return fields_.expected(); }
  std::string lua_type() const override { return fields_.lua_type(); }
  bool is_leaf() const override { return false; }
  bool accepts(const Value& value) const override { return fields_.accepts(value); }
  const RecordInfo* record() const override { return &fields_.info(); }
  std::vector<const Node*> parts() const override { return fields_.parts(); }
  bool read(Reader& reader, const Value& value, T& out) const override {
    if (!fields_.read(reader, value, &out)) return false;
    size_t before = reader.mistakes.count();
    for (Check check : checks_) check(reader, out);
    return reader.mistakes.count() == before;
  }
  Json write(const T& in, Write what) const override { return fields_.write(&in, what); }
  Value assign(Reader& reader, const Assignment& assignment, const Value* current,
               std::span<const std::string> rest) const override {
    return fields_.assign(reader, assignment, current, rest);
  }
  void leaves(const Json& json, const std::string& path, const FieldInfo*, const LeafSink& sink) const override {
    fields_.leaves(json, path, sink);
  }

 private:
  static const T& defaults() {
    static const T defaults{};
    return defaults;
  }

  RecordFields fields_;
  std::vector<Check> checks_;
};

// An empty constructor means a plain table.
template <class T>
Record<T> record(const char* title, const char* constructor, const char* doc) {
  return Record<T>(title, constructor, doc);
}

} // namespace fvlm::recipe
