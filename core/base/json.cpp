#include "base/json.h"

#include "base/error.h"
#include "base/file.h"

#include <set>
#include <vector>

namespace fvlm {
namespace {

using Json = nlohmann::json;

// Removes the library's prefix: "[json.exception.parse_error.101] parse error at line 1, column 2: ...".
std::string plain(std::string message) {
  if (message.starts_with('[')) message.erase(0, message.find("] ") + 2);
  return message;
}

// Reads a document without keeping it, and throws for what a parser of the library lets pass. The library's own
// callbacks would do, but they take a time that grows with the square of an array's length.
class StrictReader final : public nlohmann::json_sax<Json> {
 public:
  explicit StrictReader(const std::string& where) : where_(where) {}

  bool start_object(size_t) override {
    open();
    keys_.emplace_back();
    return true;
  }
  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second)
      throw Error(ErrorKind::data, "duplicate key {} in a JSON object", Json(name).dump()).at(where_);
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    open();
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  // Json::parse() comes to the same place and says why.
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  void open() {
    constexpr int max_depth = 64;
    if (++depth_ > max_depth)
      throw Error(ErrorKind::data, "the JSON is nested more than {} levels deep", max_depth).at(where_);
  }

  const std::string& where_;
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_; // of each open object
};

} // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  if (auto zero = text.find('\0'); zero != text.npos) // the parser would treat it as the end
    throw Error(ErrorKind::data, "invalid JSON: byte {} is 0", zero).at(where);
  StrictReader strict(where);
  (void)Json::sax_parse(text.begin(), text.end(), &strict);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& wrong) {
    throw Error(ErrorKind::data, "invalid JSON: " + plain(wrong.what())).at(where);
  }
}

nlohmann::json read_json_object(const std::filesystem::path& path, uint64_t max_bytes) {
  Json parsed = parse_json(read_file(path, max_bytes), path.string());
  if (!parsed.is_object())
    throw Error(ErrorKind::data, "expected a JSON object but got a JSON {}", parsed.type_name()).at(path.string());
  return parsed;
}

void wrong_type(const std::string& name, const Json& value, std::string_view expected) {
  const char* type = value.type_name();
  throw Error(ErrorKind::data, "{} is {} {}, and {} was expected", name, *type == 'a' || *type == 'o' ? "an" : "a",
              type, expected);
}

} // namespace fvlm
