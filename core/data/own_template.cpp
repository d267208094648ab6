#include "data/own_template.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "data/tool_tokens.h"
#include "data/unicode.h"
#include "data/visual_marks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace fvlm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Stands behind the first character of each special token that a turn spells, while the template is rendered. It is no
// character, so that no text has it.
constexpr std::string_view mark = "\uFDD0";
// The image tokens of public models, which their templates write.
constexpr std::array<std::string_view, 10> image_tokens{
    image_mark,      "<|image|>", "<|image_pad|>",         "<image_soft_token>",  "<start_of_image>",
    "<IMG_CONTEXT>", "[IMG]",     "<|IMAGE_PLACEHOLDER|>", "<image_placeholder>", "<｜hy_place▁holder▁no▁102｜>"};
// What GLM's templates write for a video, around which they have other tokens than around an image.
constexpr std::string_view video_token = "<|video|>";
// What Gemma 3's processor writes before and behind the token that its template writes for an image, behind whose rows
// the latter stands.
constexpr std::string_view gemma3_image = "<start_of_image>", gemma3_end = "<end_of_image>", gemma3_break = "\n\n";
constexpr uint64_t max_file_bytes = 16 << 20;
constexpr std::array<const char*, 7> special_token_names{"bos_token", "eos_token", "unk_token", "sep_token",
                                                         "pad_token", "cls_token", "mask_token"};

struct Source {
  std::string text, where;
};

Json object_in(const fs::path& file) {
  return fs::exists(file) ? read_json_object(file, max_file_bytes) : Json::object();
}

// The templates of a folder by name. A file of its own goes before an entry of a JSON file, as in transformers.
std::map<std::string, Source> templates_of(const fs::path& folder) {
  std::map<std::string, Source> found;
  auto add = [&](const fs::path& file, const Json& written) {
    const std::string where = file.string() + ": chat_template";
    if (written.is_string()) found["default"] = {written.get<std::string>(), where};
    if (!written.is_array()) return;
    for (const Json& entry : written)
      if (entry.is_object() && entry.contains("name") && entry["name"].is_string() && entry.contains("template") &&
          entry["template"].is_string())
        found[entry["name"].get<std::string>()] = {entry["template"].get<std::string>(),
                                                   fmt::format("{} '{}'", where, entry["name"].get<std::string>())};
  };
  for (const char* name : {"tokenizer_config.json", "processor_config.json", "chat_template.json"}) {
    const fs::path file = folder / name;
    const Json object = object_in(file);
    if (auto written = object.find("chat_template"); written != object.end()) add(file, *written);
  }
  auto add_file = [&](const std::string& name, const fs::path& file) {
    found[name] = {read_file(file, max_file_bytes), file.string()};
  };
  if (fs::exists(folder / "chat_template.jinja")) add_file("default", folder / "chat_template.jinja");
  if (fs::is_directory(folder / "additional_chat_templates"))
    for (const auto& entry : fs::directory_iterator(folder / "additional_chat_templates"))
      if (entry.path().extension() == ".jinja") add_file(entry.path().stem().string(), entry.path());
  return found;
}

Source source_of(const fs::path& folder, const std::string& name) {
  if (folder.empty())
    throw Error(ErrorKind::data, "a chat template is read from the tokenizer's folder, and it has none");
  auto found = templates_of(folder);
  if (auto source = found.find(name); source != found.end()) return source->second;
  std::vector<std::string> names;
  for (const auto& [other, source] : found) names.push_back(other);
  throw Error(ErrorKind::data, "it has no chat template '{}'", name)
      .at(folder.string())
      .advise(names.empty() ? "add chat_template.jinja, or leave chat_template out of the recipe for ChatML"
                            : fmt::format("there is {}", join_or(names)));
}

// Runs `work` on a template; what is wrong with it says what to do.
template <class Work>
auto advising(const Work& work) {
  try {
    return work();
  } catch (Error& error) {
    if (error.advice().empty()) error.advise("correct the template, or leave out chat_template for ChatML");
    throw;
  }
}

