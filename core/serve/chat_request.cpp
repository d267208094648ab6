#include "serve/chat_request.h"

#include "base/base64.h"
#include "base/error.h"
#include "base/json.h"
#include "data/media/decode_image.h"
#include "data/visual_marks.h"
#include "serve/answer_form.h"
#include "serve/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>

namespace fvlm::serve {
namespace {

using Json = nlohmann::json;

Json object_of(std::string_view body) {
  Json document;
  try {
    document = parse_json(body, "the request's body");
  } catch (const Error& error) {
    constexpr size_t longest = 300; // the message may quote the body
    throw Error(ErrorKind::usage, error.text().substr(0, longest));
  }
  if (!document.is_object()) throw wrong_field("", "the request's body is no JSON object");
  return document;
}

std::vector<int64_t> tokens_of(const Json& list, const std::string& where, int64_t most) {
  if (!list.is_array()) throw wrong_field(where, "expected a list of tokens, got " + shortened(list));
  if (std::ssize(list) > most) throw wrong_field(where, fmt::format("a request has at most {} tokens", most));
  std::vector<int64_t> tokens;
  for (const Json& token : list) {
    if (!token.is_number_integer() || token < 0 || token > std::numeric_limits<TokenId>::max())
      throw wrong_field(where, "expected tokens, whole numbers from 0, got " + shortened(token));
    tokens.push_back(token.get<int64_t>());
  }
  return tokens;
}

std::vector<std::string> stops_of(const RequestFields& fields) {
  const Json* value = fields.find("stop");
  if (!value || *value == "") return {};
  std::vector<std::string> stops;
  for (const Json& one : value->is_array() ? *value : Json::array({*value})) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty())
      throw wrong_field("stop", "expected a text that is not empty, or a list of such, got " + shortened(*value));
    stops.push_back(one.get<std::string>());
    if (stops.back().size() > 1024) throw wrong_field("stop", "a text to stop at has at most 1,024 bytes");
  }
  if (stops.size() > 16)
    throw wrong_field("stop", fmt::format("at most 16 texts are looked for, not {}", stops.size()));
  return stops;
}

// When an answer ends besides at stop texts.
infer::StopRules stop_rules_of(const RequestFields& fields, const RequestLimits& limits) {
  constexpr int64_t most = 256;
  infer::StopRules rules;
  rules.ignore_eos = fields.flag("ignore_eos");
  rules.min_tokens = fields.integer("min_tokens", 0, limits.most_tokens).value_or(0);
  if (const Json* tokens = fields.find("stop_token_ids"))
    rules.stop_token_ids = tokens_of(*tokens, "stop_token_ids", most);
  return rules;
}

std::optional<int64_t> max_tokens_of(const RequestFields& fields, int64_t fewest, const RequestLimits& limits) {
  const auto older = fields.integer("max_tokens", fewest, limits.most_tokens),
             newer = fields.integer("max_completion_tokens", fewest, limits.most_tokens);
  if (older && newer && *older != *newer)
    throw wrong_field("max_completion_tokens",
                      fmt::format("it is another name for max_tokens, which is {}, got {}", *older, *newer));
  return newer ? newer : older;
}

void require_agreement(const ChatRequest& request) {
  const auto& [ignore_eos, min_tokens, stop_token_ids] = request.stop_rules;
  if (request.max_tokens && min_tokens > *request.max_tokens)
    throw wrong_field("min_tokens",
                      fmt::format("expected at most max_tokens, which is {}, got {}", *request.max_tokens, min_tokens));
  if (request.form && (ignore_eos || min_tokens > 0))
    throw wrong_field(ignore_eos ? "ignore_eos" : "min_tokens",
                      "an answer of a given form ends where the form does: it does not go with response_format or "
                      "structured_outputs");
}

