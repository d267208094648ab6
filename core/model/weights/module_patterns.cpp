#include "model/weights/module_patterns.h"

#include "base/text.h"

#include <boost/regex.hpp>

#include <algorithm>
#include <cctype>

namespace fvlm {
namespace {

// Most expressions are names, which need no engine for regular expressions: in these a dot is any character.
bool matches_end(const std::string& expression, const std::string& module) {
  const bool is_name = std::ranges::all_of(
      expression, [](unsigned char letter) { return std::isalnum(letter) || letter == '_' || letter == '.'; });
  if (!is_name) return boost::regex_match(module, boost::regex("(?:.*\\.)?(?:" + expression + ")"));
  if (module.size() < expression.size()) return false;
  const size_t begin = module.size() - expression.size();
  return (begin == 0 || module[begin - 1] == '.') &&
         std::equal(expression.begin(), expression.end(), module.begin() + static_cast<std::ptrdiff_t>(begin),
                    [](char expected, char letter) { return expected == '.' || expected == letter; });
}

} // namespace

bool ModulePatterns::matches(const Pattern& pattern, const std::string& module) const {
  try {
    return matches_end(pattern.expression, module);
  } catch (const std::runtime_error& error) { // of the expression, or that matching takes too long
    throw Error(kind_, "the key {} of '{}' cannot be matched with names of modules: {}", shown(pattern.key), name_,
                error.what())
        .at(where_)
        .advise("write names of modules there, or a simpler regular expression");
  }
}

const ModulePatterns::Pattern* ModulePatterns::find(std::span<const std::string> names) const {
  const Pattern* found = nullptr;
  for (const Pattern& pattern : patterns_) {
    if (std::ranges::none_of(names, [&](const std::string& name) { return matches(pattern, name); })) continue;
    if (found && found->value != pattern.value)
      throw Error(kind_, "the keys {} and {} of '{}' both match the module {}, with {:g} and {:g}", shown(found->key),
                  shown(pattern.key), name_, shown(names.front()), found->value, pattern.value)
          .at(where_)
          .advise("write keys there of which one at most matches each module");
    found = &pattern;
  }
  return found;
}

} // namespace fvlm
