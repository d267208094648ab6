#include "serve/message_request.h"

#include "base/text.h"
#include "serve/message_contents.h"
#include "serve/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

namespace fvlm::serve {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json; // the order of a schema's properties is that of the arguments

constexpr std::array same_in_chats = {"model",
                                      "max_tokens",
                                      "temperature",
                                      "top_p",
                                      "top_k",
                                      "stream",
                                      "seed",
                                      "min_p",
                                      "repetition_penalty",
                                      "frequency_penalty",
                                      "presence_penalty",
                                      "logit_bias",
                                      "chat_template_kwargs",
                                      "structured_outputs",
                                      "ignore_eos",
                                      "min_tokens",
                                      "stop_token_ids",
                                      "attention"};
// What would change an answer and is not there, or has another name here. Other fields are ignored.
struct Refused {
  const char *name, *why;
};
constexpr std::array refused = {Refused{"container", "this server runs nothing"},
                                Refused{"mcp_servers", "this server calls no others"},
                                Refused{"n", "a message has one answer"},
                                Refused{"logprobs", "/v1/chat/completions and /v1/responses have them"},
                                Refused{"response_format", "in /v1/messages it is output_config.format"},
                                Refused{"reasoning_effort", "in /v1/messages it is output_config.effort"},
                                Refused{"stop", "in /v1/messages it is stop_sequences"}};

std::string type_of(const Ordered& value) {
  const auto type = value.is_object() ? value.find("type") : value.end();
  return value.is_object() && type != value.end() && type->is_string() ? type->get<std::string>() : "";
}

std::string text_of(const Ordered& value, const char* name, const std::string& where) {
  const auto found = value.find(name);
  if (found == value.end() || !found->is_string()) throw wrong_field(where, fmt::format("expected a text {}", name));
  return found->get<std::string>();
}

Ordered image_part(const Ordered& block, const std::string& where) {
  const Ordered source = block.value("source", Ordered());
  const std::string type = type_of(source);
  std::string url;
  if (type == "url")
    url = text_of(source, "url", where + ".source");
  else if (type == "base64")
    url = fmt::format("data:{};base64,{}", text_of(source, "media_type", where + ".source"),
                      text_of(source, "data", where + ".source"));
  else
    throw wrong_field(where + ".source", "expected a source of type base64, got " + shortened(Json(source)));
  return {{"type", "image_url"}, {"image_url", {{"url", url}}}};
}

// A text, or a list of blocks: each goes to `add` with its place.
template <class Add>
void each_block(const Ordered& content, const std::string& where, const Add& add) {
  if (content.is_string()) return add(Ordered{{"type", "text"}, {"text", content}}, where);
  if (!content.is_array())
    throw wrong_field(where, "expected a text or a list of blocks, got " + shortened(Json(content)));
  for (size_t i = 0; i < content.size(); ++i) add(content[i], fmt::format("{}[{}]", where, i));
}

Error unknown_block(const Ordered& block, const std::string& where, const char* known) {
  return wrong_field(where, fmt::format("expected a block of type {}, got {}", known, shortened(Json(block))));
}

Ordered text_part(const Ordered& block, const std::string& where) {
  return {{"type", "text"}, {"text", text_of(block, "text", where)}};
}

// The result of a tool as a message, and its pictures as parts of what the user says then, since a message of a tool
// is text.
Ordered result_message(const Ordered& block, const std::string& where, Ordered& parts) {
  Ordered texts = Ordered::array();
  if (const auto content = block.find("content"); content != block.end() && !content->is_null())
    each_block(*content, where + ".content", [&](const Ordered& one, const std::string& at) {
      if (type_of(one) == "text")
        texts.push_back(text_part(one, at));
      else if (type_of(one) == "image")
        parts.push_back(image_part(one, at));
      else
        throw unknown_block(one, at, "text or image");
    });
  if (texts.empty()) texts.push_back({{"type", "text"}, {"text", ""}});
  return {{"role", "tool"}, {"tool_call_id", text_of(block, "tool_use_id", where)}, {"content", std::move(texts)}};
}

// Results of tools come first, as they do at Anthropic.
void add_user(const Ordered& content, const std::string& where, Ordered& messages) {
  Ordered parts = Ordered::array();
  each_block(content, where, [&](const Ordered& block, const std::string& at) {
    const std::string type = type_of(block);
    if (type == "text")
      parts.push_back(text_part(block, at));
    else if (type == "image")
      parts.push_back(image_part(block, at));
    else if (type == "tool_result")
      messages.push_back(result_message(block, at, parts));
    else
      throw unknown_block(block, at, "text, image or tool_result");
  });
  if (!parts.empty()) messages.push_back({{"role", "user"}, {"content", std::move(parts)}});
}

Ordered call_of(const Ordered& block, const std::string& where) {
  const Ordered input = block.value("input", Ordered::object());
  return {{"id", text_of(block, "id", where)},
          {"type", "function"},
          {"function",
           {{"name", text_of(block, "name", where)},
            {"arguments", input.dump(-1, ' ', false, Ordered::error_handler_t::replace)}}}};
}

Ordered answer_message(const Ordered& content, const std::string& where) {
  std::string text, thoughts;
  Ordered calls = Ordered::array();
  each_block(content, where, [&](const Ordered& block, const std::string& at) {
    const std::string type = type_of(block);
    if (type == "text")
      text += text_of(block, "text", at);
    else if (type == "thinking")
      thoughts += text_of(block, "thinking", at);
    else if (type == "tool_use")
      calls.push_back(call_of(block, at));
    else if (type != "redacted_thinking") // which nobody can read
      throw unknown_block(block, at, "text, thinking or tool_use");
  });
  Ordered message = {{"role", "assistant"}, {"content", text}};
  if (!thoughts.empty()) message["reasoning_content"] = thoughts;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

// Of the system, whose blocks are text: its lines.
std::string system_text(const Ordered& content, const std::string& where) {
  std::vector<std::string> texts;
  each_block(content, where, [&](const Ordered& block, const std::string& at) {
    if (type_of(block) != "text") throw unknown_block(block, at, "text");
    texts.push_back(text_of(block, "text", at));
  });
  return join(texts, "\n");
}

Ordered messages_of(const Ordered& request) {
  Ordered messages = Ordered::array();
  const Ordered given = request.value("messages", Ordered());
  if (!given.is_array() || given.empty())
    throw wrong_field("messages", "expected a list of messages, got " + shortened(Json(given)));
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i), content = where + ".content";
    const Ordered role = given[i].is_object() ? given[i].value("role", Ordered()) : Ordered();
    const Ordered said = given[i].is_object() ? given[i].value("content", Ordered()) : Ordered();
    if (role == "user")
      add_user(said, content, messages);
    else if (role == "assistant")
      messages.push_back(answer_message(said, content));
    else if (role == "system")
      messages.push_back({{"role", "system"}, {"content", system_text(said, content)}});
    else
      throw wrong_field(where,
                        "expected an object with the role user, assistant or system, got " + shortened(Json(given[i])));
  }
  return messages;
}

