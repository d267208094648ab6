#include "serve/chat_request.h"

#include "base/base64.h"
#include "base/error.h"
#include "base/json.h"
#include "data/media/decode_image.h"
#include "data/visual_marks.h"
#include "serve/answer_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

namespace fvlm::serve {
namespace {

using Json = nlohmann::json;

Error wrong(const std::string& field, const std::string& what) {
  return Error(ErrorKind::usage, field.empty() ? what : fmt::format("{}: {}", field, what)).at(field);
}

// The fields of a request, each with its type and range.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  const Json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  double number(const char* name, double usual, double least, double most) const {
    const Json* value = find(name);
    if (!value) return usual;
    if (!value->is_number() || value->get<double>() < least || value->get<double>() > most)
      throw wrong(name, fmt::format("expected a number from {} to {}, got {}", least, most, shortened(*value)));
    return value->get<double>();
  }
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most) const {
    const Json* value = find(name);
    if (!value) return {};
    if (!value->is_number_integer() || value->get<int64_t>() < least || value->get<int64_t>() > most)
      throw wrong(name, fmt::format("expected a whole number from {} to {}, got {}", least, most, shortened(*value)));
    return value->get<int64_t>();
  }
  bool flag(const char* name) const {
    const Json* value = find(name);
    if (value && !value->is_boolean()) throw wrong(name, "expected true or false, got " + shortened(*value));
    return value && value->get<bool>();
  }
  std::string text(const char* name) const {
    const Json* value = find(name);
    if (!value) return "";
    if (!value->is_string()) throw wrong(name, "expected a string, got " + shortened(*value));
    return value->get<std::string>();
  }

  static std::string shortened(const Json& value) {
    const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 57) + "..." : text;
  }

 private:
  const Json& object_;
};

Json object_of(std::string_view body) {
  Json document;
  try {
    document = parse_json(body, "the request's body");
  } catch (const Error& error) {
    constexpr size_t longest = 300; // the message may quote the body
    throw Error(ErrorKind::usage, error.text().substr(0, longest));
  }
  if (!document.is_object()) throw wrong("", "the request's body is no JSON object");
  return document;
}

std::vector<std::string> stops_of(const Fields& fields) {
  const Json* value = fields.find("stop");
  if (!value) return {};
  std::vector<std::string> stops;
  for (const Json& one : value->is_array() ? *value : Json::array({*value})) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty())
      throw wrong("stop", "expected a text that is not empty, or a list of such, got " + Fields::shortened(*value));
    stops.push_back(one.get<std::string>());
    if (stops.back().size() > 1024) throw wrong("stop", "a text to stop at has at most 1,024 bytes");
  }
  if (stops.size() > 16) throw wrong("stop", fmt::format("at most 16 texts are looked for, not {}", stops.size()));
  return stops;
}

// What clients send that name every field: OpenAI's default.
bool asks_for_nothing(const Json& value) {
  return value == Json(false) || value == Json("") || value == Json{{"type", "text"}} ||
         (value.is_structured() && value.empty());
}

bool asks_for_a_form(const Fields& fields) {
  const auto names = {"response_format", "structured_outputs"};
  return std::ranges::any_of(names, [&](const char* name) {
    const Json* value = fields.find(name);
    return value && !asks_for_nothing(*value);
  });
}

