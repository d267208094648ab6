// Turns of conversations: who says what, and whether it is learnt.
#include "data/samples/turns.h"

#include "base/error.h"
#include "base/exact_json.h"
#include "base/json.h"
#include "base/text.h"
#include "data/samples/parts.h"
#include "data/visual_marks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

namespace fvlm {
namespace {

using Json = nlohmann::json;

// By their names in axolotl, OpenAI's fine-tuning and ms-swift.
constexpr std::array turn_flags = {"train", "weight", "loss"};
constexpr const char* flags_of_parts = "train_detail"; // of axolotl

// Null where it is missing, or what a table has in the place of what is missing.
const Json* present(const Json& value, const char* key) {
  const auto found = value.find(key);
  return found == value.end() || found->is_null() || (found->is_array() && found->empty()) ? nullptr : &*found;
}

std::string role_of(const std::string& role, const std::string& name) {
  if (role == "human" || role == "user") return "user";
  if (role == "gpt" || role == "assistant") return "assistant";
  if (role == "system" || role == "tool") return role;
  broken(
      fmt::format("{} has the role '{}', which is none of user, assistant, system and tool", name, role.substr(0, 40)));
}

// Of a message in the form of OpenAI: what chat templates read about tools. Null content stays null.
std::shared_ptr<const nlohmann::ordered_json> tool_fields(const Json& value, const std::string& role,
                                                          const std::string& name) {
  auto fields = nlohmann::ordered_json::object();
  if (const Json* calls = role == "assistant" ? present(value, "tool_calls") : nullptr) {
    const std::string named = fmt::format("'tool_calls' of {}", name);
    auto list = list_with_order(*calls, named);
    for (const auto& call : list)
      if (!call.is_object()) wrong_type("a call of " + named, call, "an object");
    if (!list.empty()) fields["tool_calls"] = std::move(list);
    if (!value.contains("content") || value["content"].is_null()) fields["content"] = nullptr;
  }
  for (const char* key : {"name", "tool_call_id"})
    if (const Json* found = role == "tool" ? present(value, key) : nullptr)
      fields[key] = text_in(*found, fmt::format("'{}' of {}", key, name));
  return fields.empty() ? nullptr : std::make_shared<const nlohmann::ordered_json>(std::move(fields));
}

// Texts that follow each other are one.
void append_part(TurnPart::Kind kind, const std::string& text, std::vector<TurnPart>& parts) {
  if (kind == TurnPart::Kind::text && !parts.empty() && parts.back().kind == kind)
    parts.back().text += text;
  else
    parts.push_back({kind, text});
}

// A text, or a list of parts: of text, of images and videos, which lie beside the JSON and may leave a mark, and in
// an answer of code and its outputs.
void read_content(const Json& value, const std::string& name, bool keeps_marks, Turn& turn) {
  if (!value.is_array()) {
    turn.text = text_in(value, name);
    return;
  }
  const bool is_answer = turn.role == "assistant", with_marks = keeps_marks && turn.role == "user";
  bool uses_tools = false;
  for (const auto& part : value) {
    if (!part.is_object() || !part.contains("type")) broken(fmt::format("{} has a part without a type", name));
    const std::string& type = text_in(part["type"], "the type of a part of " + name);
    const bool is_code = type == "python", is_output = type == "python_output";
    if ((is_code || is_output) && !is_answer)
      broken(fmt::format("{} has a part of type {}, which only the assistant's turns have", name, type));
    if (type == "text" || is_code || is_output) {
      if (!part.contains("text")) broken(fmt::format("{} has a part of type {} without 'text'", name, type));
      const std::string& text = text_in(part["text"], "the text of a part of " + name);
      turn.text += text;
      append_part(is_code     ? TurnPart::Kind::code
                  : is_output ? TurnPart::Kind::output
                              : TurnPart::Kind::text,
                  text, turn.parts);
      uses_tools = uses_tools || is_code || is_output;
    } else if (type.starts_with("image") || type.starts_with("video")) {
      if (with_marks) turn.text += type.starts_with("image") ? image_mark : video_mark;
    } else {
      broken(fmt::format("{} has a part of type '{}', which is none of text, image{} video{}", name, type.substr(0, 40),
                         is_answer ? "," : " and", is_answer ? ", python and python_output" : ""));
    }
  }
  if (!uses_tools) turn.parts.clear();
}

bool is_on(const Json& flag, bool is_number, const std::string& name) {
  const char* expected = is_number ? "0 or 1" : "true or false";
  if (!flag.is_number() && !flag.is_boolean()) wrong_type(name, flag, expected);
  if (flag.is_number() != is_number || (is_number && flag != 0 && flag != 1))
    broken(fmt::format("{} is {}, and {} was expected: an answer is learnt or it is not", name, flag.dump(), expected));
  return is_number ? flag == 1 : flag.get<bool>();
}

// A flag that is on asks for more than is learnt of a turn that is no answer; one that is off says what is so.
bool is_learnt(const Json& value, const std::string& role, const std::string& name) {
  if (present(value, flags_of_parts))
    broken(fmt::format("{} has '{}', and an answer is learnt whole or not at all: expected 'train'", name,
                       flags_of_parts));
  std::optional<bool> learnt;
  std::string first;
  for (const std::string key : turn_flags) {
    const Json* flag = present(value, key.c_str());
    if (!flag) continue;
    const bool on = is_on(*flag, key == "weight", fmt::format("'{}' of {}", key, name));
    if (learnt && *learnt != on) broken(fmt::format("'{}' and '{}' of {} contradict each other", first, key, name));
    if (on && role != "assistant")
      throw Error(ErrorKind::data, "'{}' of {} says that it is learnt, and its role is {}: only answers are", key, name,
                  role)
          .advise("remove the flag, or set it on turns of the assistant alone");
    if (!learnt) learnt = on, first = key;
  }
  return learnt.value_or(true);
}

} // namespace

nlohmann::ordered_json list_with_order(const Json& value, const std::string& name) {
  auto list = value.is_string() ? exact_json(value.get_ref<const std::string&>()) : in_usual_order(value);
  if (list.is_discarded()) broken(fmt::format("{} is a text, and no JSON", name));
  if (!list.is_array()) wrong_type(name, list, "a list");
  return list;
}

Turn parse_turn(const Json& value, const std::string& name, bool keeps_marks) {
  if (!value.is_object()) wrong_type(name, value, "an object");
  const bool is_shared = value.contains("from") && !value.contains("role");
  const char *role_key = is_shared ? "from" : "role", *text_key = is_shared ? "value" : "content";
  const auto member = [&](const char* key) -> const Json& {
    auto found = value.find(key);
    if (found == value.end()) broken(fmt::format("{} has no '{}'", name, key));
    return *found;
  };
  Turn made{role_of(text_in(member(role_key), fmt::format("'{}' of {}", role_key, name)), name), {}, 0, {}, {}};
  made.is_learnt = is_learnt(value, made.role, name);
  made.fields = tool_fields(value, made.role, name);
  const auto written = value.find(text_key);
  if (made.fields && (written == value.end() || written->is_null())) return made; // a call of a tool alone
  read_content(member(text_key), fmt::format("'{}' of {}", text_key, name), keeps_marks, made);
  const auto is_said = [](const TurnPart& part) {
    return part.kind != TurnPart::Kind::output && !trimmed(part.text).empty();
  };
  const bool has_answer =
      made.parts.empty() ? !trimmed(made.text).empty() : std::any_of(made.parts.begin(), made.parts.end(), is_said);
  if (made.role == "assistant" && made.is_learnt && !made.fields && !has_answer)
    broken(fmt::format("{} is an empty answer, and there is nothing to learn", name));
  return made;
}

bool is_turns(const Json& value) {
  return value.is_array() && !value.empty() && value[0].is_object() &&
         (value[0].contains("role") || value[0].contains("from"));
}

void copy_turn_flags(const Json& from, Json& to) {
  for (const char* key : {turn_flags[0], turn_flags[1], turn_flags[2], flags_of_parts})
    if (const Json* flag = present(from, key)) to[key] = *flag;
}

} // namespace fvlm
