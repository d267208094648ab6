#include "serve/response_json.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace fvlm::serve {

using Json = nlohmann::json;

ResponseJson::ResponseJson(const ChatRequest& request, const std::string& id, int64_t created)
    : shared_(*request.response_fields), item_id_("msg_" + id), id_(id) {
  shared_.update({{"id", "resp_" + id}, {"object", "response"}, {"created_at", created}, {"model", request.model}});
}

std::string ResponseJson::whole(const std::vector<AnswerText>& answers, const Usage& usage) {
  answer_ = answers.front();
  return dumped(ended(usage));
}

void ResponseJson::keep_attention(const FrameAttention& shown) {
  shared_["attention"] = json_of(shown);
}

std::string ResponseJson::attention(const FrameAttention& shown) {
  keep_attention(shown);
  return "";
}

const char* ResponseJson::status() const {
  return std::string_view(answer_.finish) == "length" ? "incomplete" : "completed";
}

Json ResponseJson::part() const {
  return {{"type", "output_text"},
          {"text", answer_.text},
          {"annotations", Json::array()},
          {"logprobs", logprobs_json(answer_.tokens)}};
}

Json ResponseJson::item(const char* status, Json content) const {
  return {{"type", "message"},
          {"id", item_id_},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

Json ResponseJson::thought_item(const char* status) const {
  return {{"type", "reasoning"},
          {"id", "rs_" + id_},
          {"status", status},
          {"summary", Json::array()},
          {"content", Json::array({{{"type", "reasoning_text"}, {"text", answer_.thoughts}}})}};
}

Json ResponseJson::response(const char* status) const {
  Json all = shared_;
  all.update({{"status", status},
              {"output", Json::array()},
              {"usage", nullptr},
              {"error", nullptr},
              {"incomplete_details", nullptr}});
  return all;
}

Json ResponseJson::ended(const Usage& usage) const {
  Json all = response(status());
  Json& output = all["output"];
  const bool has_more = has_message() || !answer_.calls.empty();
  if (thought_items() > 0) output.push_back(thought_item(has_more ? "completed" : status()));
  for (size_t i = 0; i < answer_.calls.size(); ++i) output.push_back(call_item(i, status()));
  if (has_message()) {
    const size_t place = message_begun_ ? message_at_ : thought_items();
    output.insert(output.begin() + static_cast<std::ptrdiff_t>(place), item(status(), Json::array({part()})));
  }
  if (all["status"] == "incomplete") all["incomplete_details"] = {{"reason", "max_output_tokens"}};
  all["usage"] = {{"input_tokens", usage.prompt},
                  {"input_tokens_details", {{"cached_tokens", usage.cached}, {"cache_write_tokens", 0}}},
                  {"output_tokens", usage.completion},
                  {"output_tokens_details", {{"reasoning_tokens", usage.thoughts}}},
                  {"total_tokens", usage.prompt + usage.completion}};
  return all;
}

std::string ResponseJson::event(const char* type, Json fields) {
  fields["type"] = type;
  fields["sequence_number"] = events_++;
  return fmt::format("event: {}\ndata: {}\n\n", type, dumped(fields));
}

// Of what happens to the one part.
std::string ResponseJson::part_event(const char* type, Json fields) {
  fields.update({{"item_id", item_id_}, {"output_index", message_at_}, {"content_index", 0}});
  return event(type, std::move(fields));
}

// What stands before the first piece.
std::string ResponseJson::begin(bool first) {
  std::string events;
  if (!first) return events;
  for (const char* type : {"response.created", "response.in_progress"})
    events += event(type, {{"response", response("in_progress")}});
  return events;
}

std::string ResponseJson::begin_message() {
  message_begun_ = true;
  message_at_ = thought_items() + answer_.calls.size();
  std::string events = event("response.output_item.added",
                             {{"output_index", message_at_}, {"item", item("in_progress", Json::array())}});
  return events + part_event("response.content_part.added", {{"part", part()}});
}

// Of what happens to the part of the item of thoughts, which is the first one.
std::string ResponseJson::thought_event(const char* type, Json fields) {
  fields.update({{"item_id", thought_item("")["id"]}, {"output_index", 0}, {"content_index", 0}});
  return event(type, std::move(fields));
}

std::string ResponseJson::thoughts(int64_t, const std::string& text, bool first) {
  std::string events = begin(first);
  if (answer_.thoughts.empty()) {
    Json opened = thought_item("in_progress"), part = opened["content"][0];
    opened["content"] = Json::array();
    events += event("response.output_item.added", {{"output_index", 0}, {"item", std::move(opened)}});
    events += thought_event("response.content_part.added", {{"part", std::move(part)}});
  }
  answer_.thoughts += text;
  return events + thought_event("response.reasoning_text.delta", {{"delta", text}});
}

std::string ResponseJson::end_thoughts(const char* status) {
  if (answer_.thoughts.empty() || std::exchange(thoughts_ended_, true)) return "";
  const Json done = thought_item(status);
  std::string events = thought_event("response.reasoning_text.done", {{"text", answer_.thoughts}});
  events += thought_event("response.content_part.done", {{"part", done["content"][0]}});
  return events + event("response.output_item.done", {{"output_index", 0}, {"item", done}});
}

// Written without a document, since every token is one.
std::string ResponseJson::piece(int64_t, const std::string& text, bool first, const std::vector<TokenLogprob>& tokens) {
  if (text.empty() && !message_begun_ && !answer_.calls.empty()) return ""; // the tokens of calls
  std::string events = begin(first) + end_thoughts("completed");
  if (!message_begun_) events += begin_message();
  answer_.text += text;
  answer_.tokens.insert(answer_.tokens.end(), tokens.begin(), tokens.end());
  return events +
         fmt::format("event: response.output_text.delta\n"
                     "data: {{\"content_index\":0,\"delta\":{},\"item_id\":\"{}\",\"logprobs\":{},"
                     "\"output_index\":{},\"sequence_number\":{},\"type\":\"response.output_text.delta\"}}\n\n",
                     dumped(text), item_id_, dumped(logprobs_json(tokens)), message_at_, events_++);
}

Json ResponseJson::call_item(size_t number, const char* status) const {
  const ToolCall& call = answer_.calls[number];
  return {{"type", "function_call"},
          {"id", fmt::format("fc_{}_{}", id_, number)},
          {"call_id", call_id(id_, 0, static_cast<int64_t>(number))},
          {"name", call.name},
          {"arguments", call.arguments},
          {"status", status}};
}

// A call is sent whole, since its text is read as one. Its item comes behind the message's, which then has to be there.
std::string ResponseJson::call(int64_t, const ToolCall& call, bool first) {
  std::string events = begin(first) + end_thoughts("completed");
  const size_t number = answer_.calls.size(), place = thought_items() + number + (message_begun_ ? 1 : 0);
  answer_.calls.push_back(call);
  Json opened = call_item(number, "in_progress");
  const Json id = opened["id"];
  opened["arguments"] = "";
  const auto of_call = [&](Json fields) {
    fields.update({{"item_id", id}, {"output_index", place}});
    return fields;
  };
  events += event("response.output_item.added", {{"output_index", place}, {"item", std::move(opened)}});
  events += event("response.function_call_arguments.delta", of_call({{"delta", call.arguments}}));
  events +=
      event("response.function_call_arguments.done", of_call({{"arguments", call.arguments}, {"name", call.name}}));
  return events +
         event("response.output_item.done", {{"output_index", place}, {"item", call_item(number, "completed")}});
}

std::string ResponseJson::last_piece(int64_t, const AnswerText& ended) {
  std::string events = begin(events_ == 0);
  answer_.finish = ended.finish;
  events += end_thoughts(status());
  if (!message_begun_ && !has_message()) return events;
  if (!message_begun_) events += begin_message();
  events +=
      part_event("response.output_text.done", {{"text", answer_.text}, {"logprobs", logprobs_json(answer_.tokens)}});
  events += part_event("response.content_part.done", {{"part", part()}});
  Json done = item(status(), Json::array({part()}));
  return events + event("response.output_item.done", {{"output_index", message_at_}, {"item", std::move(done)}});
}

std::string ResponseJson::end(const Usage& usage) {
  return event(fmt::format("response.{}", status()).c_str(), {{"response", ended(usage)}});
}

std::string ResponseJson::failure(const Error& error) {
  const Json why = {{"code", "server_error"}, {"message", message_of(error)}};
  Json failed = response("failed");
  failed["error"] = why;
  std::string events = event("error", why);
  return events + event("response.failed", {{"response", std::move(failed)}});
}

} // namespace fvlm::serve