// What would change an answer. Other fields are ignored.
void refuse_unsupported(const Fields& fields, bool is_chat) {
  std::vector<const char*> names{
      "tools",          "tool_choice",   "functions",    "function_call",  "logit_bias",          "suffix",
      "stop_token_ids", "bad_words",     "min_tokens",   "ignore_eos",     "modalities",          "audio",
      "guided_json",    "guided_choice", "guided_regex", "guided_grammar", "chat_template_kwargs"};
  if (is_chat) names.push_back("echo");
  // What some of them are where nothing is asked for, besides what any field is then.
  static const std::multimap<std::string, Json> usual = {
      {"tool_choice", "none"},   {"tool_choice", "auto"}, {"function_call", "none"},
      {"function_call", "auto"}, {"min_tokens", 0},       {"modalities", Json::array({"text"})}};
  const auto is_usual = [](const std::string& name, const Json& value) {
    const auto [first, last] = usual.equal_range(name);
    return asks_for_nothing(value) || std::any_of(first, last, [&](const auto& own) { return own.second == value; });
  };
  for (const std::string name : names)
    if (const Json* value = fields.find(name.c_str()); value && !is_usual(name, *value)) {
      Error error = wrong(name, "this server does not support it");
      if (name.starts_with("guided_")) error.advise("structured_outputs takes json and choice");
      throw error;
    }
}

// What both forms have.
ChatRequest common(const Fields& fields, std::string_view body, const RequestLimits& limits, bool is_chat) {
  ChatRequest request;
  request.is_chat = is_chat;
  request.echo = !is_chat && fields.flag("echo");
  request.model = fields.text("model");
  request.stream = fields.flag("stream");
  if (const Json* options = fields.find("stream_options")) {
    if (!options->is_object()) throw wrong("stream_options", "expected an object");
    request.stream_usage = Fields(*options).flag("include_usage");
  }
  request.attention = fields.flag("attention");
  request.answers = fields.integer("n", 1, limits.most_answers).value_or(1);
  const int64_t fewest = request.echo ? 0 : 1;
  request.max_tokens = fields.integer("max_tokens", fewest, limits.most_tokens);
  if (!request.max_tokens) request.max_tokens = fields.integer("max_completion_tokens", fewest, limits.most_tokens);
  request.stops = stops_of(fields);
  request.sampling.temperature = fields.number("temperature", 1, 0, 100);
  request.sampling.top_p = fields.number("top_p", 1, 1e-9, 1);
  request.sampling.min_p = fields.number("min_p", 0, 0, 1);
  const auto top_k = fields.integer("top_k", -1, std::numeric_limits<int32_t>::max()); // vLLM has -1 for all
  request.sampling.top_k = std::max<int64_t>(0, top_k.value_or(0));
  request.sampling.repetition_penalty = fields.number("repetition_penalty", 1, 0.01, 100);
  const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  request.sampling.seed = seed ? static_cast<uint64_t>(*seed) : std::random_device{}();
  refuse_unsupported(fields, is_chat);
  if (asks_for_a_form(fields)) request.form = answer_form_of(body);
  if (const auto tried = fields.integer("best_of", 1, limits.most_answers); tried && *tried != request.answers)
    throw wrong("best_of",
                fmt::format("all answers are returned: expected n, which is {}, got {}", request.answers, *tried));
  for (const char* penalty : {"frequency_penalty", "presence_penalty"})
    if (fields.number(penalty, 0, -2, 2) != 0) throw wrong(penalty, "this server has repetition_penalty instead");
  return request;
}

// `kind`: image or video.
std::string file_of(const Json* address, const char* kind, const std::string& where, const std::string& expected) {
  if (!address || !address->is_string()) throw wrong(where, expected);
  const bool is_video = std::string_view(kind) == "video";
  const char* example = is_video ? "data:video/mp4;base64,..." : "data:image/jpeg;base64,...";
  const std::string_view text = address->get_ref<const std::string&>();
  if (!text.starts_with("data:"))
    throw wrong(where, fmt::format("{}s are taken as data URLs only; this server fetches nothing", kind))
        .advise("send \"{}\"", example);
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos || !text.substr(0, comma).ends_with(";base64"))
    throw wrong(where, fmt::format("expected a data URL with base64: \"{}\"", example));
  if (is_video && !text.starts_with("data:video/"))
    throw wrong(where, fmt::format("expected a video, mp4 or GIF: \"{}\"", example));
  std::optional<std::string> file = decode_base64(text.substr(comma + 1));
  if (!file) throw wrong(where, "the data URL is not valid base64");
  return std::move(*file);
}

