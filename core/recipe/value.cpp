#include "recipe/value.h"

#include <fmt/format.h>

#include <array>

namespace fvlm::recipe {

std::string where(const Origin& origin) {
  return origin.line > 0 ? fmt::format("{}:{}", origin.file, origin.line) : origin.file;
}

std::string written_at(const Origin& origin) {
  return origin.library.empty() ? where(origin) : fmt::format("{} via {}", origin.library, where(origin));
}

std::string kind_name(const Value& value) {
  static constexpr std::array<const char*, 7> names = {"nil",      "a boolean",  "a number", "a number",
                                                       "a string", "a function", "a table"};
  if (auto* table = std::get_if<std::shared_ptr<const Table>>(&value.data); table && !(*table)->constructor.empty())
    return fmt::format("fvlm.{} {{ }}", (*table)->constructor);
  return names[value.data.index()];
}

} // namespace fvlm::recipe