// What both forms have.
ChatRequest common(const RequestFields& fields, std::string_view body, const RequestLimits& limits, bool is_chat) {
  ChatRequest request;
  request.is_chat = is_chat;
  request.echo = !is_chat && fields.flag("echo");
  request.model = fields.text("model");
  request.stream = fields.flag("stream");
  if (const Json* options = fields.find("stream_options")) {
    if (!options->is_object()) throw wrong_field("stream_options", "expected an object");
    request.stream_usage = RequestFields(*options).flag("include_usage");
  }
  request.attention = fields.flag("attention");
  request.answers = fields.integer("n", 1, limits.most_answers).value_or(1);
  const int64_t fewest = request.echo ? 0 : 1;
  request.max_tokens = max_tokens_of(fields, fewest, limits);
  request.stops = stops_of(fields);
  request.stop_rules = stop_rules_of(fields, limits);
  request.sampling.temperature = fields.number("temperature", 1, 0, 100);
  request.sampling.top_p = fields.number("top_p", 1, 1e-9, 1);
  request.sampling.min_p = fields.number("min_p", 0, 0, 1);
  const auto top_k = fields.integer("top_k", -1, std::numeric_limits<int32_t>::max()); // vLLM has -1 for all
  request.sampling.top_k = std::max<int64_t>(0, top_k.value_or(0));
  request.sampling.repetition_penalty = fields.number("repetition_penalty", 1, 0.01, 100);
  const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  request.sampling.seed = seed ? static_cast<uint64_t>(*seed) : std::random_device{}();
  refuse_unsupported(fields, is_chat);
  if (fields.asks("response_format") || fields.asks("structured_outputs")) request.form = answer_form_of(body);
  require_agreement(request);
  if (const auto tried = fields.integer("best_of", 1, limits.most_answers); tried && *tried != request.answers)
    throw wrong_field(
        "best_of", fmt::format("all answers are returned: expected n, which is {}, got {}", request.answers, *tried));
  for (const char* penalty : {"frequency_penalty", "presence_penalty"})
    if (fields.number(penalty, 0, -2, 2) != 0) throw wrong_field(penalty, "this server has repetition_penalty instead");
  return request;
}

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
  std::optional<std::string> file = decode_base64(text.substr(comma + 1));
  if (!file) throw wrong_field(where, "the data URL is not valid base64");
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
  std::string read(const Json& content, const std::string& where, const std::string& role) {
    const bool is_users = role == "user";
    if (content.is_string()) return text(content.get<std::string>(), where, is_users);
    if (!content.is_array()) throw wrong_field(where, "expected a text or a list of parts, got " + shortened(content));
    std::string all;
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string place = fmt::format("{}[{}]", where, i);
      const Json& part = content[i];
      if (!part.is_object()) throw wrong_field(place, "expected an object with a type");
      const std::string type = RequestFields(part).text("type");
      if (type == "text" || (type == "refusal" && role == "assistant")) {
        if (!RequestFields(part).find(type.c_str()))
          throw wrong_field(place, fmt::format("a part of type {0} has its words in \"{0}\"", type));
        all += text(RequestFields(part).text(type.c_str()), place, is_users);
      } else if (type == "image_url") {
        if (!is_users) throw wrong_field(place, "only a user's messages may have images");
        if (request_.video && !limits_.has_images_beside_video) throw wrong_field(place, one_video);
        add_image(file_at(part, "image", place), place);
        all += image_mark;
      } else if (type == "video" || type == "video_url") {
        if (!is_users) throw wrong_field(place, "only a user's messages may have a video");
        add_video(part, type, place);
        all += video_mark;
      } else {
        throw wrong_field(place, fmt::format("parts are of type text, image_url, video or video_url, not '{}'", type));
      }
    }
    return all;
  }

  // A user's own words never become marks of images. Elsewhere marks have no meaning, and an answer may hold them.
  std::string text(std::string text, const std::string& where, bool is_users) {
    if (is_users && has_visual_mark(text))
      throw wrong_field(where, "the text holds <image> or <video>, which stand for pictures here");
    if ((bytes_ += std::ssize(text)) > limits_.most_text)
      throw wrong_field(where, fmt::format("a request has at most {} bytes of text", limits_.most_text));
    return text;
  }

  std::vector<TokenId> tokens(const Json& list, const std::string& where) {
    const std::vector<int64_t> tokens = tokens_of(list, where, limits_.most_text - bytes_);
    bytes_ += std::ssize(tokens);
    return {tokens.begin(), tokens.end()};
  }

 private:
  static constexpr const char* one_video = "a request has one video, or any number of images";

  void add_video(const Json& part, const std::string& type, const std::string& where) {
    constexpr const char* expected = "expected {\"video\": [\"data:image/...\", ...]}, the frames in order";
    if (limits_.has_images_beside_video && request_.video) throw wrong_field(where, "a request has one video");
    if (!limits_.has_images_beside_video && !request_.images.empty()) throw wrong_field(where, one_video);
    request_.video = {.first = request_.images.size()};
    if (type == "video_url") return request_.images.push_back(file_at(part, "video", where));
    const Json* frames = RequestFields(part).find("video");
    if (!frames || !frames->is_array() || frames->empty()) throw wrong_field(where, expected);
    request_.video->per_second = RequestFields(part).number("fps", 1, 1e-3, 1e3);
    request_.video->frames = frames->size();
    for (const Json& frame : *frames) add_image(file_of(&frame, "image", where, expected), where);
  }

  void add_image(std::string file, const std::string& where) {
    const size_t number = request_.images.size();
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

  ChatRequest& request_;
  const RequestLimits& limits_;
  int64_t pixels_ = 0, bytes_ = 0;
};

