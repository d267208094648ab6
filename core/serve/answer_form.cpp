#include "serve/answer_form.h"

#include "base/error.h"
#include "grammar/json_schema.h"

#include <fmt/format.h>

namespace fvlm::serve {
namespace {

using Ordered = nlohmann::ordered_json; // the order of a schema's properties is that of the answer's

Error refused(const char* field, const std::string& what) {
  return Error(ErrorKind::usage, fmt::format("{}: {}", field, what)).at(field);
}

const Ordered* member(const Ordered& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// `holds_schema`: the schema is beside the type, as in text.format, and not in an object of its own.
grammar::Grammar of_format(const Ordered& format, const char* field, bool holds_schema) {
  const Ordered* const type = format.is_object() ? member(format, "type") : nullptr;
  if (type && *type == "json_object") return grammar::of_json_object();
  if (!type || *type != "json_schema")
    throw refused(field, "expected an object whose type is text, json_object or json_schema");
  const Ordered* const holder = holds_schema ? &format : member(format, "json_schema");
  const Ordered* const schema = holder && holder->is_object() ? member(*holder, "schema") : nullptr;
  if (!schema)
    throw refused(field, holds_schema
                             ? R"(expected {"type": "json_schema", "name": "...", "schema": {}})"
                             : R"(expected {"type": "json_schema", "json_schema": {"name": "...", "schema": {}}})");
  return grammar::of_json_schema(*schema);
}

grammar::Grammar of_structured_outputs(const Ordered& wanted) {
  constexpr const char* expected = R"(expected {"json": a schema} or {"choice": a list of texts})";
  if (!wanted.is_object() || wanted.size() != 1) throw refused("structured_outputs", expected);
  if (const Ordered* const schema = member(wanted, "json")) {
    return schema->is_string() ? grammar::of_json_schema(schema->get_ref<const std::string&>(), "")
                               : grammar::of_json_schema(*schema);
  }
  const Ordered* const choice = member(wanted, "choice");
  if (!choice || !choice->is_array() || choice->empty()) throw refused("structured_outputs", expected);
  std::vector<std::string> texts;
  for (const Ordered& text : *choice) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty())
      throw refused("structured_outputs", "choice: expected texts that are not empty");
    texts.push_back(text.get<std::string>());
  }
  return grammar::of_choices(texts);
}

} // namespace

std::shared_ptr<const grammar::Grammar> answer_form_of(std::string_view body, ApiForm api) {
  const Ordered request = ordered(body);
  const bool is_response = api == ApiForm::response;
  const char* const format_field = is_response ? "text.format" : "response_format";
  std::shared_ptr<const grammar::Grammar> form;
  const auto set = [&](const char* field, const Ordered* value, const auto& read) {
    if (!value || (value->is_object() && member(*value, "type") && value->at("type") == "text")) return;
    if (form) throw refused(field, fmt::format("it does not go with {}", format_field));
    try {
      form = std::make_shared<const grammar::Grammar>(read(*value));
    } catch (const Error& error) {
      if (!error.where().empty()) throw;
      throw refused(field, error.what()).advise(error.advice());
    }
  };
  const Ordered* const holder = is_response ? member(request, "text") : &request;
  set(format_field, holder ? member(*holder, is_response ? "format" : "response_format") : nullptr,
      [&](const Ordered& format) { return of_format(format, format_field, is_response); });
  set("structured_outputs", member(request, "structured_outputs"), of_structured_outputs);
  return form;
}

} // namespace fvlm::serve
