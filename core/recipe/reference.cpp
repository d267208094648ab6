#include "recipe/reference.h"

#include "base/text.h"
#include "recipe/schema/basic.h"
#include "recipe/schema/record.h"
#include "recipe/schema/schema.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::recipe {
namespace {

std::string heading(const RecordInfo& info) {
  if (info.constructor.empty()) return info.title;
  auto argument = std::ranges::find(info.fields, Place::argument, &FieldInfo::place);
  bool named = argument != info.fields.end();
  if (info.call_only) return fmt::format("fvlm.{}({})", info.constructor, named ? argument->name : "");
  return fmt::format("fvlm.{} {}{{ }}", info.constructor, named ? fmt::format("\"{}\" ", argument->name) : "");
}

// The anchor that GitHub generates for a heading.
std::string anchor(const RecordInfo& info) {
  std::string out;
  for (char c : heading(info)) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-')
      out += static_cast<char>(std::tolower(c));
    else if (c == ' ')
      out += '-';
  }
  return out;
}

std::string cell(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out;
}

// The distinct records that a field refers to, through lists and alternatives.
void records_of(const Node& node, std::vector<const RecordInfo*>& found) {
  if (node.record()) {
    if (std::ranges::find(found, node.record()) == found.end()) found.push_back(node.record());
    return;
  }
  for (const Node* part : node.parts()) records_of(*part, found);
}

// The enum of a field, with its words and their meanings.
const WordsNode* words_of(const Node& node) {
  if (auto* words = dynamic_cast<const WordsNode*>(&node)) return words;
  for (const Node* part : node.record() ? std::vector<const Node*>{} : node.parts())
    if (auto* words = words_of(*part)) return words;
  return nullptr;
}

std::string meaning(const FieldInfo& field) {
  std::string out = field.doc;
  if (const WordsNode* words = words_of(*field.node)) {
    std::vector<std::string> parts;
    for (const auto& word : words->words()) parts.push_back(fmt::format("`\"{}\"`: {}", word.name, word.doc));
    out += fmt::format(" {}.", fmt::join(parts, "; "));
  }
  std::vector<const RecordInfo*> records;
  records_of(*field.node, records);
  std::vector<std::string> links;
  links.reserve(records.size());
  for (const RecordInfo* record : records) links.push_back(fmt::format("[{}](#{})", heading(*record), anchor(*record)));
  if (!links.empty()) out += fmt::format(" See {}.", join_or(links));
  if (field.place == Place::items) out += " Written without a key.";
  if (field.place == Place::argument) out += " Written before the table.";
  if (!field.example.empty()) out += fmt::format(" Example: `{}`.", field.example);
  return out;
}

std::string kind(const FieldInfo& field) {
  std::string out = field.node->expected();
  if (!field.unit.empty()) out += fmt::format(", in {}", field.unit);
  return out;
}

std::string default_text(const FieldInfo& field) {
  if (field.required)
    return field.required_unless.empty() ? "required" : fmt::format("required without `{}`", field.required_unless);
  if (field.derived) return "computed";
  auto* text = field.default_value.get_ptr<const std::string*>();
  bool none = field.default_value.is_null() || (text && text->empty()) ||
              (field.default_value.is_structured() && field.default_value.empty());
  if (none) return "";
  if (field.default_value.is_object()) return "see its fields";
  return fmt::format("`{}`", as_lua(field.default_value));
}

std::string section(const RecordInfo& info) {
  std::string out = fmt::format("## {}\n\n{}\n", heading(info), info.doc);
  if (!info.example.empty()) out += fmt::format("\n```lua\n{}\n```\n", info.example);
  if (info.fields.empty()) return out;
  out += "\n| key | value | default | meaning |\n|---|---|---|---|\n";
  for (const auto& field : info.fields)
    out += fmt::format("| `{}` | {} | {} | {} |\n", field.name, cell(kind(field)), cell(default_text(field)),
                       cell(meaning(field)));
  return out;
}

constexpr const char* introduction = R"(# Recipes: the reference

Generated from the engine's schema by `fvlm-engine recipe reference`; do not edit. `fvlm-engine recipe stubs` generates
[fvlm.d.lua](fvlm.d.lua), with which an editor completes and checks the same keys.

A recipe is a Lua 5.4 file that returns one `fvlm.recipe { }`. It runs once, in a sandbox (no files, no clock, no
network). Its result is validated and frozen into a Plan, and from then on only the Plan is used.

- `local fvlm = require "fvlm"` provides the functions below. `require "name"` reads `name.lua` from the recipe's folder or
  a folder below it; `require "fvlm.name"` reads one of the bundled files in `recipes/lib`.
