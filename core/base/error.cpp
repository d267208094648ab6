#include "base/error.h"

namespace fvlm {

Error::Error(ErrorKind kind, std::string what) : kind_(kind), what_(std::move(what)) {}

Error& Error::at(std::string where) {
  where_ = std::move(where);
  return *this;
}

Error& Error::advise(std::string advice) {
  advice_ = std::move(advice);
  return *this;
}

std::string Error::text() const {
  std::string out = where_.empty() ? what_ : where_ + ": " + what_;
  if (!advice_.empty()) out += "\n  " + advice_;
  return out;
}

} // namespace fvlm
