// A value of some class derived from Base, copied along with whoever holds it.
#pragma once
#include <concepts>
#include <memory>
#include <utility>

namespace fvlm {

// Base has `std::unique_ptr<Base> clone() const`. Empty until it is given a value.
template <class Base>
class Polymorphic {
 public:
  Polymorphic() = default;
  template <std::derived_from<Base> T>
  Polymorphic(T value) : value_(std::make_unique<T>(std::move(value))) {} // a value converts as into a std::variant
  explicit Polymorphic(std::unique_ptr<Base> value) : value_(std::move(value)) {}
  Polymorphic(const Polymorphic& other) : value_(other.value_ ? other.value_->clone() : nullptr) {}
  Polymorphic(Polymorphic&&) noexcept = default;
  Polymorphic& operator=(Polymorphic other) noexcept {
    value_ = std::move(other.value_);
    return *this;
  }
  ~Polymorphic() = default;

  explicit operator bool() const { return value_ != nullptr; }
  const Base& operator*() const { return *value_; }
  Base& operator*() { return *value_; }
  const Base* operator->() const { return value_.get(); }
  Base* operator->() { return value_.get(); }
  // Null where the value is not a T.
  template <std::derived_from<Base> T>
  const T* as() const {
    return dynamic_cast<const T*>(value_.get());
  }
  template <std::derived_from<Base> T>
  T* as() {
    return dynamic_cast<T*>(value_.get());
  }

 private:
  std::unique_ptr<Base> value_;
};

// Gives a class derived from Base its clone(), which Root declares.
template <class T, class Base, class Root = Base>
class Cloneable : public Base {
 public:
  std::unique_ptr<Root> clone() const override { return std::make_unique<T>(static_cast<const T&>(*this)); }
};

} // namespace fvlm
