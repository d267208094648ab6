#include "serve/message_contents.h"

#include "base/base64.h"
#include "base/exact_json.h"
#include "data/media/decode_image.h"
#include "data/visual_marks.h"
#include "serve/request_fields.h"
#include "serve/tool_fields.h"

#include <fmt/format.h>

#include <span>
#include <string_view>
#include <utility>

namespace fvlm::serve {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

namespace {

constexpr const char* one_video = "a request has one video, or any number of images";

// `kind`: image or video.
std::string file_of(const Json* address, const char* kind, const std::string& where, const std::string& expected) {
  if (!address || !address->is_string()) throw wrong_field(where, expected);
  const bool is_video = std::string_view(kind) == "video";
  const char* example = is_video ? "data:video/mp4;base64,..." : "data:image/jpeg;base64,...";
  const std::string_view text = address->get_ref<const std::string&>();
  if (!text.starts_with("data:"))
    throw wrong_field(where, fmt::format("{}s are taken as data URLs only; this server fetches nothing", kind))
        .advise("send \"{}\"", example);
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos || !text.substr(0, comma).ends_with(";base64"))
    throw wrong_field(where, fmt::format("expected a data URL with base64: \"{}\"", example));
  if (is_video && !text.starts_with("data:video/"))
    throw wrong_field(where, fmt::format("expected a video, mp4 or GIF: \"{}\"", example));
  std::string code(text.substr(comma + 1)); // in lines, where a program wrote it that makes some
  std::erase_if(code, [](char c) { return c == '\n' || c == '\r'; });
  std::optional<std::string> file = decode_base64(code);
  if (!file) throw wrong_field(where, "the data URL is not valid base64");
  return std::move(*file);
}

// Of a part of the type image_url, input_image or video_url.
std::string file_at(const Json& part, const std::string& kind, const std::string& where) {
  const std::string name = kind + "_url";
  const auto url = part.find(name);
  const Json* address = url == part.end() ? nullptr : url->is_object() && url->contains("url") ? &(*url)["url"] : &*url;
  return file_of(address, kind.c_str(), where,
                 part["type"] == "input_image"
                     ? R"(expected {"image_url": "data:image/..."}; this server keeps no files)"
                     : fmt::format("expected {{\"{}\": {{\"url\": \"data:{}/...\"}}}}", name, kind));
}

// Of an item of the type reasoning. A summary is none of them.
std::string thoughts_of(const Json& item, const std::string& where) {
  const Json* parts = RequestFields(item, where).find("content");
  if (!parts) return "";
  if (!parts->is_array())
    throw wrong_field(where + ".content", "expected a list of parts of type reasoning_text, got " + shortened(*parts));
  std::string text;
  for (const Json& part : *parts) {
    if (!part.is_object()) throw wrong_field(where + ".content", "expected parts of type reasoning_text");
    text += RequestFields(part, where + ".content").text("text");
  }
  return text;
}

} // namespace

void Contents::add_messages(const Json& messages, const std::string& where) {
  if (!messages.is_array() || messages.empty())
    throw wrong_field(where, "expected a list of messages, got " + shortened(messages));
  if (std::ssize(messages) > limits_.most_messages)
    throw wrong_field(where, fmt::format("a request has at most {} messages", limits_.most_messages));
  for (size_t i = 0; i < messages.size(); ++i) add_message(messages[i], i == 0, fmt::format("{}[{}]", where, i));
}

void Contents::add_items(const Json& items, const std::string& where) {
  Json messages = Json::array();
  std::string thoughts; // of the answer that follows
  const auto add = [&](Json message) {
    const bool is_answer = message.is_object() && message.value("role", Json()) == "assistant";
    const std::string before = std::exchange(thoughts, "");
    if (is_answer && !before.empty()) message["reasoning_content"] = before;
    messages.push_back(std::move(message));
  };
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    const std::string type = items[i].is_object() ? RequestFields(items[i], place).text("type") : "";
    if (type == "reasoning") {
      thoughts = thoughts_of(items[i], place);
      continue;
    }
    if (!type.empty() && type != "message" && type != "function_call" && type != "function_call_output")
      throw wrong_field(place,
                        "items are of type message, function_call or function_call_output, not " + shortened(type));
    if (type == "function_call_output") {
      add({{"role", "tool"},
           {"tool_call_id", items[i].value("call_id", Json())},
           {"content", items[i].value("output", Json())}});
    } else if (type == "function_call") {
      const Json last = messages.empty() ? Json() : messages.back();
      const bool joins = last.is_object() && last.value("role", Json()) == "assistant";
      if (!joins) add({{"role", "assistant"}, {"content", nullptr}});
      if (const Json calls = joins ? last.value("tool_calls", Json()) : Json(); !calls.is_null() && !calls.is_array())
        throw wrong_field(place, "it follows an answer whose tool_calls are no list, but " + shortened(calls));
      messages.back()["tool_calls"].push_back(
          {{"id", items[i].value("call_id", Json())},
           {"type", "function"},
           {"function",
            {{"name", items[i].value("name", Json())}, {"arguments", items[i].value("arguments", Json())}}}});
    } else {
      add(items[i]);
    }
  }
  add_messages(messages, where);
}

