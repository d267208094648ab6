#include "recipe/schema/type.h"

#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <mutex>

namespace fvlm::recipe {

void keep(std::unique_ptr<const Node> type) {
  static std::mutex adding;
  static std::vector<std::unique_ptr<const Node>> kept;
  std::lock_guard lock(adding);
  kept.push_back(std::move(type));
}

Value Node::assign(Reader& reader, const Assignment& assignment, const Value*,
                   std::span<const std::string> rest) const {
  if (!rest.empty()) {
    reader.report(assignment.origin, fmt::format("has no part '{}'", rest[0]), "it is " + expected());
    return {};
  }
  return literal(assignment);
}

Value literal(const Assignment& assignment) {
  Json json = Json::parse(assignment.text, nullptr, false);
  if (json.is_discarded()) return {assignment.text, assignment.origin};
  return from_json(json, assignment.origin);
}

Value from_json(const Json& json, const Origin& origin) {
  switch (json.type()) {
  case Json::value_t::boolean:
    return {json.get<bool>(), origin};
  case Json::value_t::number_integer:
    return {json.get<int64_t>(), origin};
  case Json::value_t::number_unsigned:
    if (json.get<uint64_t>() > INT64_MAX) return {json.get<double>(), origin};
    return {json.get<int64_t>(), origin};
  case Json::value_t::number_float:
    return {json.get<double>(), origin};
  case Json::value_t::string:
    return {json.get<std::string>(), origin};
  case Json::value_t::array:
  case Json::value_t::object: {
    auto table = std::make_shared<Table>();
    table->origin = origin;
    if (json.is_array())
      for (const auto& item : json) table->items.push_back(from_json(item, origin));
    else
      for (const auto& [key, item] : json.items()) table->fields.emplace_back(key, from_json(item, origin));
    return {std::shared_ptr<const Table>(std::move(table)), origin};
  }
  default:
    return {std::monostate{}, origin};
  }
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts;
  std::string part;
  auto finish = [&] {
    if (!part.empty()) parts.push_back(std::exchange(part, {}));
  };
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '.') {
      finish();
    } else if (path[i] == '[') {
      finish();
      size_t end = path.find(']', i);
      if (end == std::string_view::npos) end = path.size();
      std::string_view inside = path.substr(i + 1, end - i - 1);
      if (inside.size() >= 2 && (inside.front() == '"' || inside.front() == '\''))
        inside = inside.substr(1, inside.size() - 2);
      parts.emplace_back(inside);
      i = end;
    } else {
      part += path[i];
    }
  }
  finish();
  return parts;
}

std::string lua_key(const std::string& key) {
  bool plain = !key.empty() && !std::isdigit(static_cast<unsigned char>(key[0])) &&
               std::ranges::all_of(key, [](unsigned char c) { return std::isalnum(c) || c == '_'; });
  return plain ? key : "[\"" + key + "\"]";
}

std::string as_lua(const Json& json) {
  if (json.is_null()) return "nil";
  if (json.is_number_float()) return shortest(json.get<double>());
  if (json.is_array() || json.is_object()) {
    std::vector<std::string> parts;
    if (json.is_array())
      for (const auto& item : json) parts.push_back(as_lua(item));
    else
      for (const auto& [key, item] : json.items()) parts.push_back(lua_key(key) + " = " + as_lua(item));
    return parts.empty() ? "{}" : "{ " + join(parts, ", ") + " }";
  }
  return json.dump();
}

std::string advise_key(std::string_view key, const std::vector<std::string>& known) {
  if (auto near = nearest(key, known)) return fmt::format("did you mean '{}'?", *near);
  return known.empty() ? "" : "known here: " + join(known, ", ");
}

std::string shortest(double number) {
  if (number == std::floor(number) && std::abs(number) < 1e15) return fmt::format("{:.0f}", number);
  std::string text = fmt::format("{}", number);
  if (size_t zero = text.find("e-0"); zero != std::string::npos) text.erase(zero + 2, 1);
  return text;
}

} // namespace fvlm::recipe
