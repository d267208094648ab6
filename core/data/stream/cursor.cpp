#include "data/stream/cursor.h"

#include "base/error.h"
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace fvlm {
namespace {

constexpr size_t max_waiting = 1 << 20;

std::string bits_text(const std::vector<bool>& bits) {
  std::string digits;
  for (bool bit : bits) digits += bit ? '1' : '0';
  return digits;
}

// Checkpoints of before these counts were kept say only how many were broken and how many left out.
template <class Damaged>
void read_skipped(const nlohmann::json& json, Cursor& cursor, const Damaged& damaged) {
  if (const auto cut = json.find("cut"); cut != json.end()) {
    if (!cut->is_number_unsigned()) throw damaged("'cut' is no count");
    cursor.cut = cut->get<int64_t>();
  }
  const auto skipped = json.find("skipped");
  if (skipped == json.end()) {
    cursor.skipped[static_cast<size_t>(SkipReason::text)] = cursor.broken;
    cursor.skipped[static_cast<size_t>(SkipReason::overlong)] = cursor.left_out;
    return;
  }
  const auto is_count = [](const nlohmann::json& count) { return count.is_number_unsigned(); };
  if (!skipped->is_array() || skipped->size() > skip_reasons ||
      !std::all_of(skipped->begin(), skipped->end(), is_count))
    throw damaged("'skipped' is no list of counts");
  for (size_t i = 0; i < skipped->size(); ++i) cursor.skipped[i] = (*skipped)[i].get<int64_t>();
  cursor.undecodable = cursor.skipped[static_cast<size_t>(SkipReason::media)]; // in earlier versions all of those
  if (const auto found = json.find("undecodable"); found != json.end()) {
    if (!is_count(*found)) throw damaged("'undecodable' is no count");
    cursor.undecodable = found->get<int64_t>();
  }
}

} // namespace

void Cursor::add_undecodable(int64_t count) {
  undecodable += count;
  broken += count;
  skipped[static_cast<size_t>(SkipReason::media)] += count;
}

std::string Cursor::text() const {
  nlohmann::json json{{"steps", steps},       {"samples", samples},      {"read", read},
                      {"broken", broken},     {"left_out", left_out},    {"position", order.position},
                      {"drawn", order.drawn}, {"done", bits_text(done)}, {"of", fmt::format("{:016x}", fingerprint)}};
  if (broken + left_out > 0) json["skipped"] = skipped;
  if (broken > 0) json["undecodable"] = undecodable;
  if (cut > 0) json["cut"] = cut;
  if (offset > 0) json["offset"] = offset;
  return json.dump();
}

Cursor Cursor::parse(std::string_view text, const std::string& where) {
  const auto json = parse_json(text, where);
  const auto damaged = [&](const std::string& what) {
    return Error(ErrorKind::data, "not a data cursor: " + what).at(where).advise("resume from another checkpoint");
  };
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer() || *found < 0)
      throw damaged(fmt::format("'{}' is no count", key));
    return found->get<int64_t>();
  };
  if (!json.is_object()) throw damaged("no JSON object");
  Cursor cursor;
  cursor.steps = number("steps");
  cursor.samples = number("samples");
  cursor.read = number("read");
  cursor.broken = number("broken");
  cursor.left_out = number("left_out");
  cursor.order.position = number("position");
  if (json.contains("offset")) cursor.offset = number("offset");
  read_skipped(json, cursor, damaged);
  if (!json.contains("drawn") || !json["drawn"].is_array()) throw damaged("'drawn' is no list");
  for (const auto& count : json["drawn"]) {
    if (!count.is_number_integer() || count < 0) throw damaged("'drawn' holds no counts");
    cursor.order.drawn.push_back(count.get<int64_t>());
  }
  const auto word = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : "?";
  };
  const std::string done = word("done"), of = word("of");
  if (done.size() > max_waiting || done.find_first_not_of("01") != std::string::npos)
    throw damaged("'done' is no row of bits");
  for (char bit : done) cursor.done.push_back(bit == '1');
  const auto [end, error] = std::from_chars(of.data(), of.data() + of.size(), cursor.fingerprint, 16);
  if (error != std::errc() || end != of.data() + of.size()) throw damaged("'of' is no fingerprint");
  return cursor;
}

} // namespace fvlm