Ordered tools_of(const Ordered& given) {
  if (!given.is_array()) throw wrong_field("tools", "expected a list of tools, got " + shortened(Json(given)));
  Ordered tools = Ordered::array();
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i), type = type_of(given[i]);
    if (!given[i].is_object() || (!type.empty() && type != "custom"))
      throw wrong_field(where,
                        "expected a tool that the client has, {\"name\": \"...\", \"input_schema\": {...}}, got " +
                            shortened(Json(given[i])));
    Ordered function = {{"name", text_of(given[i], "name", where)}};
    if (given[i].contains("description")) function["description"] = given[i]["description"];
    if (given[i].contains("input_schema")) function["parameters"] = given[i]["input_schema"];
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

void add_tool_choice(const Ordered& given, Ordered& chat) {
  const std::string type = type_of(given);
  if (type == "auto" || type == "none")
    chat["tool_choice"] = type;
  else if (type == "any")
    chat["tool_choice"] = "required";
  else if (type == "tool")
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", text_of(given, "name", "tool_choice")}}}};
  else
    throw wrong_field("tool_choice",
                      R"(expected the type "auto", "any", "tool" or "none", got )" + shortened(Json(given)));
  if (const Ordered alone = given.value("disable_parallel_tool_use", Ordered()); alone == true)
    chat["parallel_tool_calls"] = false;
}

// How many tokens of thoughts there may be is the model's business.
void add_thinking(const Ordered& given, Ordered& chat) {
  const std::string type = type_of(given);
  if (type != "enabled" && type != "disabled" && type != "adaptive" && type != "between_tools")
    throw wrong_field("thinking",
                      R"(expected the type "enabled", "adaptive" or "disabled", got )" + shortened(Json(given)));
  if (type == "disabled")
    chat["reasoning_effort"] = "none";
  else if (!chat.contains("reasoning_effort"))
    chat["reasoning_effort"] = "high";
}

void add_output(const Ordered& given, Ordered& chat) {
  if (!given.is_object()) throw wrong_field("output_config", "expected an object, got " + shortened(Json(given)));
  for (const auto& [name, value] : given.items())
    if (name == "effort")
      chat["reasoning_effort"] = value;
    else if (name == "format" && type_of(value) == "json_schema")
      chat["response_format"] = {{"type", "json_schema"},
                                 {"json_schema", {{"name", "answer"}, {"schema", value.value("schema", Ordered())}}}};
    else if (!value.is_null())
      throw wrong_field("output_config." + name, "expected an effort, or a format of type json_schema");
}

Ordered object_in_order(std::string_view body) {
  const Json document = object_of(body); // which is strict
  return RequestFields(document).in_order(body);
}

// The body of the same request to /v1/chat/completions, but for the system's text before its messages.
std::string chat_of(const Ordered& request, const RequestLimits& limits) {
  Ordered chat = {{"messages", messages_of(request)}};
  for (const auto& [name, value] : request.items()) {
    if (value.is_null()) continue;
    for (const auto& [other, why] : refused)
      if (name == other) throw wrong_field(name, why);
    if (std::ranges::find(same_in_chats, name) != same_in_chats.end())
      chat[name] = value;
    else if (name == "stop_sequences")
      chat["stop"] = value;
    else if (name == "tools")
      chat["tools"] = tools_of(value);
    else if (name == "tool_choice")
      add_tool_choice(value, chat);
    else if (name == "output_config")
      add_output(value, chat);
  }
  if (const Ordered thinking = request.value("thinking", Ordered()); !thinking.is_null()) add_thinking(thinking, chat);
  // Clients ask for as many tokens as another model can write.
  if (Ordered& tokens = chat["max_tokens"]; tokens.is_number_integer() && tokens > limits.most_tokens)
    tokens = limits.most_tokens;
  return chat.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

} // namespace

ChatRequest parse_message(std::string_view body, const RequestLimits& limits) {
  std::string chat, system;
  {
    const Ordered given = object_in_order(body);
    chat = chat_of(given, limits);
    if (const Ordered text = given.value("system", Ordered()); !text.is_null()) system = system_text(text, "system");
  }
  ChatRequest request = parse_chat(chat, limits);
  if (system.empty()) return request;
  system = Contents(request, limits).text(system, "system", false);
  request.system = request.system ? system + "\n" + *request.system : system;
  return request;
}

} // namespace fvlm::serve
