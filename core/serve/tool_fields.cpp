#include "serve/tool_fields.h"

#include "base/exact_json.h"
#include "data/own_template.h"
#include "data/tool_call_texts.h"
#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::serve {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json; // the order of a schema's properties is that of the arguments

constexpr size_t most_tools = 128;

// In the form of /v1/chat/completions, which templates read. In that of /v1/responses the function is the tool itself.
Ordered tool_of(const Ordered& tool, const std::string& where, ApiForm form) {
  const Ordered type = tool.is_object() ? tool.value("type", Ordered()) : Ordered();
  if (type != "function")
    throw wrong_field(where, fmt::format("tools are of type function, not {}", shortened(Json(type))));
  const bool is_chat = form == ApiForm::chat;
  Ordered function = is_chat ? tool.value("function", Ordered()) : tool;
  if (!is_chat) function.erase("type");
  const Ordered name = function.is_object() ? function.value("name", Ordered()) : Ordered();
  if (!name.is_string() || name.get_ref<const std::string&>().empty())
    throw wrong_field(where, is_chat ? R"(expected {"type": "function", "function": {"name": "...", "parameters": {}}})"
                                     : R"(expected {"type": "function", "name": "...", "parameters": {}})");
  const Ordered parameters = function.value("parameters", Ordered());
  if (!parameters.is_null() && !parameters.is_object())
    throw wrong_field(where + ".parameters", "expected a JSON schema, got " + shortened(Json(parameters)));
  function.erase("strict"); // a schema is kept where tool_choice wants a call
  return {{"type", "function"}, {"function", function}};
}

Ordered tools_of(const Ordered& request, ApiForm form) {
  const auto given = request.find("tools");
  Ordered all = Ordered::array();
  if (given == request.end() || given->is_null()) return all;
  if (!given->is_array()) throw wrong_field("tools", "expected a list of tools, got " + shortened(Json(*given)));
  if (given->size() > most_tools)
    throw wrong_field("tools", fmt::format("a request has at most {} tools, not {}", most_tools, given->size()));
  for (size_t i = 0; i < given->size(); ++i) all.push_back(tool_of((*given)[i], fmt::format("tools[{}]", i), form));
  return all;
}

// The name of the tool that has to be called; empty: any. Nothing: none has to.
std::optional<std::string> choice_of(const Json& choice, const Ordered& tools, ApiForm form) {
  const std::string expected =
      fmt::format(R"(expected "auto", "none", "required" or {{"type": "function", {}}}, got {})",
                  form == ApiForm::chat ? R"("function": {"name": "..."})" : R"("name": "...")", shortened(choice));
  if (choice == "auto" || choice == "none") return {};
  if (choice == "required") return "";
  const Json& holder =
      form == ApiForm::chat && choice.is_object() && choice.contains("function") ? choice["function"] : choice;
  if (!choice.is_object() || choice.value("type", Json()) != "function" || !holder.is_object() ||
      !holder.value("name", Json()).is_string())
    throw wrong_field("tool_choice", expected);
  const auto name = holder["name"].get<std::string>();
  const bool is_offered =
      std::ranges::any_of(tools, [&](const Ordered& tool) { return tool["function"]["name"] == name; });
  if (!is_offered) throw wrong_field("tool_choice", fmt::format("there is no tool '{}' among the request's", name));
  return name;
}

// A schema that moves to this place of another one: what it refers to in itself moves with it.
Ordered moved(Ordered schema, const std::string& place) {
  if (!schema.is_structured()) return schema;
  for (const auto& [key, value] : schema.items())
    if (schema.is_object() && key == "$ref" && value.is_string() &&
        value.get_ref<const std::string&>().starts_with('#'))
      value = "#" + place + value.get_ref<const std::string&>().substr(1);
    else
      value = moved(std::move(value), place);
  return schema;
}

