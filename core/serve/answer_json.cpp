#include "serve/answer_json.h"

#include "base/base64.h"
#include "base/hash.h"
#include "data/unicode.h"
#include "infer/generator.h"

#include <fmt/format.h>

#include <utility>

namespace fvlm::serve {

using Json = nlohmann::json;

namespace {

// The names under which clients read thoughts: that of DeepSeek, SGLang and llama.cpp, and that of vLLM.
constexpr const char* thought_names[] = {"reasoning_content", "reasoning"};

Json json_of(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached}}},
          {"completion_tokens", usage.completion},
          {"completion_tokens_details", {{"reasoning_tokens", usage.thoughts}}},
          {"total_tokens", usage.prompt + usage.completion}};
}

Json json_of(const TokenLogprob& token) {
  Json bytes = Json::array();
  for (const char byte : token.token) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", token.token}, {"logprob", token.logprob.value_or(0)}, {"bytes", std::move(bytes)}};
}

// Tokens are keys here, so one that is no text is spelled by its bytes, as OpenAI does.
std::string spelled(const std::string& token) {
  if (ValidUtf8(token).view() == token) return token;
  std::string all = "bytes:";
  for (const char byte : token) all += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
  return all;
}

Json completion_logprobs(const std::vector<TokenLogprob>& tokens) {
  Json all = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  for (const TokenLogprob& token : tokens) {
    all["tokens"].push_back(spelled(token.token));
    all["text_offset"].push_back(token.offset);
    if (!token.logprob) {
      for (const char* list : {"token_logprobs", "top_logprobs"}) all[list].push_back(nullptr);
      continue;
    }
    all["token_logprobs"].push_back(*token.logprob);
    Json top = Json::object();
    for (const TokenLogprob& likely : token.top) top.emplace(spelled(likely.token), *likely.logprob);
    top.emplace(spelled(token.token), *token.logprob); // the chosen one is always there
    all["top_logprobs"].push_back(std::move(top));
  }
  return all;
}

std::string event(const Json& document) {
  return "data: " + dumped(document) + "\n\n";
}

} // namespace

