#include "base/error.h"

namespace fvlm {

const char* kind_name(ErrorKind kind) {
  switch (kind) {
  case ErrorKind::internal:
    break;
  case ErrorKind::usage:
    return "usage";
  case ErrorKind::recipe:
    return "recipe";
  case ErrorKind::data:
    return "data";
  case ErrorKind::plugin:
    return "plugin";
  case ErrorKind::device:
    return "device";
  case ErrorKind::output:
    return "output";
  case ErrorKind::diverged:
    return "diverged";
  case ErrorKind::stopped:
    return "stopped";
  }
  return "internal";
}

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
