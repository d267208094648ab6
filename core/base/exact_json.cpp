#include "base/exact_json.h"

#include <utility>
#include <vector>

namespace fvlm {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t deepest = 256, most_keys = 1024;

class Reader : public nlohmann::json_sax<Json> {
 public:
  Json root = Json::value_t::discarded;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t, const string_t& text) override {
    return add(Json::binary({text.begin(), text.end()}));
  }
  bool string(string_t& text) override { return add(std::move(text)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return open_.back()->size() < most_keys;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  Json& place(Json value) {
    if (open_.empty()) return root = std::move(value);
    Json& around = *open_.back();
    if (around.is_object()) return around[key_] = std::move(value);
    around.push_back(std::move(value));
    return around.back();
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == deepest) return false;
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<Json*> open_;
  std::string key_;
};

} // namespace

Json exact_json(std::string_view text) {
  Reader reader;
  if (!Json::sax_parse(text, &reader)) return Json::value_t::discarded;
  return std::move(reader.root);
}

bool is_exact_number(const Json& value) {
  return value.is_number() || value.is_binary();
}

std::string exact_text(const Json& value) {
  if (value.is_binary()) return {value.get_binary().begin(), value.get_binary().end()};
  if (!value.is_structured()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out(1, value.is_object() ? '{' : '[');
  for (const auto& [key, member] : value.items()) {
    if (out.size() > 1) out += ',';
    if (value.is_object()) out += exact_text(key) + ':';
    out += exact_text(member);
  }
  return out += value.is_object() ? '}' : ']';
}

} // namespace fvlm