// What the assistant said: its content, or why it refused to answer.
std::string said(const RequestFields& message, const std::string& where, Contents& contents) {
  const Json *content = message.find("content"), *refusal = message.find("refusal");
  if (!refusal) return content ? contents.read(*content, where + ".content", "assistant") : "";
  if (content && *content != "") throw wrong_field(where, "an answer has a content or a refusal, not both");
  return contents.text(message.text("refusal"), where + ".refusal", false);
}

// A first message of the system replaces the model's usual one. Others are turns, as a template gets them in
// transformers.
void add_message(const Json& json, size_t at, Contents& contents, ChatRequest& request) {
  const std::string where = fmt::format("messages[{}]", at);
  if (!json.is_object()) throw wrong_field(where, "expected an object with role and content");
  const RequestFields message(json, where);
  const std::string given = message.text("role"), role = given == "developer" ? "system" : given;
  if (role == "assistant") {
    message.refuse({"tool_calls", "function_call", "audio"});
    request.turns.push_back({role, said(message, where, contents)});
    return;
  }
  if (role != "system" && role != "user")
    throw wrong_field(where, fmt::format("a role is system, user or assistant, not '{}'", given));
  const Json* content = message.find("content");
  if (!content) throw wrong_field(where, "it has no content");
  std::string text = contents.read(*content, where + ".content", role);
  if (role == "system" && at == 0)
    request.system = std::move(text);
  else
    request.turns.push_back({role, std::move(text)});
}

// Variables of the model's chat template. Those that the server itself gives it stay as they are.
std::shared_ptr<const Json> template_variables_of(const RequestFields& fields) {
  constexpr const char* name = "chat_template_kwargs";
  if (!fields.asks(name)) return {};
  const Json& variables = *fields.find(name);
  if (!variables.is_object()) throw wrong_field(name, "expected an object, got " + shortened(variables));
  for (const auto& [key, value] : variables.items())
    for (const char* own : {"messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize"})
      if (key == own || key.ends_with("_token"))
        throw wrong_field(name, fmt::format("the server sets the template's {}", key));
  return std::make_shared<const Json>(variables);
}

} // namespace

ChatRequest parse_chat(std::string_view body, const RequestLimits& limits) {
  const Json document = object_of(body);
  const RequestFields fields(document);
  ChatRequest request = common(fields, body, limits, true);
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (fields.flag("logprobs"))
    request.top_logprobs = top.value_or(0);
  else if (top.value_or(0) > 0)
    throw wrong_field("top_logprobs", "it goes with \"logprobs\": true");
  const Json* messages = fields.find("messages");
  if (!messages || !messages->is_array() || messages->empty())
    throw wrong_field("messages", "expected a list of messages");
  if (std::ssize(*messages) > limits.most_messages)
    throw wrong_field("messages", fmt::format("a request has at most {} messages", limits.most_messages));
  request.template_variables = template_variables_of(fields);
  Contents contents(request, limits);
  for (size_t i = 0; i < messages->size(); ++i) add_message((*messages)[i], i, contents, request);
  if (request.turns.empty() || request.turns.back().role != "user")
    throw wrong_field("messages", "the last message has to be the user's");
  return request;
}

std::vector<ChatRequest> parse_completions(std::string_view body, const RequestLimits& limits) {
  constexpr const char* expected = "expected a text, a list of texts, a list of tokens, or a list of such lists";
  const Json document = object_of(body);
  const RequestFields fields(document);
  ChatRequest request = common(fields, body, limits, false);
  request.top_logprobs = fields.integer("logprobs", 0, 5);
  const Json* prompt = fields.find("prompt");
  if (!prompt) throw wrong_field("prompt", expected);
  const bool is_list = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  const Json prompts = is_list ? *prompt : Json::array({*prompt});
  if (std::ssize(prompts) > limits.most_prompts)
    throw wrong_field("prompt",
                      fmt::format("a request has at most {} prompts, not {}", limits.most_prompts, prompts.size()));
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
      throw wrong_field("prompt", fmt::format("{}, got {}", expected, shortened(one)));
  }
  return requests;
}

} // namespace fvlm::serve