jinja::Variables special_tokens_of(const fs::path& folder) {
  jinja::Variables tokens;
  for (const char* name : special_token_names)
    if (auto token = named_special_token(folder, name)) tokens.emplace_back(name, std::move(*token));
  return tokens;
}

// What strftime_now formats where nobody asks now: a run must not depend on the day on which it is started. This is the
// date that templates of Llama 3.1 fall back to.
std::tm template_date() {
  std::tm date{};
  date.tm_year = 124, date.tm_mon = 6, date.tm_mday = 26, date.tm_wday = 5, date.tm_yday = 207;
  return date;
}

jinja::Rendered rendered(const jinja::Template& chat, jinja::Variables variables, std::vector<jinja::Value> messages,
                         bool prompt, const jinja::Value& tools = {}, const std::optional<std::tm>& now = {}) {
  variables.emplace_back("messages", jinja::make_list(std::move(messages)));
  variables.emplace_back("add_generation_prompt", prompt);
  variables.emplace_back("tools", tools);
  variables.emplace_back("documents", jinja::Value());
  return chat.render(variables, now ? *now : template_date());
}

// Takes the marks out of a rendered conversation, and moves its spans to where they are without them.
ChatText without_marks(jinja::Rendered rendered) {
  ChatText made;
  std::vector<size_t> marks;
  for (size_t at = 0; (at = rendered.text.find(mark, at)) != std::string::npos; at += mark.size()) marks.push_back(at);
  auto moved = [&](size_t at) {
    return at - mark.size() * static_cast<size_t>(std::ranges::lower_bound(marks, at) - marks.begin());
  };
  size_t begin = 0;
  for (size_t at : marks) {
    made.text.append(rendered.text, begin, at - begin);
    begin = at + mark.size();
    if (made.text.empty()) continue;     // the template cut off what stood before the mark
    size_t first = made.text.size() - 1; // where the token begins, whose first character is before the mark
    while (first > 0 && (static_cast<unsigned char>(made.text[first]) & 0xC0) == 0x80) --first;
    made.literal.push_back(first);
  }
  made.text.append(rendered.text, begin);
  for (const auto& [first, last] : rendered.generations) made.answers.push_back({moved(first), moved(last)});
  return made;
}

// The rows of each image of Gemma 3 between its two tokens and line breaks, which are part of the text around them.
void surround_images(ChatText& chat) {
  const std::string behind = std::string(gemma3_end) + std::string(gemma3_break);
  const auto moved = [&](size_t at) {
    const auto before = std::ranges::count_if(chat.marks, [at](const auto& mark) { return mark.first < at; });
    return at + static_cast<size_t>(before) * (gemma3_break.size() + behind.size());
  };
  for (size_t& at : chat.literal) at = moved(at);
  for (ChatAnswer& answer : chat.answers) answer.begin = moved(answer.begin), answer.end = moved(answer.end);
  std::string text;
  size_t begin = 0;
  for (auto& [first, last] : chat.marks) {
    text.append(chat.text, begin, first - begin).append(gemma3_break).append(chat.text, first, last - first);
    begin = std::exchange(last, text.size());
    text += behind;
  }
  chat.text = text.append(chat.text, begin);
  for (auto& [first, last] : chat.marks) first = last;
}

} // namespace

nlohmann::ordered_json in_usual_order(const Json& value) {
  constexpr std::array<std::string_view, 10> usual{"id",          "type",       "function",   "name",     "enum",
                                                   "description", "parameters", "properties", "required", "arguments"};
  if (!value.is_structured()) return value;
  if (value.is_array()) {
    auto items = nlohmann::ordered_json::array();
    for (const Json& item : value) items.push_back(in_usual_order(item));
    return items;
  }
  std::vector<std::string> keys;
  for (const auto& [key, member] : value.items()) keys.push_back(key);
  const auto rank = [&](const std::string& key) { return std::ranges::find(usual, key) - usual.begin(); };
  std::ranges::stable_sort(keys, [&](const auto& one, const auto& other) { return rank(one) < rank(other); });
  auto members = nlohmann::ordered_json::object();
  for (const std::string& key : keys) members[key] = in_usual_order(value[key]);
  return members;
}

