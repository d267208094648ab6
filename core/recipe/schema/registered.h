// A value whose type is one row of a table: like OneOf, but with alternatives that this room does not know.
#pragma once
#include "base/polymorphic.h"
#include "recipe/schema/containers.h"

#include <memory>
#include <vector>

namespace fvlm::recipe {

// A record whose struct derives from Base.
template <class Base>
struct Alternative {
  const Node* node;
  std::unique_ptr<Base> (*make)();
  void* (*in)(Base&); // the struct that `node` reads; null where the value is one of another alternative
};

template <class Base, class T>
Alternative<Base> alternative(Ref<T> type) {
  return {type, []() -> std::unique_ptr<Base> { return std::make_unique<T>(); },
          [](Base& value) -> void* { return dynamic_cast<T*>(&value); }};
}

// What a table without a constructor stands for.
enum class PlainTable {
  mistake,
  first, // alternative, which is written without its `kind` too
};

template <class Base>
class Registered : public Type<Polymorphic<Base>> {
 public:
  Registered(std::vector<Alternative<Base>> alternatives, PlainTable plain)
      : alternatives_(std::move(alternatives)), plain_(plain) {
    for (const auto& each : alternatives_) nodes_.push_back(each.node);
  }
  std::string expected() const override { return one_of_detail::expected(nodes_); }
  std::string lua_type() const override { return one_of_detail::lua_type(nodes_); }
  bool is_leaf() const override { return false; }
  bool accepts(const Value& value) const override {
    return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node* node) { return node->accepts(value); });
  }
  std::vector<const Node*> parts() const override { return nodes_; }
  bool read(Reader& reader, const Value& value, Polymorphic<Base>& out) const override {
    const auto index = is_first(value) ? std::optional<size_t>(0) : one_of_detail::pick(reader, value, nodes_);
    if (!index) return false;
    const Alternative<Base>& chosen = alternatives_[*index];
    if (writes_kind(chosen))
      reader.within(".kind", [&] {
        reader.record_origin(value.origin);
        return true;
      });
    out = Polymorphic<Base>(chosen.make());
    return chosen.node->read_at(reader, value, chosen.in(*out));
  }
  Json write(const Polymorphic<Base>& in, Write what) const override {
    Json json;
    for (const auto& each : alternatives_)
      if (const void* at = in ? each.in(const_cast<Base&>(*in)) : nullptr) { // only read
        if (writes_kind(each)) json["kind"] = each.node->record()->constructor;
        json.update(each.node->write_at(at, what));
      }
    return json;
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
  bool writes_kind(const Alternative<Base>& alternative) const {
    return plain_ == PlainTable::mistake || &alternative != &alternatives_.front();
  }
  bool is_first(const Value& value) const {
    return plain_ == PlainTable::first && as_table(value) && constructor_of(value).empty();
  }

  std::vector<Alternative<Base>> alternatives_;
  PlainTable plain_;
  std::vector<const Node*> nodes_;
};

template <class Base>
Ref<Polymorphic<Base>> registered(std::vector<Alternative<Base>> alternatives, PlainTable plain = PlainTable::mistake) {
  return make_type<Registered<Base>>(std::move(alternatives), plain);
}

} // namespace fvlm::recipe
