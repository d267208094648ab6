#include "serve/message_json.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace fvlm::serve {
namespace {

using Json = nlohmann::json;

std::string event(const char* type, Json fields) {
  fields["type"] = type;
  return fmt::format("event: {}\ndata: {}\n\n", type, dumped(fields));
}

Json text_block(const std::string& text) {
  return {{"type", "text"}, {"text", text}};
}

// Thoughts have no signature, which would say that nobody changed them.
Json thinking_block(const std::string& thoughts) {
  return {{"type", "thinking"}, {"thinking", thoughts}, {"signature", ""}};
}

const char* stop_reason(const AnswerText& answer) {
  const std::string_view finish = answer.finish;
  return finish == "length"         ? "max_tokens"
         : finish == "tool_calls"   ? "tool_use"
         : answer.stop_text.empty() ? "end_turn"
                                    : "stop_sequence";
}

Json stop_sequence(const AnswerText& answer) {
  return answer.stop_text.empty() ? Json() : Json(answer.stop_text);
}

// Rows of the prompt that were computed for another one before are counted apart.
Json usage_json(const Usage& usage) {
  return {{"input_tokens", usage.prompt - usage.cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached},
          {"output_tokens", usage.completion},
          {"output_tokens_details", {{"thinking_tokens", usage.thoughts}}}};
}

} // namespace

MessageJson::MessageJson(const ChatRequest& request, std::string id) : model_(request.model), id_(std::move(id)) {}

Json MessageJson::message(Json content, const Usage& usage) const {
  Json all = {{"id", "msg_" + id_},
              {"type", "message"},
              {"role", "assistant"},
              {"model", model_},
              {"content", std::move(content)},
              {"stop_reason", nullptr},
              {"stop_sequence", nullptr},
              {"usage", usage_json(usage)}};
  if (!attention_.is_null()) all["attention"] = attention_;
  return all;
}

Json MessageJson::call_block(const ToolCall& call, int64_t number) const {
  Json input = Json::parse(call.arguments, nullptr, false);
  if (!input.is_object()) input = Json::object(); // cut off
  return {{"type", "tool_use"}, {"id", call_id(id_, 0, number)}, {"name", call.name}, {"input", std::move(input)}};
}

std::string MessageJson::whole(const std::vector<AnswerText>& answers, const Usage& usage) {
  const AnswerText& answer = answers.front();
  Json content = Json::array();
  if (!answer.thoughts.empty()) content.push_back(thinking_block(answer.thoughts));
  if (!answer.text.empty() || (answer.thoughts.empty() && answer.calls.empty()))
    content.push_back(text_block(answer.text));
  int64_t number = 0;
  for (const ToolCall& call : answer.calls) content.push_back(call_block(call, number++));
  Json all = message(std::move(content), usage);
  all["stop_reason"] = stop_reason(answer);
  all["stop_sequence"] = stop_sequence(answer);
  return dumped(all);
}

void MessageJson::keep_attention(const FrameAttention& shown) {
  attention_ = json_of(shown);
}

std::string MessageJson::attention(const FrameAttention& shown) {
  keep_attention(shown);
  return ""; // the first event has it
}

// Tokens are counted when the answer ends, those of the prompt too.
std::string MessageJson::begin() {
  if (std::exchange(begun_, true)) return "";
  return event("message_start", {{"message", message(Json::array(), {})}});
}

std::string MessageJson::open_block(const std::string& type, Json block) {
  std::string events = begin();
  if (open_ == type && type != "tool_use") return events;
  events += close_block();
  open_ = type;
  return events + event("content_block_start", {{"index", blocks_}, {"content_block", std::move(block)}});
}

std::string MessageJson::delta(Json delta) const {
  return event("content_block_delta", {{"index", blocks_}, {"delta", std::move(delta)}});
}

std::string MessageJson::close_block() {
  if (std::exchange(open_, "").empty()) return "";
  return event("content_block_stop", {{"index", blocks_++}});
}

std::string MessageJson::piece(int64_t, const std::string& text, bool, const std::vector<TokenLogprob>&) {
  if (text.empty()) return begin();
  std::string events = open_block("text", text_block(""));
  return events + delta({{"type", "text_delta"}, {"text", text}});
}

std::string MessageJson::thoughts(int64_t, const std::string& text, bool) {
  std::string events = open_block("thinking", thinking_block(""));
  return events + delta({{"type", "thinking_delta"}, {"thinking", text}});
}

// A call is sent whole, since its text is read as one.
std::string MessageJson::call(int64_t, const ToolCall& call, bool) {
  Json block = call_block(call, calls_++);
  block["input"] = Json::object();
  std::string events = open_block("tool_use", std::move(block));
  events += delta({{"type", "input_json_delta"}, {"partial_json", call.arguments}});
  return events + close_block();
}

std::string MessageJson::last_piece(int64_t, const AnswerText& ended) {
  ended_ = ended;
  std::string events = begin();
  if (blocks_ == 0 && open_.empty()) events += open_block("text", text_block(""));
  return events + close_block();
}

std::string MessageJson::end(const Usage& usage) {
  const Json ended = {{"stop_reason", stop_reason(ended_)}, {"stop_sequence", stop_sequence(ended_)}};
  return event("message_delta", {{"delta", ended}, {"usage", usage_json(usage)}}) +
         event("message_stop", Json::object());
}

std::string MessageJson::failure(const Error& error) {
  return event("error", {{"error", {{"type", "api_error"}, {"message", message_of(error)}}}});
}

} // namespace fvlm::serve
