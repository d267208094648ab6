#include "data/samples/input_content.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/samples/turns.h"
#include "data/visual_marks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace fvlm {
namespace {

using Json = nlohmann::json;
using Role = Sample::Role;

constexpr size_t max_bytes = size_t{4} << 20; // of a text

bool has_value(const Json* value) {
  return value && !value->is_null();
}

// As Hugging Face's datasets write an image: { bytes, path }.
bool is_picture(const Json& value) {
  return value.is_object() && !value.contains("text") && (value.contains("bytes") || value.contains("path"));
}

// Among the contents of turns.
bool has_pictures(const Json& turns) {
  const auto is_one = [](const Json& part) {
    const std::string type = part.is_object() && part.contains("type") && part["type"].is_string() ? part["type"] : "";
    return type.starts_with("image") || type.starts_with("video");
  };
  return std::ranges::any_of(turns, [&](const Json& turn) {
    const auto content = turn.is_object() ? turn.find("content") : turn.end();
    return content != turn.end() && content->is_array() && std::ranges::any_of(*content, is_one);
  });
}

class InputsReader {
 public:
  InputsReader(const Parts& parts, const plan::Mix& mix, const plan::VisualRows& visual_rows)
      : parts_(parts), mix_(mix), keeps_marks_(visual_rows.in_place) {}

  std::vector<InputContent> read() {
    const char* query = parts_.has("query") ? "query" : "anchor";
    if (!parts_.has(query) && !parts_.has("query_image")) parts_.need("query"); // which says that it is missing
    add(Role::query, query, "query_image");
    add(Role::positive, "positive", "positive_image");
    add_negatives();
    return std::move(inputs_);
  }

 private:
  void add(Role role, const std::string& part, const std::string& picture) {
    InputContent input{.role = role, .name = parts_.has(part) ? parts_.name(part) : parts_.name(picture)};
    if (const Json* found = parts_.find(picture)) input.media.push_back({found, parts_.pointer(picture)});
    const Json* found = parts_.find(part);
    input.is_missing = role == Role::positive && !found && input.media.empty();
    if (input.is_missing) input.name = parts_.name(part);
    read(found, parts_.pointer(part), std::move(input));
  }

  void add_negatives() {
    const int64_t most = mix_.negatives.value_or(1);
    std::vector<std::string> names{"negative"};
    for (int64_t number = 1; parts_.has(fmt::format("negative_{}", number)); ++number)
      names.push_back(fmt::format("negative_{}", number));
    names.emplace_back("negatives");
    for (const std::string& part : names) {
      const Json* found = parts_.find(part);
      const bool is_list = found && found->is_array() && !is_turns(*found);
      if (part == "negative" && !is_list && (found || parts_.has("negative_image")) && most > 0) {
        add(Role::negative, part, "negative_image");
        continue;
      }
      for (size_t i = 0; found && i < (is_list ? found->size() : 1) && negatives_ < most; ++i)
        read(is_list ? &(*found)[i] : found, parts_.pointer(part) + (is_list ? fmt::format("/{}", i) : ""),
             {.role = Role::negative,
              .name = is_list ? fmt::format("number {} of {}", i, parts_.name(part)) : parts_.name(part)});
    }
  }

  // `value`: null where pictures alone are given.
  void read(const Json* value, const std::string& pointer, InputContent input) {
    negatives_ += input.role == Role::negative;
    std::string text;
    if (value && is_turns(*value)) {
      if (!input.media.empty())
        broken(fmt::format("{} is a list of turns, which names its pictures itself", input.name));
      if (has_pictures(*value)) input.media.push_back({value, pointer});
      input.conversation = conversation(*value, input.name);
      inputs_.push_back(std::move(input));
      return;
    }
    if (value && value->is_string())
      text = value->get<std::string>();
    else if (value && (value->is_binary() || is_picture(*value)))
      input.media.push_back({value, pointer});
    else if (value && value->is_object())
      text = text_and_pictures(*value, pointer, input);
    else if (value)
      wrong_type(input.name, *value, "a text, a list of turns or a picture");
    if (text.size() > max_bytes) broken(fmt::format("{} is longer than {} bytes", input.name, max_bytes));
    const bool shows = !input.media.empty() || input.is_missing;
    if (!shows && trimmed(text).empty()) broken(fmt::format("{} is empty, and there is nothing to embed", input.name));
    if (shows)
      input.conversation = {mix_.system, {{"user", keeps_marks_ ? std::move(text) : trimmed(without_marks(text))}}};
    else
      input.text = std::move(text);
    inputs_.push_back(std::move(input));
  }

  static std::string text_and_pictures(const Json& value, const std::string& pointer, InputContent& input) {
    for (const char* key : {"image", "images", "video"})
      if (const auto found = value.find(key); found != value.end() && has_value(&*found))
        input.media.push_back({&*found, fmt::format("{}/{}", pointer, key), *key == 'v'});
    const auto text = value.find("text");
    const bool has_text = text != value.end() && has_value(&*text);
    if (!has_text && input.media.empty())
      broken(fmt::format("{} is an object with neither text, image, images, video, bytes nor a path", input.name));
    return has_text ? text_in(*text, "'text' of " + input.name) : "";
  }

  Conversation conversation(const Json& turns, const std::string& name) const {
    Conversation talk{mix_.system, {}};
    for (size_t i = 0; i < turns.size(); ++i) {
      Turn turn = parse_turn(turns[i], fmt::format("turn {} of {}", i, name), true);
      if (turn.role == "user" && !keeps_marks_) turn.text = without_marks(turn.text);
      if (i == 0 && turn.role == "system")
        talk.system = std::move(turn.text);
      else
        talk.turns.push_back(std::move(turn));
    }
    if (talk.turns.empty()) broken(fmt::format("{} has no turn but the system's", name));
    return talk;
  }

  const Parts& parts_;
  const plan::Mix& mix_;
  bool keeps_marks_;
  int64_t negatives_ = 0;
  std::vector<InputContent> inputs_;
};

} // namespace

bool has_inputs(const Parts& parts) {
  constexpr std::array queries{"query", "anchor", "query_image"};
  constexpr std::array found{"positive", "positive_image"};
  const auto has = [&](const char* part) { return parts.has(part); };
  const auto is_mapped = [&](const char* part) { return parts.is_mapped(part); };
  if (std::ranges::any_of(queries, is_mapped) || std::ranges::any_of(found, is_mapped)) return true;
  return std::ranges::any_of(queries, has) && std::ranges::any_of(found, has);
}

std::vector<InputContent> parse_inputs(const Parts& parts, const plan::Mix& mix, const plan::VisualRows& visual_rows) {
  return InputsReader(parts, mix, visual_rows).read();
}

} // namespace fvlm
