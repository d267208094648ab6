#include "serve/request_fields.h"

#include "base/json.h"
#include "data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace fvlm::serve {

using Json = nlohmann::json;

namespace {

// What clients send that name every field: OpenAI's and vLLM's defaults.
bool asks_for_nothing(const std::string& name, const Json& value) {
  static const std::multimap<std::string, Json> usual = {
      {"tool_choice", "none"},
      {"tool_choice", "auto"},
      {"function_call", "none"},
      {"function_call", "auto"},
      {"length_penalty", 1},
      {"modalities", Json::array({"text"})},
      {"n_predict", -1},
      {"repeat_penalty", 1},
      {"typical_p", 1},
      {"dynatemp_range", 0},
      {"xtc_probability", 0},
      {"dry_multiplier", 0},
      {"top_n_sigma", -1},
      {"mirostat", 0},
      {"thinking_budget_tokens", -1},
      {"reasoning_format", "auto"},
      {"reasoning_format", "deepseek"},
  };
  if (name == "add_generation_prompt") return value == Json(true);
  const auto [first, last] = usual.equal_range(name);
  return value == Json(false) || value == Json("") || value == Json{{"type", "text"}} ||
         (value.is_structured() && value.empty()) ||
         std::any_of(first, last, [&](const auto& own) { return own.second == value; });
}

// A whole number, written as one or with nothing but zeros behind its point.
std::optional<int64_t> whole_number(const Json& value) {
  constexpr double exact = 1LL << 53;
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::abs(number) > exact || number != std::trunc(number)) return {};
    return static_cast<int64_t>(number);
  }
  if (!value.is_number_integer()) return {};
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return {};
  return value.get<int64_t>();
}

void limit_keys(const Json& value) {
  constexpr size_t most = 1024; // those of logit_bias
  if (value.is_object() && value.size() > most)
    throw wrong_field("", fmt::format("an object of the request has more than {} keys", most));
  if (value.is_structured())
    for (const Json& each : value) limit_keys(each);
}

} // namespace

Error wrong_field(const std::string& field, const std::string& what) {
  return Error(ErrorKind::usage, field.empty() ? what : fmt::format("{}: {}", field, what)).at(field);
}

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

