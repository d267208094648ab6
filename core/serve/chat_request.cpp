#include "serve/chat_request.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "serve/answer_form.h"
#include "serve/message_contents.h"
#include "serve/request_fields.h"
#include "serve/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>
#include <set>
#include <utility>

namespace fvlm::serve {
namespace {

using Json = nlohmann::json;

std::vector<std::string> stops_of(const RequestFields& fields) {
  const Json* value = fields.find("stop");
  if (!value || *value == Json("")) return {};
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

// By chat templates, besides the messages.
constexpr std::initializer_list<const char*> written_into_prompts = {"tools", "chat_template_kwargs"};

// {"50256": -100}: of tokens by their ids.
std::vector<std::pair<int64_t, double>> logit_bias_of(const RequestFields& fields) {
  constexpr const char* name = "logit_bias";
  constexpr size_t most = 1024;
  std::vector<std::pair<int64_t, double>> all;
  const Json* given = fields.find(name);
  if (!given) return all;
  if (!given->is_object() || given->size() > most)
    throw wrong_field(name, fmt::format("expected an object of at most {} tokens, got {}", most, shortened(*given)));
  for (const auto& [token, bias] : given->items()) {
    int64_t id = 0;
    const char* const end = token.data() + token.size();
    if (const auto read = std::from_chars(token.data(), end, id); read.ptr != end || read.ec != std::errc())
      throw wrong_field(name, "expected ids of tokens as keys, got " + shortened(token));
    all.emplace_back(id, RequestFields(*given, name).number(token.c_str(), 0, -100, 100));
  }
  return all;
}

std::optional<int64_t> max_tokens_of(const RequestFields& fields, ApiForm form, int64_t fewest,
                                     const RequestLimits& limits) {
  if (form == ApiForm::response) return fields.integer("max_output_tokens", fewest, limits.most_tokens);
  const auto older = fields.integer("max_tokens", fewest, limits.most_tokens),
             newer = fields.integer("max_completion_tokens", fewest, limits.most_tokens);
  if (older && newer && *older != *newer)
    throw wrong_field("max_completion_tokens",
                      fmt::format("it is another name for max_tokens, which is {}, got {}", *older, *newer));
  return newer ? newer : older;
}

void require_agreement(const ChatRequest& request, ApiForm form) {
  const auto& [ignore_eos, min_tokens, stop_token_ids] = request.stop_rules;
  if (request.max_tokens && min_tokens > *request.max_tokens)
    throw wrong_field("min_tokens", fmt::format("expected at most {}, which is {}, got {}",
                                                form == ApiForm::response ? "max_output_tokens" : "max_tokens",
                                                *request.max_tokens, min_tokens));
  if (request.form && (ignore_eos || min_tokens > 0))
    throw wrong_field(ignore_eos ? "ignore_eos" : "min_tokens",
                      "an answer of a given form ends where the form does: it does not go with one");
}

// What all forms have.
ChatRequest common(const RequestFields& fields, std::string_view body, const RequestLimits& limits, ApiForm form) {
  ChatRequest request;
  request.is_chat = form != ApiForm::completion;
  request.echo = !request.is_chat && fields.flag("echo");
  request.model = fields.text("model");
  request.stream = fields.flag("stream");
  if (const Json* options = fields.find("stream_options")) {
    if (!options->is_object()) throw wrong_field("stream_options", "expected an object");
    request.stream_usage = RequestFields(*options).flag("include_usage");
  }
  request.attention = fields.flag("attention");
  request.includes_thoughts = !fields.find("include_reasoning") || fields.flag("include_reasoning");
  request.shows_special_tokens = fields.find("skip_special_tokens") && !fields.flag("skip_special_tokens");
  request.answers = fields.integer("n", 1, limits.most_answers).value_or(1);
  const int64_t fewest = request.echo ? 0 : 1;
  request.max_tokens = max_tokens_of(fields, form, fewest, limits);
  request.stops = stops_of(fields);
  request.stop_rules = stop_rules_of(fields, limits);
  const infer::Sampling& usual = limits.usual_sampling;
  request.sampling.temperature = fields.number("temperature", usual.temperature, 0, 100);
  request.sampling.top_p = fields.number("top_p", usual.top_p, 1e-9, 1);
  request.sampling.min_p = fields.number("min_p", usual.min_p, 0, 1);
  const auto top_k = fields.integer("top_k", -1, std::numeric_limits<int32_t>::max()); // vLLM has -1 for all
  request.sampling.top_k = std::max<int64_t>(0, top_k.value_or(usual.top_k));
  request.sampling.repetition_penalty = fields.number("repetition_penalty", usual.repetition_penalty, 0.01, 100);
  request.sampling.frequency_penalty = fields.number("frequency_penalty", 0, -2, 2);
  request.sampling.presence_penalty = fields.number("presence_penalty", 0, -2, 2);
  request.sampling.logit_bias = logit_bias_of(fields);
  const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  request.sampling.seed = seed ? static_cast<uint64_t>(*seed) : std::random_device{}();
  refuse_unsupported(fields, form);
  fields.limit(written_into_prompts, limits.most_text);
  request.form = answer_form_of(fields, body, form);
  require_agreement(request, form);
  if (request.is_chat) read_tools(request, fields, body, form);
  if (const auto tried = fields.integer("best_of", 1, limits.most_answers); tried && *tried != request.answers)
    throw wrong_field(
        "best_of", fmt::format("all answers are returned: expected n, which is {}, got {}", request.answers, *tried));
  return request;
}

// OpenAI's names.
std::string effort_of(const RequestFields& fields, const char* name, const std::string& where) {
  const std::string effort = fields.text(name);
  const std::vector<std::string> known = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  if (!effort.empty() && std::ranges::find(known, effort) == known.end())
    throw wrong_field(where, fmt::format("expected {}, got {}", join_or(known), shortened(effort)));
  return effort;
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

// What `include` and top_logprobs of /v1/responses ask for. The other names are of what no answer here has.
std::optional<int64_t> response_logprobs(const RequestFields& fields) {
  constexpr std::string_view logprobs = "message.output_text.logprobs";
  const std::set<std::string_view> others = {"file_search_call.results",
                                             "web_search_call.results",
                                             "web_search_call.action.sources",
                                             "message.input_image.image_url",
                                             "computer_call_output.output.image_url",
                                             "code_interpreter_call.outputs",
                                             "reasoning.encrypted_content"};
  const Json* include = fields.find("include");
  if (include && !include->is_array())
    throw wrong_field("include", "expected a list of texts, got " + shortened(*include));
  bool has_logprobs = false;
  for (const Json& one : include ? *include : Json::array()) {
    const std::string name = one.is_string() ? one.get<std::string>() : "";
    has_logprobs |= name == logprobs;
    if (name != logprobs && !others.contains(name))
      throw wrong_field("include",
                        fmt::format("expected {} or another of OpenAI's names, got {}", logprobs, shortened(one)));
  }
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (has_logprobs) return top.value_or(0);
  if (top.value_or(0) > 0)
    throw wrong_field("top_logprobs", fmt::format("it goes with \"include\": [\"{}\"]", logprobs));
  return {};
}

Json metadata_of(const RequestFields& fields) {
  constexpr size_t most = 16, most_bytes = 16 << 10;
  const Json* metadata = fields.find("metadata");
  if (!metadata) return Json::object();
  if (!metadata->is_object() || metadata->size() > most || metadata->dump().size() > most_bytes ||
      !std::ranges::all_of(*metadata, [](const Json& value) { return value.is_string(); }))
    throw wrong_field("metadata", fmt::format("expected an object of at most {} texts, {} bytes together, got {}", most,
                                              most_bytes, shortened(*metadata)));
  return *metadata;
}

// Nothing is kept, whatever `store` says; without it OpenAI's clients mean true, as it is there.
std::shared_ptr<const Json> response_fields_of(const RequestFields& fields, const ChatRequest& request,
                                               Contents& contents) {
  const Json *text = fields.find("text"), *choice = fields.find("tool_choice");
  const Json* format = text ? RequestFields(*text).find("format") : nullptr;
  if (format) (void)contents.text(format->dump(), "text.format", false); // which counts it
  (void)fields.flag("store");
  const std::string& effort = request.reasoning_effort;
  const Json all = {{"background", false},
                    {"instructions", request.system ? Json(*request.system) : Json()},
                    {"max_output_tokens", request.max_tokens ? Json(*request.max_tokens) : Json()},
                    {"metadata", metadata_of(fields)},
                    {"parallel_tool_calls", !fields.find("parallel_tool_calls") || fields.flag("parallel_tool_calls")},
                    {"previous_response_id", nullptr},
                    {"reasoning", {{"effort", effort.empty() ? Json() : Json(effort)}, {"summary", nullptr}}},
                    {"store", false},
                    {"temperature", request.sampling.temperature},
                    {"text", {{"format", format ? *format : Json{{"type", "text"}}}}},
                    {"tool_choice", choice ? *choice : Json("auto")},
                    {"tools", fields.find("tools") ? *fields.find("tools") : Json::array()},
                    {"top_logprobs", request.top_logprobs.value_or(0)},
                    {"top_p", request.sampling.top_p},
                    {"truncation", "disabled"}};
  return std::make_shared<const Json>(all);
}

} // namespace

ChatRequest parse_chat(std::string_view body, const RequestLimits& limits) {
  const Json document = object_of(body);
  const RequestFields fields(document);
  ChatRequest request = common(fields, body, limits, ApiForm::chat);
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (fields.flag("logprobs"))
    request.top_logprobs = top.value_or(0);
  else if (top.value_or(0) > 0)
    throw wrong_field("top_logprobs", "it goes with \"logprobs\": true");
  request.template_variables = template_variables_of(fields);
  request.reasoning_effort = effort_of(fields, "reasoning_effort", "reasoning_effort");
  const Json* messages = fields.find("messages");
  Contents(request, limits).add_messages(messages ? *messages : Json(), "messages");
  return request;
}

ChatRequest parse_response(std::string_view body, const RequestLimits& limits) {
  const Json document = object_of(body);
  const RequestFields fields(document);
  if (const Json* text = fields.find("text"); text && !text->is_object())
    throw wrong_field("text", "expected an object with a format, got " + shortened(*text));
  ChatRequest request = common(fields, body, limits, ApiForm::response);
  if (request.answers != 1) throw wrong_field("n", "a response has one answer");
  if (const std::string truncation = fields.text("truncation"); !truncation.empty() && truncation != "disabled")
    throw wrong_field("truncation", "expected disabled, since this server leaves out nothing of a conversation");
  request.top_logprobs = response_logprobs(fields);
  request.template_variables = template_variables_of(fields);
  if (const Json* reasoning = fields.find("reasoning")) {
    if (!reasoning->is_object())
      throw wrong_field("reasoning", "expected an object with an effort, got " + shortened(*reasoning));
    request.reasoning_effort = effort_of(RequestFields(*reasoning, "reasoning"), "effort", "reasoning.effort");
  }
  Contents contents(request, limits);
  if (fields.find("instructions")) request.system = contents.text(fields.text("instructions"), "instructions", false);
  request.response_fields = response_fields_of(fields, request, contents);
  const Json* input = fields.find("input");
  if (!input || !(input->is_string() || input->is_array()))
    throw wrong_field("input", "expected a text or a list of messages, got " + (input ? shortened(*input) : "nothing"));
  if (input->is_string())
    request.turns.push_back({"user", contents.text(input->get<std::string>(), "input", true)});
  else
    contents.add_items(*input, "input");
  return request;
}

ChatRequest parse_tokenize(std::string_view body, const RequestLimits& limits) {
  const Json document = object_of(body);
  const RequestFields fields(document);
  fields.refuse({"chat_template", "documents", "add_generation_prompt", "continue_final_message", "mm_processor_kwargs",
                 "return_token_strs"});
  const Json* messages = fields.find("messages");
  if (!messages == !fields.find("prompt")) throw wrong_field("prompt", "expected either a prompt or messages");
  ChatRequest request;
  request.model = fields.text("model");
  request.is_chat = messages;
  const bool adds_tokens = fields.flag("add_special_tokens");
  Contents contents(request, limits);
  if (!messages) {
    request.turns.push_back({"user", contents.text(fields.text("prompt"), "prompt", false)});
    return request;
  }
  fields.limit(written_into_prompts, limits.most_text);
  read_tools(request, fields, body, ApiForm::chat);
  if (adds_tokens) throw wrong_field("add_special_tokens", "it goes with a prompt; a chat template has its own tokens");
  request.template_variables = template_variables_of(fields);
  contents.add_messages(*messages, "messages");
  if (!request.images.empty())
    throw wrong_field("messages", "pictures are not tokenized; usage of an answer counts what they take");
  return request;
}

ChatRequest parse_detokenize(std::string_view body, const RequestLimits& limits) {
  const Json document = object_of(body);
  const RequestFields fields(document);
  ChatRequest request;
  request.model = fields.text("model");
  const Json* tokens = fields.find("tokens");
  request.tokens = Contents(request, limits).tokens(tokens ? *tokens : Json(), "tokens");
  return request;
}

namespace {

// One request for each text or list of tokens that the field has, `most` of them.
std::vector<ChatRequest> with_texts_of(const char* name, ChatRequest request, const RequestFields& fields,
                                       const RequestLimits& limits, int64_t most) {
  constexpr const char* expected = "expected a text, a list of texts, a list of tokens, or a list of such lists";
  const Json* field = fields.find(name);
  if (!field) throw wrong_field(name, expected);
  const bool is_list = field->is_array() && !field->empty() && !field->front().is_number();
  const Json texts = is_list ? *field : Json::array({*field});
  if (std::ssize(texts) > most)
    throw wrong_field(name, fmt::format("a request has at most {} {}s, not {}", most, name, texts.size()));
  Contents contents(request, limits);
  std::vector<ChatRequest> requests;
  for (const Json& one : texts) {
    ChatRequest& of_text = requests.emplace_back(request);
    of_text.first_answer = (std::ssize(requests) - 1) * request.answers;
    if (one.is_string())
      of_text.turns.push_back({"user", contents.text(one.get<std::string>(), name, false)});
    else if (one.is_array() && !one.empty())
      of_text.tokens = contents.tokens(one, name);
    else
      throw wrong_field(name, fmt::format("{}, got {}", expected, shortened(one)));
  }
  return requests;
}

} // namespace

std::vector<ChatRequest> parse_completions(std::string_view body, const RequestLimits& limits) {
  const Json document = object_of(body);
  const RequestFields fields(document);
  ChatRequest request = common(fields, body, limits, ApiForm::completion);
  request.top_logprobs = fields.integer("logprobs", 0, 5);
  constexpr int64_t usual_tokens = 16; // OpenAI's, for texts alone
  if (!request.max_tokens && !limits.max_tokens)
    request.max_tokens = std::max(usual_tokens, request.stop_rules.min_tokens);
  return with_texts_of("prompt", std::move(request), fields, limits, limits.most_prompts);
}

std::vector<ChatRequest> parse_embeddings(std::string_view body, const RequestLimits& limits, int64_t width) {
  const Json document = object_of(body);
  const RequestFields fields(document);
  fields.refuse({"truncate_prompt_tokens", "chat_template", "continue_final_message", "documents", "tools"});
  ChatRequest request;
  request.model = fields.text("model");
  EmbeddingForm& form = request.embedding.emplace();
  form.dimensions = fields.integer("dimensions", 1, width).value_or(0);
  form.normalize = !fields.find("normalize") || fields.flag("normalize");
  const std::string encoding = fields.text("encoding_format");
  if (!encoding.empty() && encoding != "float" && encoding != "base64")
    throw wrong_field("encoding_format", "expected float or base64, got " + shortened(encoding));
  form.is_base64 = encoding == "base64";
  const Json* messages = fields.find("messages");
  if (!messages == !fields.find("input")) throw wrong_field("input", "expected either an input or messages");
  request.is_chat = messages;
  if (!messages) return with_texts_of("input", std::move(request), fields, limits, limits.most_inputs);
  request.template_variables = template_variables_of(fields);
  Contents(request, limits).add_messages(*messages, "messages");
  return {std::move(request)};
}

} // namespace fvlm::serve