// Of a part of the type image_url or video_url.
std::string file_at(const Json& part, const std::string& kind, const std::string& where) {
  const std::string name = kind + "_url";
  const auto url = part.find(name);
  const Json* address = url == part.end() ? nullptr : url->is_object() && url->contains("url") ? &(*url)["url"] : &*url;
  return file_of(address, kind.c_str(), where,
                 fmt::format("expected {{\"{}\": {{\"url\": \"data:{}/...\"}}}}", name, kind));
}

// Reads the contents of messages, and counts what they hold together.
class Contents {
 public:
  Contents(ChatRequest& request, const RequestLimits& limits) : request_(request), limits_(limits) {}

  // The text, with a mark for each image, which joins the request's.
  std::string read(const Json& content, const std::string& where, bool is_users) {
    if (content.is_string()) return text(content.get<std::string>(), where, is_users);
    if (!content.is_array())
      throw wrong(where, "expected a text or a list of parts, got " + Fields::shortened(content));
    std::string all;
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string place = fmt::format("{}[{}]", where, i);
      const Json& part = content[i];
      if (!part.is_object()) throw wrong(place, "expected an object with a type");
      const std::string type = Fields(part).text("type");
      if (type == "text") {
        if (!Fields(part).find("text")) throw wrong(place, "a part of type text has its words in \"text\"");
        all += text(Fields(part).text("text"), place, is_users);
      } else if (type == "image_url") {
        if (!is_users) throw wrong(place, "only a user's messages may have images");
        if (request_.video && !limits_.has_images_beside_video) throw wrong(place, one_video);
        add_image(file_at(part, "image", place), place);
        all += image_mark;
      } else if (type == "video" || type == "video_url") {
        if (!is_users) throw wrong(place, "only a user's messages may have a video");
        add_video(part, type, place);
        all += video_mark;
      } else {
        throw wrong(place, fmt::format("parts are of type text, image_url, video or video_url, not '{}'", type));
      }
    }
    return all;
  }

  // A user's own words never become marks of images. Elsewhere marks have no meaning, and an answer may hold them.
  std::string text(std::string text, const std::string& where, bool is_users) {
    if (is_users && has_visual_mark(text))
      throw wrong(where, "the text holds <image> or <video>, which stand for pictures here");
    if ((bytes_ += std::ssize(text)) > limits_.most_text)
      throw wrong(where, fmt::format("a request has at most {} bytes of text", limits_.most_text));
    return text;
  }

  std::vector<TokenId> tokens(const Json& list, const std::string& where) {
    if ((bytes_ += std::ssize(list)) > limits_.most_text)
      throw wrong(where, fmt::format("a request has at most {} tokens", limits_.most_text));
    std::vector<TokenId> tokens;
    for (const Json& token : list) {
      if (!token.is_number_integer() || token < 0 || token > std::numeric_limits<TokenId>::max())
        throw wrong(where, "expected tokens, whole numbers from 0, got " + Fields::shortened(token));
      tokens.push_back(token.get<TokenId>());
    }
    return tokens;
  }

 private:
  static constexpr const char* one_video = "a request has one video, or any number of images";

  void add_video(const Json& part, const std::string& type, const std::string& where) {
    constexpr const char* expected = "expected {\"video\": [\"data:image/...\", ...]}, the frames in order";
    if (limits_.has_images_beside_video && request_.video) throw wrong(where, "a request has one video");
    if (!limits_.has_images_beside_video && !request_.images.empty()) throw wrong(where, one_video);
    request_.video = {.first = request_.images.size()};
    if (type == "video_url") return request_.images.push_back(file_at(part, "video", where));
    const Json* frames = Fields(part).find("video");
    if (!frames || !frames->is_array() || frames->empty()) throw wrong(where, expected);
    request_.video->per_second = Fields(part).number("fps", 1, 1e-3, 1e3);
    request_.video->frames = frames->size();
    for (const Json& frame : *frames) add_image(file_of(&frame, "image", where, expected), where);
  }

  void add_image(std::string file, const std::string& where) {
    const size_t number = request_.images.size();
    if (std::ssize(request_.images) >= limits_.most_images)
      throw wrong(where, fmt::format("at most {} images are taken", limits_.most_images));
    try {
      const Image head = decode_image(std::as_bytes(std::span(file)), {.only_size = true});
      pixels_ += head.width * head.height;
    } catch (const Error& error) {
      throw wrong(where, fmt::format("image {}: {}", number, error.what()));
    }
    if (pixels_ > limits_.most_pixels)
      throw wrong(where, fmt::format("the images of a request have at most {} pixels together", limits_.most_pixels));
    request_.images.push_back(std::move(file));
  }

  ChatRequest& request_;
  const RequestLimits& limits_;
  int64_t pixels_ = 0, bytes_ = 0;
};

} // namespace