std::string shortened(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
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

std::string RequestFields::place_of(const char* name) const {
  return where_.empty() ? name : fmt::format("{}.{}", where_, name);
}

const Json* RequestFields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

double RequestFields::number(const char* name, double usual, double least, double most) const {
  const Json* value = find(name);
  if (!value) return usual;
  if (!value->is_number() || value->get<double>() < least || value->get<double>() > most)
    throw wrong_field(place_of(name),
                      fmt::format("expected a number from {} to {}, got {}", least, most, shortened(*value)));
  return value->get<double>();
}

std::optional<int64_t> RequestFields::integer(const char* name, int64_t least, int64_t most) const {
  const Json* value = find(name);
  if (!value) return {};
  const auto number = whole_number(*value);
  if (!number || *number < least || *number > most)
    throw wrong_field(place_of(name),
                      fmt::format("expected a whole number from {} to {}, got {}", least, most, shortened(*value)));
  return number;
}

bool RequestFields::flag(const char* name) const {
  const Json* value = find(name);
  if (value && !value->is_boolean())
    throw wrong_field(place_of(name), "expected true or false, got " + shortened(*value));
  return value && value->get<bool>();
}

std::string RequestFields::text(const char* name) const {
  const Json* value = find(name);
  if (!value) return "";
  if (!value->is_string()) throw wrong_field(place_of(name), "expected a string, got " + shortened(*value));
  return value->get<std::string>();
}

void RequestFields::limit(std::initializer_list<const char*> names, int64_t most) const {
  for (const char* name : names)
    if (const Json* value = find(name);
        value && std::ssize(value->dump(-1, ' ', false, Json::error_handler_t::replace)) > most)
      throw wrong_field(place_of(name), fmt::format("a request has at most {} bytes of it", most));
}

bool RequestFields::asks(const char* name) const {
  const Json* value = find(name);
  return value && !asks_for_nothing(name, *value);
}

// The library's parser takes callbacks, which could count keys; with any it takes a time that grows with the square of
// an array's length.
nlohmann::ordered_json RequestFields::in_order(std::string_view body) const {
  limit_keys(object_);
  return nlohmann::ordered_json::parse(body);
}

void RequestFields::refuse(std::initializer_list<const char*> names) const {
  for (const std::string name : names)
    if (asks(name.c_str())) {
      Error error = wrong_field(place_of(name.c_str()), "this server does not support it");
      if (name.starts_with("function")) error.advise("send tools and tool_choice");
      if (name.starts_with("tool")) error.advise("send them to /v1/chat/completions or /v1/responses");
      if (name == "previous_response_id" || name == "conversation" || name == "background")
        error.advise("nothing is kept between two requests; send the whole conversation as input");
      if (name == "regex" || name == "ebnf") error.advise("structured_outputs takes json, regex, choice and grammar");
      throw error;
    }
}

namespace {

struct OtherName {
  const char *name, *own;
};

// What other servers, or other forms of a request, name differently.
void refuse_other_names(const RequestFields& fields, ApiForm form) {
  const auto refuse = [&](std::initializer_list<OtherName> names, const char* where) {
    for (const auto& [name, own] : names)
      if (fields.asks(name)) throw wrong_field(name, fmt::format("{} it is {}", where, own));
  };
  refuse({{"n_predict", "max_tokens"},
          {"repeat_penalty", "repetition_penalty"},
          {"images", "a part image_url of a message"},
          {"image_data", "a part image_url of a message"},
          {"lora", "the adapter's name as model"},
          {"lora_path", "the adapter's name as model"},
          {"format", "response_format"},
          {"options", "fields of the request itself"},
          {"extra_body", "fields of the request itself"}},
         "here");
  // False asks for something, too.
  if (fields.find("enable_thinking")) throw wrong_field("enable_thinking", "here it is a key of chat_template_kwargs");
  if (form == ApiForm::response)
    return refuse({{"messages", "input"},
                   {"max_tokens", "max_output_tokens"},
                   {"max_completion_tokens", "max_output_tokens"},
                   {"reasoning_effort", "reasoning.effort"},
                   {"thinking", "reasoning.effort"},
                   {"response_format", "text.format"},
                   {"logprobs", "message.output_text.logprobs in include"}},
                  "in /v1/responses");
  refuse({{"max_output_tokens", "max_tokens"}}, "here");
  if (form == ApiForm::chat)
    refuse({{"reasoning", "reasoning_effort"},
            {"thinking", "reasoning_effort"},
            {"instructions", "a message of the role system"}},
           "in /v1/chat/completions");
}

} // namespace

void refuse_unsupported(const RequestFields& fields, ApiForm form) {
  refuse_other_names(fields, form);
  fields.refuse({"functions", "function_call", "suffix", "bad_words", "modalities", "audio"});
  // An empty object turns the search on.
  if (fields.find("web_search_options")) throw wrong_field("web_search_options", "this server searches nothing");
  if (form == ApiForm::completion) fields.refuse({"tools", "tool_choice"});
  // vLLM's and SGLang's
  fields.refuse({"regex", "ebnf", "allowed_token_ids", "use_beam_search", "length_penalty", "prompt_logprobs",
                 "truncate_prompt_tokens", "include_stop_str_in_output", "structural_tag", "stop_regex", "no_stop_trim",
                 "logits_processors", "custom_logit_processor", "guided_whitespace_pattern", "thinking_token_budget"});
  // llama.cpp's
  fields.refuse({"typical_p", "dynatemp_range", "xtc_probability", "dry_multiplier", "top_n_sigma", "mirostat",
                 "thinking_budget_tokens", "reasoning_format"});
  if (form != ApiForm::completion)
    fields.refuse({"echo", "chat_template", "documents", "add_generation_prompt", "continue_final_message",
                   "mm_processor_kwargs"});
  if (form == ApiForm::response)
    fields.refuse({"previous_response_id", "conversation", "background", "prompt", "context_management", "moderation"});
}

} // namespace fvlm::serve
