// Collects all errors in one input, to report them together.
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

namespace fvlm {

class Problems {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    list_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  const std::vector<std::string>& list() const { return list_; }
  // Throws Error(data) with every problem, unless there is none.
  void raise(const std::string& where, const std::string& advice) const;

 private:
  std::vector<std::string> list_;
};

} // namespace fvlm