// The arguments of one tool, or {"name", "arguments"} of any.
Ordered form_of_call(const Ordered& tools, const std::string& only) {
  Ordered each = Ordered::array();
  for (const Ordered& tool : tools) {
    if (tool["function"]["name"] == only) return schema_of(tool);
    const std::string place =
        fmt::format("{}/properties/arguments", tools.size() == 1 ? "" : fmt::format("/anyOf/{}", each.size()));
    each.push_back({{"type", "object"},
                    {"properties",
                     {{"name", {{"const", tool["function"]["name"]}}}, {"arguments", moved(schema_of(tool), place)}}},
                    {"required", {"name", "arguments"}},
                    {"additionalProperties", false}});
  }
  return each.size() == 1 ? each[0] : Ordered{{"anyOf", each}};
}

} // namespace

Ordered schema_of(const Ordered& tool) {
  const Ordered given = tool["function"].value("parameters", Ordered());
  if (!given.is_null() && !given.empty()) return given;
  return {{"type", "object"}, {"properties", Ordered::object()}, {"additionalProperties", false}};
}

void read_tools(ChatRequest& request, const RequestFields& fields, std::string_view body, ApiForm form) {
  const bool has_tools = fields.find("tools") != nullptr;
  const Ordered tools = has_tools ? tools_of(fields.in_order(body), form) : Ordered::array();
  const Json* choice = fields.find("tool_choice");
  const Json chosen = choice ? *choice : Json("auto");
  const bool parallel = !fields.find("parallel_tool_calls") || fields.flag("parallel_tool_calls");
  if (tools.empty() && chosen != "auto" && chosen != "none")
    throw wrong_field("tool_choice", "the request has no tools");
  const auto only = choice_of(chosen, tools, form);
  if (tools.empty() || chosen == "none") return;
  OfferedTools offered{tools, only, parallel};
  if (only) {
    if (request.form)
      throw wrong_field("tool_choice", "an answer that has to be a call of a tool has no other form besides");
    if (request.stop_rules.ignore_eos || request.stop_rules.min_tokens > 0)
      throw wrong_field("tool_choice", "a call of a tool ends where its form does: it does not go with ignore_eos or "
                                       "min_tokens");
    try {
      request.form = std::make_shared<const grammar::Grammar>(grammar::of_json_schema(form_of_call(tools, *only)));
    } catch (const Error& error) {
      throw wrong_field("tools", error.what()).advise(error.advice());
    }
  }
  request.tools = std::make_shared<const OfferedTools>(std::move(offered));
}

Ordered read_call(const Json& call, const std::string& where) {
  const Json function = call.is_object() ? call.value("function", Json()) : Json();
  const Json name = function.is_object() ? function.value("name", Json()) : Json();
  if (!name.is_string() || name.get_ref<const std::string&>().empty())
    throw wrong_field(where,
                      R"(expected {"id": "...", "type": "function", "function": {"name": "...", "arguments": "{}"}})");
  const Json given = function.value("arguments", Json());
  const std::string text = given.is_string() ? given.get<std::string>() : "";
  Ordered arguments = !text.empty()                          ? exact_json(text)
                      : given.is_null() || given.is_string() ? Ordered::object()
                                                             : in_usual_order(given);
  if (arguments.is_null()) arguments = Ordered::object();
  if (!arguments.is_object()) throw wrong_field(where + ".function.arguments", "expected a JSON object, as a text");
  Ordered out;
  if (const Json id = call.value("id", Json()); id.is_string()) out["id"] = id;
  out["type"] = "function";
  out["function"] = {{"name", name}, {"arguments", std::move(arguments)}};
  return out;
}

std::optional<std::vector<ToolCall>> required_calls(const std::string& text, const OfferedTools& tools) {
  if (!tools.only) return {};
  if (tools.only->empty()) return read_json_calls(text, nullptr);
  return std::vector{ToolCall{*tools.only, text}}; // also where it is cut off, as OpenAI has it
}

} // namespace fvlm::serve
