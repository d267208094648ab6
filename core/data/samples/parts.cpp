#include "data/samples/parts.h"

#include "base/error.h"
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {

using Json = nlohmann::json;

void broken(std::string what) {
  throw Error(ErrorKind::data, std::move(what));
}

const std::string& text_in(const Json& value, const std::string& name) {
  if (!value.is_string()) wrong_type(name, value, "a text");
  return value.get_ref<const std::string&>();
}

const std::string& Parts::key(const std::string& part) const {
  auto field = fields_.find(part);
  return field == fields_.end() ? part : field->second;
}

bool Parts::is_named(const std::string& key) const {
  return std::ranges::any_of(fields_, [&](const auto& field) { return field.second == key; });
}

std::string escaped_key(const std::string& key) {
  std::string out;
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

std::string Parts::pointer(const std::string& part) const {
  return "/" + escaped_key(key(part));
}

const Json* Parts::find(const std::string& part) const {
  auto found = object_.find(key(part));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json& Parts::need(const std::string& part) const {
  const Json* found = find(part);
  if (!found) broken(fmt::format("{} is missing", name(part)));
  return *found;
}

std::string Parts::name(const std::string& part) const {
  auto field = fields_.find(part);
  if (field == fields_.end() || field->second == part) return fmt::format("'{}'", part);
  return fmt::format("'{}' (by the recipe the {})", field->second, part);
}

std::optional<std::string> Parts::text(const std::string& part) const {
  const Json* found = find(part);
  return found ? std::optional(text_in(*found, name(part))) : std::nullopt;
}

std::string Parts::need_text(const std::string& part) const {
  return text_in(need(part), name(part));
}

std::optional<int64_t> Parts::count(const std::string& part) const {
  const Json* found = find(part);
  if (!found) return std::nullopt;
  constexpr uint64_t most = uint64_t{1} << 40;
  if (!found->is_number_unsigned() || found->get<uint64_t>() > most) {
    if (found->is_number()) broken(fmt::format("{} is {}, and a count was expected", name(part), found->dump()));
    wrong_type(name(part), *found, "a count");
  }
  return static_cast<int64_t>(found->get<uint64_t>());
}

} // namespace fvlm
