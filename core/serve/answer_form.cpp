#include "serve/answer_form.h"

#include "base/error.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::serve {
namespace {

using Ordered = nlohmann::ordered_json; // the order of a schema's properties is that of the answer's

const Ordered* member(const Ordered& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// `holds_schema`: the schema is beside the type, as in text.format, and not in an object of its own.
grammar::Grammar of_format(const Ordered& format, const char* field, bool holds_schema) {
  const Ordered* const type = format.is_object() ? member(format, "type") : nullptr;
  if (type && *type == "json_object") { // with a schema beside it, as llama.cpp has it
    const Ordered* const schema = member(format, "schema");
    return schema ? grammar::of_json_schema(*schema) : grammar::of_json_object();
  }
  if (!type || *type != "json_schema")
    throw wrong_field(field, "expected an object whose type is text, json_object or json_schema");
  const Ordered* const holder = holds_schema ? &format : member(format, "json_schema");
  const Ordered* const schema = holder && holder->is_object() ? member(*holder, "schema") : nullptr;
  if (!schema)
    throw wrong_field(field, holds_schema
                                 ? R"(expected {"type": "json_schema", "name": "...", "schema": {}})"
                                 : R"(expected {"type": "json_schema", "json_schema": {"name": "...", "schema": {}}})");
  return grammar::of_json_schema(*schema);
}

grammar::Grammar of_schema(const Ordered& schema) {
  return schema.is_string() ? grammar::of_json_schema(schema.get_ref<const std::string&>(), "")
                            : grammar::of_json_schema(schema);
}

grammar::Grammar of_regex(const Ordered& pattern) {
  if (!pattern.is_string()) throw Error(ErrorKind::usage, "expected a regular expression, a text");
  return grammar::of_pattern(pattern.get_ref<const std::string&>());
}

grammar::Grammar of_grammar(const Ordered& text) {
  if (!text.is_string()) throw Error(ErrorKind::usage, "expected a grammar in GBNF, a text");
  return grammar::of_gbnf(text.get_ref<const std::string&>());
}

grammar::Grammar of_choice(const Ordered& choice) {
  constexpr const char* expected = "expected a choice of texts that are not empty";
  if (!choice.is_array() || choice.empty()) throw Error(ErrorKind::usage, expected);
  std::vector<std::string> texts;
  for (const Ordered& text : choice) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) throw Error(ErrorKind::usage, expected);
    texts.push_back(text.get<std::string>());
  }
  return grammar::of_choices(texts);
}

// vLLM's: each is a key of structured_outputs, and a field of its own.
struct Kind {
  const char *key, *field;
  grammar::Grammar (*read)(const Ordered&);
};
constexpr Kind kinds[]{{"json", "guided_json", of_schema},
                       {"regex", "guided_regex", of_regex},
                       {"choice", "guided_choice", of_choice},
                       {"grammar", "guided_grammar", of_grammar}};

// Clients that name every key send null, or false for switches of how the schema is read.
bool is_given(const Ordered& value) {
  return !value.is_null() && value != false;
}

grammar::Grammar of_structured_outputs(const Ordered& wanted) {
  if (wanted.is_object() && std::ranges::count_if(wanted, is_given) == 1)
    for (const Kind& kind : kinds)
      if (const Ordered* const value = member(wanted, kind.key)) return kind.read(*value);
  throw Error(ErrorKind::usage,
              R"(expected {"json": a schema}, {"regex": a regular expression}, {"choice": a list of texts} or )"
              R"({"grammar": GBNF})");
}

} // namespace

std::shared_ptr<const grammar::Grammar> answer_form_of(const RequestFields& fields, std::string_view body,
                                                       ApiForm api) {
  const bool is_response = api == ApiForm::response;
  const char* const format_field = is_response ? "text.format" : "response_format";
  std::optional<Ordered> request; // once a field asks for something
  std::shared_ptr<const grammar::Grammar> form;
  std::string form_field;
  const auto read = [&](const char* field, const Ordered* value, const auto& grammar_of) {
    if (!value) return;
    if (form) throw wrong_field(field, fmt::format("it does not go with {}", form_field));
    try {
      form = std::make_shared<const grammar::Grammar>(grammar_of(*value));
      form_field = field;
    } catch (const Error& error) {
      if (!error.where().empty()) throw;
      throw wrong_field(field, error.what()).advise(error.advice());
    }
  };
  const auto find = [&](const char* name, bool asks) -> const Ordered* {
    if (!asks) return nullptr;
    if (!request) request = fields.in_order(body);
    return member(*request, name);
  };
  const char* const format_holder = is_response ? "text" : format_field;
  const Ordered* format = find(format_holder, fields.asks(format_holder));
  if (format && is_response) format = member(*format, "format");
  const bool is_text = format && format->is_object() && member(*format, "type") && format->at("type") == "text";
  read(format_field, is_text ? nullptr : format,
       [&](const Ordered& value) { return of_format(value, format_field, is_response); });
  const Ordered* const outputs = find("structured_outputs", fields.asks("structured_outputs"));
  const bool is_empty = outputs && outputs->is_object() && std::ranges::none_of(*outputs, is_given);
  read("structured_outputs", is_empty ? nullptr : outputs, of_structured_outputs);
  for (const Kind& kind : kinds) read(kind.field, find(kind.field, fields.find(kind.field)), kind.read);
  read("json_schema", find("json_schema", fields.find("json_schema")), of_schema); // llama.cpp's, and the next
  read("grammar", find("grammar", fields.asks("grammar")), of_grammar);
  return form;
}

} // namespace fvlm::serve