// What the assistant called, besides or in place of what it said.
void Contents::add_calls(const Json& message, const std::string& where) {
  const Json* list = RequestFields(message, where).find("tool_calls");
  if (!list || list->empty()) return;
  if (!list->is_array()) throw wrong_field(where + ".tool_calls", "expected a list of calls, got " + shortened(*list));
  Ordered calls = Ordered::array();
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string place = fmt::format("{}.tool_calls[{}]", where, i);
    const Ordered& call = calls.emplace_back(read_call((*list)[i], place));
    (void)text(exact_text(call), place, false); // which counts it
    if (call.contains("id")) tools_by_call_[call["id"].get<std::string>()] = call["function"]["name"];
  }
  Ordered fields = {{"tool_calls", std::move(calls)}};
  Turn& turn = request_.turns.back();
  if (turn.text.empty()) fields["content"] = nullptr;
  turn.fields = std::make_shared<const Ordered>(std::move(fields));
}

void Contents::add_result(const Json& json, const std::string& where) {
  const RequestFields message(json, where);
  const Json* content = message.find("content");
  if (!content) throw wrong_field(where, "it has no content");
  const std::string call = message.text("tool_call_id"), given = message.text("name");
  Ordered fields = Ordered::object();
  if (!call.empty()) fields["tool_call_id"] = call;
  const auto called = tools_by_call_.find(call);
  if (!call.empty() && called == tools_by_call_.end())
    throw wrong_field(where + ".tool_call_id", fmt::format("no message before it has a call '{}'", call));
  if (called != tools_by_call_.end() || !given.empty()) fields["name"] = given.empty() ? called->second : given;
  Turn turn{"tool", read(*content, where + ".content", "tool")};
  turn.fields = std::make_shared<const Ordered>(std::move(fields));
  request_.turns.push_back(std::move(turn));
}

// A first message of the system replaces the model's usual one. Others are turns, as a template gets them in
// transformers.
void Contents::add_message(const Json& json, bool is_first, const std::string& where) {
  if (!json.is_object()) throw wrong_field(where, "expected an object with role and content");
  const RequestFields message(json, where);
  const std::string given = message.text("role"), role = given == "developer" ? "system" : given;
  if (role == "assistant") {
    request_.turns.push_back({role, said(json, where)});
    for (const char* name : {"reasoning_content", "reasoning"})
      if (message.find(name) && request_.turns.back().thoughts.empty())
        request_.turns.back().thoughts = text(message.text(name), where + "." + name, false);
    add_calls(json, where);
    return;
  }
  if (role == "tool") return add_result(json, where);
  if (role != "system" && role != "user")
    throw wrong_field(where, fmt::format("a role is system, user, assistant or tool, not '{}'", given));
  const Json* content = message.find("content");
  if (!content) throw wrong_field(where, "it has no content");
  std::string text = read(*content, where + ".content", role);
  if (role == "system" && is_first && !request_.system)
    request_.system = std::move(text);
  else
    request_.turns.push_back({role, std::move(text)});
}

// What the assistant said: its content, or why it refused to answer.
std::string Contents::said(const Json& json, const std::string& where) {
  const RequestFields message(json, where);
  message.refuse({"function_call", "audio"});
  const Json *content = message.find("content"), *refusal = message.find("refusal");
  if (!refusal) return content ? read(*content, where + ".content", "assistant") : "";
  if (content && *content != Json("")) throw wrong_field(where, "an answer has a content or a refusal, not both");
  return text(message.text("refusal"), where + ".refusal", false);
}

