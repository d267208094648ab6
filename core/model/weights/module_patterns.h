// Numbers by module, as rank_pattern and alpha_pattern of PEFT have them.
#pragma once
#include "base/error.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fvlm {

class ModulePatterns {
 public:
  struct Pattern {
    std::string key, expression; // as it was written, and the regular expression that it stands for
    double value;
  };
  ModulePatterns() = default; // none
  // Errors are of this kind, at this place. `name`: what the table is called.
  ModulePatterns(std::string name, ErrorKind kind, std::string where)
      : name_(std::move(name)), where_(std::move(where)), kind_(kind) {}

  void add(Pattern pattern) { patterns_.push_back(std::move(pattern)); }
  const std::vector<Pattern>& all() const { return patterns_; }
  // The pattern that matches a module by one of its names, wholly or behind a dot, as PEFT's
  // re.match(rf"(.*\.)?({key})$", name); null: none does. Throws Error where patterns with different numbers do, and
  // for an expression that is none or too hard to match.
  const Pattern* find(std::span<const std::string> names) const;

 private:
  bool matches(const Pattern& pattern, const std::string& module) const;

  std::string name_, where_;
  ErrorKind kind_ = ErrorKind::data;
  std::vector<Pattern> patterns_;
};

} // namespace fvlm
