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

#include <fmt/format.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
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
  std::shared_ptr<const Node> node;
  Json fallback; // the default; null: none
  std::string unit, example;
  std::vector<std::string> elsewhere; // what other programs call it: recognised to suggest our name
  Place place = Place::key;
  bool required = false;
  bool derived = false; // computed, never read
  bool beside = false;  // cannot change the numbers of a run: not part of the Plan's hash
};

struct RecordInfo {
  std::string title;       // "Cosine": fvlm.Cosine in the editor
  std::string constructor; // "cosine"; empty: a plain table
  std::string doc, example;
  std::string shorthand;  // a value that is no table stands for this field
  bool each = false;      // a value that is no table is given to every field
  bool call_only = false; // fvlm.scale_lr(0.5): arguments, no table
  std::vector<FieldInfo> fields;

  const FieldInfo* find(std::string_view name) const;
  std::vector<std::string> keys() const; // that an author may write
  void add(std::string name, std::shared_ptr<const Node> type, Json fallback, std::string doc);
};

// What Record<T> does without knowing T.
namespace record_detail {
using ReadField = std::function<bool(size_t field, const Value&)>;
bool read(Reader& reader, const Value& value, const RecordInfo& info, const ReadField& read_field);
Value assign(Reader& reader, const Assignment& assignment, const Value* current, std::span<const std::string> rest,
             const RecordInfo& info);
void leaves(const Json& json, const std::string& path, const RecordInfo& info, const LeafSink& sink);
bool takes(const Value& value, const RecordInfo& info);
std::string expected(const RecordInfo& info);
std::string lua_type(const RecordInfo& info);
} // namespace record_detail

template <class T>
class Record : public Type<T> {
 public:
  Record(std::string title, std::string constructor, std::string doc) {
    info_.title = std::move(title);
    info_.constructor = std::move(constructor);
    info_.doc = std::move(doc);
  }

  template <class M, class Owner>
  requires std::derived_from<T, Owner> Record& field(const std::string& name, M Owner::*member, const Ref<M>& type,
                                                     const std::string& doc) {
    M T::*own = member;
    return add(name, std::make_unique<MemberAccess<M>>(own, type), type, doc);
  }

  // A field that is no member of its own: `get(record, name)` finds it.
  template <class M>
  Record& field_with(const std::string& name, M& (*get)(T&, const std::string&), const Ref<M>& type,
                     const std::string& doc) {
    auto access = std::make_unique<NamedAccess<M>>(get, name, type);
    return add(name, std::move(access), type, doc);
  }

  // Of the field declared last.
  Record& required() { return last().required = true, *this; }
  Record& derived() { return last().derived = true, *this; }
  Record& beside() { return last().beside = true, *this; }
  Record& unit(const std::string& unit) { return last().unit = unit, *this; }
  Record& example(const std::string& lua) { return last().example = lua, *this; }
  Record& elsewhere(const std::vector<std::string>& names) { return last().elsewhere = names, *this; }
  Record& argument() { return last().place = Place::argument, *this; }
  Record& items() { return last().place = Place::items, *this; }

  // Of the table.
  Record& usage(std::string lua) { return info_.example = std::move(lua), *this; }
  Record& shorthand(std::string field) { return info_.shorthand = std::move(field), *this; }
  Record& each() { return info_.each = true, *this; }
  Record& call_only() { return info_.call_only = true, *this; }
  // Looks at fields together; runs when each of them was good. Reports with reader.complain_at(".field", ...).
  Record& check(std::function<void(Reader&, const T&)> check) { return checks_.push_back(std::move(check)), *this; }
  Ref<T> done() { return std::make_shared<Record<T>>(std::move(*this)); }

  std::string expected() const override { return record_detail::expected(info_); }
  std::string lua_type() const override { return record_detail::lua_type(info_); }
  bool leaf() const override { return false; }
  bool takes(const Value& value) const override { return record_detail::takes(value, info_); }
  const RecordInfo* record() const override { return &info_; }
  std::vector<const Node*> parts() const override {
    std::vector<const Node*> all;
    for (const auto& field : info_.fields) all.push_back(field.node.get());
    return all;
  }
  bool read(Reader& reader, const Value& value, T& out) const override {
    bool good = record_detail::read(reader, value, info_,
                                    [&](size_t i, const Value& part) { return fields_[i]->read(reader, part, out); });
    if (!good) return false;
    size_t before = reader.mistakes.list().size();
    for (const auto& check : checks_) check(reader, out);
    return reader.mistakes.list().size() == before;
  }
  Json write(const T& in, Write what) const override {
    Json json = Json::object();
    for (size_t i = 0; i < fields_.size(); ++i) {
      const FieldInfo& field = info_.fields[i];
      if (what == Write::results && (field.beside || field.derived)) continue;
      Json value = fields_[i]->write(in, what);
      if (!value.is_null()) json[field.name] = std::move(value);
    }
    return json;
  }
  Value assign(Reader& reader, const Assignment& assignment, const Value* current,
               std::span<const std::string> rest) const override {
    return record_detail::assign(reader, assignment, current, rest, info_);
  }
  void leaves(const Json& json, const std::string& path, const FieldInfo*, const LeafSink& sink) const override {
    record_detail::leaves(json, path, info_, sink);
  }

 private:
  // Reads and writes one field of a T; null JSON where the field has no value.
  struct Access {
    virtual ~Access() = default;
    virtual bool read(Reader& reader, const Value& value, T& out) const = 0;
    virtual Json write(const T& in, Write what) const = 0;
  };
  template <class M>
  struct MemberAccess final : Access {
    MemberAccess(M T::*member, Ref<M> type) : member(member), type(std::move(type)) {}
    bool read(Reader& reader, const Value& value, T& out) const override {
      return type->read(reader, value, out.*member);
    }
    Json write(const T& in, Write what) const override { return write_field(*type, in.*member, what); }
    M T::*member;
    Ref<M> type;
  };
  template <class M>
  struct NamedAccess final : Access {
    NamedAccess(M& (*get)(T&, const std::string&), std::string name, Ref<M> type)
        : get(get), name(std::move(name)), type(std::move(type)) {}
    bool read(Reader& reader, const Value& value, T& out) const override {
      return type->read(reader, value, get(out, name));
    }
    Json write(const T& in, Write what) const override {
      return write_field(*type, get(const_cast<T&>(in), name), what);
    }
    M& (*get)(T&, const std::string&);
    std::string name;
    Ref<M> type;
  };
  template <class M>
  static Json write_field(const Type<M>& type, const M& value, Write what) {
    return type.present(value) ? type.write(value, what) : Json();
  }

  Record& add(const std::string& name, std::unique_ptr<Access> access, const std::shared_ptr<const Node>& type,
              const std::string& doc) {
    static const T defaults{};
    info_.add(name, type, access->write(defaults, Write::everything), doc);
    fields_.push_back(std::move(access));
    return *this;
  }
  FieldInfo& last() { return info_.fields.back(); }

  RecordInfo info_;
  std::vector<std::unique_ptr<Access>> fields_;
  std::vector<std::function<void(Reader&, const T&)>> checks_;
};

// constructor "": a plain table.
template <class T>
Record<T> record(std::string title, std::string constructor, std::string doc) {
  return Record<T>(std::move(title), std::move(constructor), std::move(doc));
}

} // namespace fvlm::recipe
