#include "base/problems.h"

#include "base/error.h"

namespace fvlm {

void Problems::raise(const std::string& where, const std::string& advice) const {
  constexpr size_t most = 40;
  if (list_.empty()) return;
  std::string what = list_[0];
  if (list_.size() > 1) {
    what = fmt::format("{} things are wrong", list_.size());
    for (size_t i = 0; i < std::min(list_.size(), most); ++i) what += "\n  " + list_[i];
    if (list_.size() > most) what += fmt::format("\n  and {} more", list_.size() - most);
  }
  throw Error(ErrorKind::data, what).at(where).advise(advice);
}

} // namespace fvlm