ChatRequest parse_chat(std::string_view body, const RequestLimits& limits) {
  const Json document = object_of(body);
  const Fields fields(document);
  ChatRequest request = common(fields, body, limits, true);
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (fields.flag("logprobs"))
    request.top_logprobs = top.value_or(0);
  else if (top.value_or(0) > 0)
    throw wrong("top_logprobs", "it goes with \"logprobs\": true");
  const Json* messages = fields.find("messages");
  if (!messages || !messages->is_array() || messages->empty()) throw wrong("messages", "expected a list of messages");
  if (std::ssize(*messages) > limits.most_messages)
    throw wrong("messages", fmt::format("a request has at most {} messages", limits.most_messages));
  Contents contents(request, limits);
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    const Json& message = (*messages)[i];
    if (!message.is_object()) throw wrong(where, "expected an object with role and content");
    const std::string role = Fields(message).text("role");
    const Json* content = Fields(message).find("content");
    if (!content) throw wrong(where, "it has no content");
    const std::string text = contents.read(*content, where + ".content", role == "user");
    if (role == "system" || role == "developer") {
      if (i > 0) throw wrong(where, "the system's message comes first");
      request.system = text;
    } else if (role == "user" || role == "assistant") {
      request.turns.push_back({role, text});
    } else {
      throw wrong(where, fmt::format("a role is system, user or assistant, not '{}'", role));
    }
  }
  if (request.turns.empty() || request.turns.back().role != "user")
    throw wrong("messages", "the last message has to be the user's");
  return request;
}

std::vector<ChatRequest> parse_completions(std::string_view body, const RequestLimits& limits) {
  constexpr const char* expected = "expected a text, a list of texts, a list of tokens, or a list of such lists";
  const Json document = object_of(body);
  const Fields fields(document);
  ChatRequest request = common(fields, body, limits, false);
  request.top_logprobs = fields.integer("logprobs", 0, 5);
  const Json* prompt = fields.find("prompt");
  if (!prompt) throw wrong("prompt", expected);
  const bool is_list = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  const Json prompts = is_list ? *prompt : Json::array({*prompt});
  if (std::ssize(prompts) > limits.most_prompts)
    throw wrong("prompt", fmt::format("a request has at most {} prompts, not {}", limits.most_prompts, prompts.size()));
  Contents contents(request, limits);
  std::vector<ChatRequest> requests;
  for (const Json& one : prompts) {
    ChatRequest& of_prompt = requests.emplace_back(request);
    of_prompt.first_answer = (std::ssize(requests) - 1) * request.answers;
    if (one.is_string())
      of_prompt.turns.push_back({"user", contents.text(one.get<std::string>(), "prompt", true)});
    else if (one.is_array() && !one.empty())
      of_prompt.tokens = contents.tokens(one, "prompt");
    else
      throw wrong("prompt", fmt::format("{}, got {}", expected, Fields::shortened(one)));
  }
  return requests;
}

} // namespace fvlm::serve