std::string dumped(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(const FrameAttention& shown) {
  Json frames = Json::array();
  for (size_t i = 0; i < shown.frames.size(); ++i)
    frames.push_back(
        {{"image", "data:image/jpeg;base64," + encode_base64(shown.frames[i])}, {"shares", shown.shares[i]}});
  return {{"rows", shown.rows}, {"columns", shown.columns}, {"frames", std::move(frames)}};
}

Json logprobs_json(const std::vector<TokenLogprob>& tokens) {
  Json all = Json::array();
  for (const TokenLogprob& token : tokens) {
    Json& one = all.emplace_back(json_of(token));
    one["top_logprobs"] = Json::array();
    for (const TokenLogprob& likely : token.top) one["top_logprobs"].push_back(json_of(likely));
  }
  return all;
}

std::string call_id(const std::string& request, int64_t answer, int64_t number) {
  constexpr size_t length = 9;
  return sha256_hex(fmt::format("{}.{}.{}", request, answer, number)).substr(0, length);
}

AnswerJson::AnswerJson(const ChatRequest& request, std::string id, int64_t created)
    : model_(request.model), id_(std::move(id)), created_(created), is_chat_(request.is_chat),
      has_logprobs_(request.top_logprobs.has_value()), has_usage_(request.stream_usage) {
  Json shared = document("chat.completion.chunk", Json());
  shared.erase("choices");
  event_end_ = "," + dumped(shared).substr(1) + "\n\n";
}

Json AnswerJson::logprobs(const std::vector<TokenLogprob>& tokens) const {
  return is_chat_ ? Json{{"content", logprobs_json(tokens)}} : completion_logprobs(tokens);
}

Json AnswerJson::document(const char* chat_kind, Json choices) const {
  return {{"id", id_},
          {"object", is_chat_ ? chat_kind : "text_completion"},
          {"created", created_},
          {"model", model_},
          {"choices", std::move(choices)}};
}

std::string AnswerJson::whole(const std::vector<AnswerText>& answers, const Usage& usage) {
  Json choices = Json::array();
  for (const AnswerText& answer : answers) {
    Json choice = {{"index", choices.size()}, {"finish_reason", answer.finish}};
    if (is_chat_) {
      Json& message = choice["message"] = {{"role", "assistant"}, {"content", answer.text}};
      for (const ToolCall& call : answer.calls)
        message["tool_calls"].push_back(call_json(call, std::ssize(choices), message["tool_calls"].size()));
      if (answer.text.empty() && !answer.calls.empty()) message["content"] = nullptr;
      if (!answer.thoughts.empty())
        for (const char* name : thought_names) message[name] = answer.thoughts;
    } else
      choice["text"] = answer.text;
    if (has_logprobs_) choice["logprobs"] = logprobs(answer.tokens);
    choices.push_back(std::move(choice));
  }
  Json all = document("chat.completion", std::move(choices));
  all["usage"] = json_of(usage);
  if (!attention_.is_null()) all["attention"] = attention_;
  return dumped(all);
}

std::string AnswerJson::attention(const FrameAttention& shown) {
  Json all = document("chat.completion.chunk", Json::array());
  all["attention"] = json_of(shown);
  return event(all);
}

void AnswerJson::keep_attention(const FrameAttention& shown) {
  attention_ = json_of(shown);
}

// Written without a document, since every token of every answer is one.
std::string AnswerJson::piece(int64_t answer, const std::string& text, bool first,
                              const std::vector<TokenLogprob>& tokens) {
  const std::string quoted = dumped(text);
  const std::string words =
      !is_chat_ ? fmt::format("\"text\":{}", quoted)
                : fmt::format("\"delta\":{{\"content\":{}{}}}", quoted, first ? ",\"role\":\"assistant\"" : "");
  return fmt::format("data: {{\"choices\":[{{{},\"finish_reason\":null,\"index\":{}{}}}]{}", words, answer,
                     has_logprobs_ ? ",\"logprobs\":" + dumped(logprobs(tokens)) : "", event_end_);
}

std::string AnswerJson::thoughts(int64_t answer, const std::string& text, bool first) {
  Json delta = Json::object();
  for (const char* name : thought_names) delta[name] = text;
  if (first) delta.update({{"role", "assistant"}, {"content", nullptr}});
  const Json choice = {{"index", answer}, {"finish_reason", nullptr}, {"delta", std::move(delta)}};
  return event(document("chat.completion.chunk", Json::array({choice})));
}

Json AnswerJson::call_json(const ToolCall& call, int64_t answer, size_t number) const {
  return {{"id", call_id(id_, answer, static_cast<int64_t>(number))},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

// A call is sent whole, since its text is read as one.
std::string AnswerJson::call(int64_t answer, const ToolCall& call, bool first) {
  const int64_t number = called_[answer]++;
  Json one = call_json(call, answer, static_cast<size_t>(number));
  one["index"] = number;
  Json delta = {{"tool_calls", Json::array({std::move(one)})}};
  if (first) delta.update({{"role", "assistant"}, {"content", nullptr}});
  const Json choice = {{"index", answer}, {"finish_reason", nullptr}, {"delta", std::move(delta)}};
  return event(document("chat.completion.chunk", Json::array({choice})));
}

std::string AnswerJson::last_piece(int64_t answer, const AnswerText& ended) {
  Json choice = {{"index", answer}, {"finish_reason", ended.finish}};
  if (is_chat_)
    choice["delta"] = Json::object();
  else
    choice["text"] = "";
  return event(document("chat.completion.chunk", Json::array({choice})));
}

std::string AnswerJson::end(const Usage& usage) {
  constexpr const char* end = "data: [DONE]\n\n";
  if (!has_usage_) return end;
  Json all = document("chat.completion.chunk", Json::array());
  all["usage"] = json_of(usage);
  return event(all) + end;
}

std::string AnswerJson::failure(const Error& error) {
  return "data: " + error_json(error) + "\n\n";
}

int http_status_of(const Error& error) {
  return error.kind() == ErrorKind::usage || error.kind() == ErrorKind::data       ? 400
         : error.kind() == ErrorKind::stopped || error.kind() == ErrorKind::device ? 503
                                                                                   : 500;
}

std::string message_of(const Error& error) {
  return error.advice().empty() ? error.what() : fmt::format("{}: {}", error.what(), error.advice());
}

std::string error_json(const Error& error) {
  const bool is_too_long = dynamic_cast<const infer::PromptTooLong*>(&error) != nullptr;
  return error_json(message_of(error), http_status_of(error) == 400 ? "invalid_request_error" : "server_error",
                    error.where(), is_too_long ? "context_length_exceeded" : "");
}

std::string error_json(const std::string& message, const char* type, const std::string& parameter,
                       const std::string& code) {
  const auto if_any = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const Json error = {{"message", message}, {"type", type}, {"param", if_any(parameter)}, {"code", if_any(code)}};
  return dumped(
      {{"type", "error"}, {"error", error}}); // of these Anthropic's clients read type, error.type and its message
}

} // namespace fvlm::serve