- `fvlm.arg("name", default)` returns the value of `--arg name=value` on the command line, in the type of the default.
- `--set path=value` changes any value of the Plan: `--set stages.align.optimizer.lr.vision=1e-6`,
  `--set kernels.attention=cudnn,reference`, `--set stages.*.samples=64`. A bare word selects a kind:
  `--set stages.align.schedule=cosine`. Other values may be given as JSON.
- Paths of models and data are relative to the working directory. They need not exist for `check` and `plan`.
- A function (a schedule, a mixing weight) is sampled at 257 evenly spaced points of the stage's progress, from 0 at its
  first sample to 1 at its last, and interpolated linearly.

)";

std::string comment(const std::string& text) {
  const std::string prefix = "---";
  std::string out, line = prefix;
  for (const auto& word : split(text, ' ')) {
    if (line.size() + 1 + word.size() > 118 && line != prefix) out += line + '\n', line = prefix;
    line += (line == prefix ? "" : " ") + word;
  }
  return out + line + '\n';
}

std::string stub_class(const RecordInfo& info) {
  std::string out = comment(info.doc) + fmt::format("---@class fvlm.{}\n", info.title);
  for (const auto& field : info.fields) {
    if (field.derived) continue;
    bool optional = !field.required || !field.required_unless.empty() ||
                    field.place != Place::key; // an argument or entry is not written as a key
    std::string description = field.doc;
    if (!field.unit.empty()) description += fmt::format(" In {}.", field.unit);
    std::string preset = default_text(field);
    if (preset.starts_with('`')) description += fmt::format(" Default: {}.", preset);
    std::string key = field.place == Place::items ? "[integer]" : field.name + (optional ? "?" : "");
    const Node& node = *field.node;
    std::string type = field.place == Place::items ? node.parts()[0]->lua_type() : node.lua_type();
    out += fmt::format("---@field {} {} {}\n", key, type, description);
  }
  return out;
}

std::string stub_function(const RecordInfo& info) {
  std::vector<std::string> parameters, annotations;
  for (const auto& field : info.fields)
    if (field.place == Place::argument) {
      parameters.push_back(field.name);
      annotations.push_back(fmt::format("---@param {} {} {}\n", field.name, field.node->lua_type(), field.doc));
    }
  std::string result = fmt::format("fvlm.{}", info.title);
  std::string table_type = info.fields.empty() ? "table" : result;
  std::string out = comment(info.doc);
  bool curried = !info.call_only && !parameters.empty();
  for (const auto& annotation : annotations) out += annotation;
  if (curried) {
    out += fmt::format("---@return fun(table: {}): {}\n", table_type, result);
    out += fmt::format("---@overload fun({}: string, table: {}): {}\n", parameters[0], table_type, result);
  } else {
    if (!info.call_only) parameters.push_back("table"), out += fmt::format("---@param table {}\n", table_type);
    out += fmt::format("---@return {}\n", result);
  }
  return out + fmt::format("function fvlm.{}({}) end\n", info.constructor, join(parameters, ", "));
}

} // namespace

std::string reference_page() {
  std::string out = introduction;
  std::vector<std::string> links;
  for (const RecordInfo* info : all_records()) links.push_back(fmt::format("[{}](#{})", heading(*info), anchor(*info)));
  out += join(links, " · ") + "\n";
  for (const RecordInfo* info : all_records()) out += fmt::format("\n{}", section(*info));
  return out;
}

std::string editor_stubs() {
  std::string out = "---@meta fvlm\n-- Generated from the engine's schema by `fvlm-engine recipe stubs`; do not "
                    "edit.\n\n---@class fvlm\nlocal fvlm = {}\n\n";
  out += "---Return the value of `--arg name=value` on the command line, in the type of the default.\n---@generic "
         "T\n---@param name string\n"
         "---@param default? T\n---@return T\nfunction fvlm.arg(name, default) end\n\n";
  const std::string terms = fmt::format("({})[]", objective_schema()->parts().front()->lua_type());
  out += fmt::format("---A sum of weighted objectives, the same as a plain list.\n---@param terms {0}\n"
                     "---@return {0}\nfunction fvlm.sum(terms) end\n",
                     terms);
  std::vector<std::string> actions;
  for (const RecordInfo* info : all_records())
    if (info->call_only) actions.push_back(fmt::format("fvlm.{}", info->title));
  out += fmt::format("\n---What a `control` function may return.\n---@alias fvlm.Action {}\n", join(actions, "|"));
  for (const RecordInfo* info : all_records()) {
    out += fmt::format("\n{}", stub_class(*info));
    if (!info->constructor.empty()) out += fmt::format("\n{}", stub_function(*info));
  }
  return out + "\nreturn fvlm\n";
}

} // namespace fvlm::recipe