std::string text_with_video(const Turn& turn) {
  std::string text;
  split_at_marks(
      turn.text, [&](std::string_view piece) { text += piece; },
      [&](std::string_view mark) {
        text += mark == video_mark && !turn.video_text.empty() ? std::string_view(turn.video_text) : mark;
      });
  return text;
}

std::optional<std::string> named_special_token(const fs::path& folder, const char* name) {
  if (folder.empty()) return std::nullopt;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const Json object = object_in(folder / file);
    auto written = object.find(name);
    if (written == object.end()) continue;
    const Json content = written->is_object() ? written->value("content", Json()) : *written;
    if (content.is_string()) return content.get<std::string>();
  }
  return std::nullopt;
}

std::optional<std::string> chat_template_text(const fs::path& folder, const std::string& name) {
  if (folder.empty()) return std::nullopt;
  auto found = templates_of(folder);
  const auto source = found.find(name);
  return source == found.end() ? std::nullopt : std::optional(std::move(source->second.text));
}

std::string chat_template_hash(const fs::path& folder, const std::string& name) {
  Json all = Json::array();
  for (const std::string& each : {name, std::string(tool_template)})
    all.push_back(chat_template_text(folder, each).value_or(""));
  for (const char* token : special_token_names) all.push_back(named_special_token(folder, token).value_or(""));
  return sha256_hex(all.dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool OwnTemplate::is_in(const fs::path& folder, const std::string& name) {
  return chat_template_text(folder, name).has_value();
}

OwnTemplate::OwnTemplate(const Tokenizer& tokenizer, const std::string& name, bool has_marks)
    : tokenizer_(tokenizer), where_(source_of(tokenizer.folder(), name).where),
      template_(advising([&] { return jinja::Template(source_of(tokenizer.folder(), name).text, where_); })),
      special_tokens_(special_tokens_of(tokenizer.folder())) {
  advising([&] {
    takes_text_ = shows_content(false);
    takes_parts_ = shows_content(true);
    if (!takes_text_ && !takes_parts_)
      throw Error(ErrorKind::data, "the chat template does not show what a user says").at(where_);
  });
  find_tool_calls();
  thought_tags_ = fvlm::thought_tags(tokenizer, source_of(tokenizer.folder(), name).text);
  find_thinking_switch();
  if (has_marks) find_image_token();
}

// Renders one image. A template that knows no images leaves them out.
std::optional<std::string> OwnTemplate::image_token() const {
  if (!takes_parts_) return std::nullopt;
  const std::string text = render_plainly(std::vector<Turn>{{"user", "the probe of a chat template", 1}}, true).text;
  for (const std::string_view token : image_tokens)
    if (text.find(token) != std::string::npos) return std::string(token);
  return std::nullopt;
}

// Where the template writes none, the token stands in the text.
void OwnTemplate::find_image_token() {
  if (const auto token = image_token()) {
    image_token_ = *token;
    takes_image_parts_ = true;
    find_video_token();
    return;
  }
  if (!takes_text_)
    throw Error(ErrorKind::data, "the chat template has no place for images: a user's turn with one is written without "
                                 "an image token")
        .at(where_)
        .advise("write one of {} for a part of the type \"image\", or leave out chat_template for ChatML",
                fmt::join(image_tokens, ", "));
  image_token_ = image_mark;
}

void OwnTemplate::find_video_token() {
  video_token_ = video_token;
  const std::vector<Turn> probe{{"user", std::string(video_mark)}};
  try {
    if (render_plainly(probe, true).text.find(video_token) != std::string::npos) return;
  } catch (const Error&) { // it refuses videos
  }
  video_token_.clear();
}

void OwnTemplate::find_marks(std::span<const Turn> turns, ChatText& chat) const {
  if (image_token_.empty()) return;
  size_t expected = 0;
  for (const Turn& turn : turns)
    if (turn.role == "user")
      split_at_marks(
          text_with_video(turn), [](std::string_view) {}, [&](std::string_view) { ++expected; });
  for (const std::string& token : {image_token_, video_token_})
    for (size_t at = 0; !token.empty() && (at = chat.text.find(token, at)) != std::string::npos; at += token.size())
      if (!std::ranges::binary_search(chat.literal, at)) chat.marks.emplace_back(at, at + token.size());
  std::ranges::sort(chat.marks);
  if (chat.marks.size() != expected)
    throw Error(ErrorKind::data, "the chat template writes {} of {}", counted(std::ssize(chat.marks), "image"),
                expected)
        .at(where_)
        .advise("make the template write each part of the type \"image\" once, or leave out chat_template for ChatML");
  if (image_token_ == gemma3_image && tokenizer_.special_id(gemma3_end)) surround_images(chat);
}

// Line breaks between an image and a text belong to the form of data sets that write "<image>\n" into a text; in a list
// of parts, the template decides what stands there. What stands in place of a video keeps its own.
jinja::Value OwnTemplate::content_with_marks(const Turn& turn) const {
  const std::string& text = turn.text;
  std::string whole;
  std::vector<jinja::Value> parts;
  const char* end = text.data() + text.size();
  const auto add_text = [&](std::string_view piece) {
    if (piece.empty()) return;
    parts.push_back(jinja::dict_of({{"type", "text"}, {"text", marked(std::string(piece), turn.tokens)}}));
  };
  const auto add_image = [&] {
    whole += image_token_;
    parts.push_back(jinja::dict_of({{"type", "image"}}));
  };
  split_at_marks(
      text,
      [&](std::string_view piece) {
        whole += marked(std::string(piece), turn.tokens);
        if (piece.data() != text.data() && piece.starts_with('\n')) piece.remove_prefix(1);
        if (piece.data() + piece.size() != end && piece.ends_with('\n')) piece.remove_suffix(1);
        add_text(piece);
      },
      [&](std::string_view mark) {
        if (mark == video_mark && turn.video_text.empty() && !video_token_.empty())
          return parts.push_back(jinja::dict_of({{"type", "video"}}));
        if (mark != video_mark || turn.video_text.empty()) return add_image();
        split_at_marks(
            turn.video_text,
            [&](std::string_view piece) {
              whole += marked(std::string(piece));
              add_text(piece);
            },
            [&](std::string_view) { add_image(); });
      });
  return takes_image_parts_ ? jinja::make_list(std::move(parts)) : jinja::Value(whole);
}

// Whether the content of a turn appears, given as a string or as a list of parts.
bool OwnTemplate::shows_content(bool parts) const {
  const std::string probe = "the probe of a chat template";
  jinja::Value content = probe;
  if (parts) content = jinja::make_list({jinja::dict_of({{"type", "text"}, {"text", probe}})});
  const jinja::Value message = jinja::dict_of({{"role", "user"}, {"content", content}});
  const auto shows = [&](const jinja::Value& tools) {
    const std::string text = rendered(template_, special_tokens_, {message}, true, tools).text;
    // A list that is printed as Python writes it shows the probe in quotes.
    return text.find(probe) != std::string::npos && text.find("'" + probe + "'") == std::string::npos;
  };
  try {
    return shows({});
  } catch (const Error&) { // a template of conversations with tools may want some
  }
  try {
    return shows(marked_value(probe_tools()));
  } catch (const Error&) {
    if (!parts || takes_text_) return false;
    throw; // neither form can be rendered
  }
}

std::string OwnTemplate::marked(const std::string& text, std::span<const std::string_view> tokens) const {
  const std::string spelled = words_as_spelled(text);
  const ValidUtf8 valid(spelled);
  const std::string_view view = valid.view();
  std::string made;
  for (size_t at = 0; at < view.size();) {
    const std::string_view character = view.substr(at, decode_at(view, at).length);
    if (character == mark)
      append_utf8(made, 0xFFFD);
    else
      made += character;
    const auto begins = [&](const std::string& token) { return !token.empty() && view.substr(at).starts_with(token); };
    const bool is_token = std::ranges::any_of(tokens, [&](auto token) { return view.substr(at).starts_with(token); });
    if (!is_token && (tokenizer_.special_at(view, at) || begins(image_token_) || begins(video_token_))) made += mark;
    at += character.size();
  }
  return made;
}

// What the turn itself says is no token, but for those that its parts stand between.
std::string OwnTemplate::marked_text(const Turn& turn) const {
  if (turn.parts.empty()) return marked(turn.text, turn.tokens);
  std::string text;
  for (const TurnPart& part : turn.parts) {
    if (part.kind == TurnPart::Kind::text)
      text += marked(part.text, turn.tokens);
    else if (part.kind == TurnPart::Kind::code)
      text += code_start_token + marked(part.text) + code_end_token;
    else
      text += output_start_token + marked(part.text) + output_end_token;
  }
  return text;
}

jinja::Value OwnTemplate::marked_value(const nlohmann::ordered_json& value) const {
  if (value.is_string()) return marked(value.get_ref<const std::string&>());
  if (value.is_array()) {
    std::vector<jinja::Value> items;
    for (const auto& item : value) items.push_back(marked_value(item));
    return jinja::make_list(std::move(items));
  }
  if (!value.is_object()) return jinja::from_json(value);
  jinja::Dict made;
  for (const auto& [key, member] : value.items()) made.set(marked(key), marked_value(member));
  return jinja::make_dict(std::move(made));
}

jinja::Value OwnTemplate::message(const Turn& turn) const {
  if (turn.images > 0 && !takes_parts_)
    throw Error(ErrorKind::data, "the chat template has no place for images").at(where_);
  if (turn.fields && turn.fields->contains("tool_calls") && !writes_tool_calls_)
    throw Error(ErrorKind::data, "an answer calls tools, and the chat template does not write message.tool_calls")
        .at(where_)
        .advise("use the template of a model that calls tools, or write the calls into the answers' text");
  jinja::Dict made;
  made.set("role", turn.role);
  if (!turn.thoughts.empty()) made.set("reasoning_content", marked(turn.thoughts));
  const auto with_fields = [&] {
    if (turn.fields)
      for (const auto& [key, value] : turn.fields->items()) made.set(key, marked_value(value));
    return jinja::make_dict(std::move(made));
  };
  if (!image_token_.empty() && turn.role == "user" && has_visual_mark(turn.text)) {
    made.set("content", content_with_marks(turn));
    return jinja::make_dict(std::move(made));
  }
  if (turn.images == 0 && takes_text_) {
    made.set("content", marked_text(turn));
    return with_fields();
  }
  std::vector<jinja::Value> parts;
  for (int i = 0; i < turn.images; ++i) parts.push_back(jinja::dict_of({{"type", "image"}}));
  parts.push_back(jinja::dict_of({{"type", "text"}, {"text", marked_text(turn)}}));
  made.set("content", jinja::make_list(std::move(parts)));
  return with_fields();
}

ChatText OwnTemplate::render_plainly(std::span<const Turn> turns, bool prompt, const TemplateValues& values) const {
  std::vector<jinja::Value> messages;
  for (const Turn& turn : turns) messages.push_back(message(turn));
  jinja::Variables variables = special_tokens_;
  if (values.variables)
    for (const auto& [name, value] : values.variables->items())
      variables.emplace_back(name, marked_value(in_usual_order(value)));
  return without_marks(rendered(template_, std::move(variables), std::move(messages), prompt,
                                values.tools ? marked_value(*values.tools) : jinja::Value(), values.now));
}

ChatText OwnTemplate::render(std::span<const Turn> turns, bool prompt, const TemplateValues& values) const {
  ChatText made = render_plainly(turns, prompt, values);
  if (template_.has_generation()) {
    begin_behind_prompts(turns, prompt, values, made);
    mark_unlearnt(turns, values, made.answers);
  } else {
    try {
      made.answers = find_answers(turns, prompt, made.text, values);
    } catch (const Error&) { // a template may drop the thoughts of all answers but the last one
      if (!prompt) throw;
    }
  }
  find_marks(turns, made);
  return made;
}

} // namespace fvlm
