#include "base/json.h"

#include "base/error.h"
#include "base/file.h"

#include <fmt/format.h>

#include <set>

namespace fvlm {
namespace {

using Json = nlohmann::json;

// Removes the library's prefix: "[json.exception.parse_error.101] parse error at line 1, column 2: ...".
std::string plain(std::string message) {
  if (message.starts_with('[')) message.erase(0, message.find("] ") + 2);
  return message;
}

} // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  constexpr int max_depth = 64;
  std::vector<std::set<std::string>> keys; // of each open object
  auto watch = [&](int level, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      if (level >= max_depth)
        throw Error(ErrorKind::data, fmt::format("the JSON is nested more than {} levels deep", max_depth)).at(where);
      if (event == Json::parse_event_t::object_start) keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw Error(ErrorKind::data, fmt::format("duplicate key {} in a JSON object", parsed.dump())).at(where);
    }
    return true;
  };
  if (auto zero = text.find('\0'); zero != text.npos) // the parser would treat it as the end
    throw Error(ErrorKind::data, fmt::format("invalid JSON: byte {} is 0", zero)).at(where);
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& wrong) {
    throw Error(ErrorKind::data, "invalid JSON: " + plain(wrong.what())).at(where);
  }
}

nlohmann::json read_json_object(const std::filesystem::path& path, uint64_t max_bytes) {
  Json parsed = parse_json(read_file(path, max_bytes), path.string());
  if (!parsed.is_object())
    throw Error(ErrorKind::data, fmt::format("expected a JSON object but got a JSON {}", parsed.type_name()))
        .at(path.string());
  return parsed;
}

} // namespace fvlm