// The text, with a mark for each image, which joins the request's.
std::string Contents::read(const Json& content, const std::string& where, const std::string& role) {
  if (content.is_string()) return text(content.get<std::string>(), where, role == "user");
  if (!content.is_array()) throw wrong_field(where, "expected a text or a list of parts, got " + shortened(content));
  std::string all;
  const auto is_text = [&](size_t i) { // or an input_text, or an output_text
    return i < content.size() && content[i].is_object() && RequestFields(content[i]).text("type").ends_with("text");
  };
  for (size_t i = 0, first_text = 0; i < content.size(); ++i) {
    const bool follows = i > 0 && is_text(i - 1) && is_text(i);
    if (!follows) first_text = all.size();
    if (follows && !limits_.takes_parts) all += '\n';
    all += read_part(content[i], fmt::format("{}[{}]", where, i), role);
    if (role == "user" && follows && !is_text(i + 1)) // together they may spell a mark
      all.replace(first_text, std::string::npos, marks_as_words(std::string_view(all).substr(first_text)));
  }
  return all;
}

// A part has the types of /v1/chat/completions and of /v1/responses everywhere.
std::string Contents::read_part(const Json& part, const std::string& where, const std::string& role) {
  const bool is_users = role == "user";
  if (!part.is_object()) throw wrong_field(where, "expected an object with a type");
  const RequestFields fields(part);
  const std::string type = fields.text("type");
  const bool is_refusal = type == "refusal" && role == "assistant";
  if (type == "text" || type == "input_text" || type == "output_text" || is_refusal) {
    const char* name = is_refusal ? "refusal" : "text";
    if (!fields.find(name))
      throw wrong_field(where, fmt::format("a part of type {} has its words in \"{}\"", type, name));
    return text(fields.text(name), where, is_users);
  }
  if (type == "image_url" || type == "input_image") {
    if (!is_users) throw wrong_field(where, "only a user's messages may have images");
    if (request_.video && !limits_.has_images_beside_video) throw wrong_field(where, one_video);
    add_image(file_at(part, "image", where), where);
    return std::string(image_mark);
  }
  if (type == "video" || type == "video_url") {
    if (!is_users) throw wrong_field(where, "only a user's messages may have a video");
    add_video(part, type, where);
    return std::string(video_mark);
  }
  throw wrong_field(where, fmt::format("parts are of type text (input_text, output_text), image_url (input_image), "
                                       "video or video_url, not '{}'",
                                       type));
}

std::string Contents::text(std::string text, const std::string& where, bool is_users) {
  if ((bytes_ += std::ssize(text)) > limits_.most_text)
    throw wrong_field(where, fmt::format("a request has at most {} bytes of text", limits_.most_text));
  return is_users ? marks_as_words(text) : text;
}

std::vector<TokenId> Contents::tokens(const Json& list, const std::string& where) {
  const std::vector<int64_t> tokens = tokens_of(list, where, limits_.most_text - bytes_);
  bytes_ += std::ssize(tokens);
  return {tokens.begin(), tokens.end()};
}

void Contents::add_video(const Json& part, const std::string& type, const std::string& where) {
  constexpr const char* expected = "expected {\"video\": [\"data:image/...\", ...]}, the frames in order";
  if (limits_.has_images_beside_video && request_.video) throw wrong_field(where, "a request has one video");
  if (!limits_.has_images_beside_video && !request_.images.empty()) throw wrong_field(where, one_video);
  request_.video = {.first = request_.images.size()};
  if (limits_.most_images == 0) throw wrong_field(where, "the model reads text alone, and got a video");
  if (type == "video_url") return request_.images.push_back(file_at(part, "video", where));
  const Json* frames = RequestFields(part).find("video");
  if (!frames || !frames->is_array() || frames->empty()) throw wrong_field(where, expected);
  request_.video->per_second = RequestFields(part).number("fps", 1, 1e-3, 1e3);
  request_.video->frames = frames->size();
  for (const Json& frame : *frames) add_image(file_of(&frame, "image", where, expected), where);
}

void Contents::add_image(std::string file, const std::string& where) {
  const size_t number = request_.images.size();
  if (limits_.most_images == 0) throw wrong_field(where, "the model reads text alone, and got a picture");
  if (std::ssize(request_.images) >= limits_.most_images)
    throw wrong_field(where, fmt::format("at most {} images are taken", limits_.most_images));
  try {
    const Image head = decode_image(std::as_bytes(std::span(file)), {.only_size = true});
    pixels_ += head.width * head.height;
  } catch (const Error& error) {
    throw wrong_field(where, fmt::format("image {}: {}", number, error.what()));
  }
  if (pixels_ > limits_.most_pixels)
    throw wrong_field(where,
                      fmt::format("the images of a request have at most {} pixels together", limits_.most_pixels));
  request_.images.push_back(std::move(file));
}

} // namespace fvlm::serve
