// Record<T>: a table of a recipe, field by field, bound to the members of the struct T.
//
//   Ref<Cosine> cosine() {
//     static const auto type = record<Cosine>("Cosine", "cosine", "Falls along a half cosine.")
//                                  .field("to_share", &Cosine::to_share, number(between(0, 1)), "Share of ... at the
//                                  end.") .done();
//     return type;
//   }
//
// A field's default is the member's initialiser.
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

// Where in the author's text a field's value stands.
enum class Place {
  key,      // lr = 1e-3
  argument, // fvlm.stage "align" { }
  items,    // the table's entries without a key
};

struct FieldInfo {
  std::string name, doc;
  const Node* node = nullptr;
  Json fallback; // the default; null: none
  std::string unit, example;
  std::string hint;                   // what to do where the value is wrong
  std::vector<std::string> elsewhere; // what other programs call it: recognised to suggest our name
  Place place = Place::key;
  bool required = false;
  std::string unless;   // required where the author wrote no field of this name
  bool derived = false; // computed, never read
  bool beside = false;  // cannot change the numbers of a run: not part of the Plan's hash
};

// A key that earlier versions knew. In a plan file of theirs it is passed over.
struct RemovedKey {
  std::string name, reason;
};

struct RecordInfo {
  std::string title;       // "Cosine": fvlm.Cosine in the editor
  std::string constructor; // "cosine"; empty: a plain table
  std::string doc, example;
  std::string shorthand;  // a value that is no table stands for this field
  bool each = false;      // a value that is no table is given to every field
  bool call_only = false; // fvlm.scale_lr(0.5): arguments, no table
  std::vector<FieldInfo> fields;
  std::vector<RemovedKey> removed;

  const FieldInfo* find(std::string_view name) const;
  const RemovedKey* find_removed(std::string_view name) const;
  std::vector<std::string> keys() const; // that an author may write
};

// What Record<T> does without knowing T: one set of functions for all the records there are.
class RecordFields {
 public:
  // Where a field lies in a record: so many bytes from its begin, or where `find` says.
  struct Access {
    ptrdiff_t offset = 0;
    void* (*find)(void* record, const std::string& name) = nullptr;
  };

  RecordFields(const char* title, const char* constructor, const char* doc);
  RecordFields(RecordFields&& other) noexcept;
  ~RecordFields();

  void add(std::string_view name, Access access, const Node& node, const void* defaults, std::string_view doc);
  FieldInfo& last() { return info_.fields.back(); }
  void elsewhere(std::initializer_list<const char*> names);
  RecordInfo& info() { return info_; }
  const RecordInfo& info() const { return info_; }

  bool read(Reader& reader, const Value& value, void* out) const;
  Json write(const void* in, Write what) const;
  Value assign(Reader& reader, const Assignment& assignment, const Value* current,
               std::span<const std::string> rest) const;
  void leaves(const Json& json, const std::string& path, const LeafSink& sink) const;
  bool takes(const Value& value) const;
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
  // Looks at fields together.
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

  // A field that is no member of its own: `get(record, name)` finds it.
  template <auto get, class M>
  Record& field_with(std::string_view name, Ref<M> type, std::string_view doc) {
    auto find = [](void* record, const std::string& name) -> void* {
      M& found = get(*static_cast<T*>(record), name);
      return &found;
    };
    fields_.add(name, {.find = find}, *type, &defaults(), doc);
    return *this;
  }

  // Of the field declared last.
  Record& required() { return fields_.last().required = true, *this; }
  Record& required_without(const char* other) { return fields_.last().unless = other, required(); }
  Record& derived() { return fields_.last().derived = true, *this; }
  Record& beside() { return fields_.last().beside = true, *this; }
  Record& unit(const char* unit) { return fields_.last().unit = unit, *this; }
  Record& example(const char* lua) { return fields_.last().example = lua, *this; }
  Record& hint(const char* advice) { return fields_.last().hint = advice, *this; }
  Record& elsewhere(std::initializer_list<const char*> names) { return fields_.elsewhere(names), *this; }
  Record& argument() { return fields_.last().place = Place::argument, *this; }
  Record& items() { return fields_.last().place = Place::items, *this; }

  // Of the table.
  Record& usage(const char* lua) { return fields_.info().example = lua, *this; }
  Record& shorthand(const char* field) { return fields_.info().shorthand = field, *this; }
  Record& each() { return fields_.info().each = true, *this; }
  Record& call_only() { return fields_.info().call_only = true, *this; }
  Record& removed(const char* name, const char* reason) {
    return fields_.info().removed.push_back({name, reason}), *this;
  }
  // Runs when each of the fields was good. Reports with reader.complain_at(".field", ...).
  Record& check(Check check) { return checks_.push_back(check), *this; }
  Ref<T> done() { return make_type<Record<T>>(std::move(*this)); }

  std::string expected() const override { return fields_.expected(); }
  std::string lua_type() const override { return fields_.lua_type(); }
  bool leaf() const override { return false; }
  bool takes(const Value& value) const override { return fields_.takes(value); }
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

// constructor "": a plain table.
template <class T>
Record<T> record(const char* title, const char* constructor, const char* doc) {
  return Record<T>(title, constructor, doc);
}

} // namespace fvlm::recipe
