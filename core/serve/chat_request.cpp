#include "serve/chat_request.h"

#include "base/error.h"
#include "base/json.h"
#include "serve/answer_form.h"
#include "serve/message_contents.h"
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
  request.template_variables = template_variables_of(fields);
  const Json* messages = fields.find("messages");
  Contents(request, limits).add_messages(messages ? *messages : Json(), "messages");
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
