// A value whose type is one row of a table: one_of() with types that this room does not know.
#pragma once
#include "base/polymorphic.h"
#include "recipe/schema/containers.h"

#include <memory>
#include <vector>

namespace fvlm::recipe {

// A record whose struct derives from Base.
template <class Base>
struct Alternative : OneType<Polymorphic<Base>> {
  std::unique_ptr<Base> (*make)();
};

template <class Base, class T>
Alternative<Base> alternative(Ref<T> type) {
  using V = Polymorphic<Base>;
  return {{type,
           [](V& value) {
             value = V(T());
             return value.template as<T>();
           },
           [](const V& value) { return value.template as<T>(); }},
          []() -> std::unique_ptr<Base> { return std::make_unique<T>(); }};
}

template <class Base>
Ref<Polymorphic<Base>> registered(const std::vector<Alternative<Base>>& alternatives,
                                  PlainTable plain = PlainTable::mistake) {
  using V = Polymorphic<Base>;
  return make_type<OneOf<V>>(std::vector<OneType<V>>(alternatives.begin(), alternatives.end()), plain);
}

} // namespace fvlm::recipe
