// Options of other programs on the command line, which are keys of recipes here.
#include "recipe/schema/record.h"
#include "recipe/schema/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

namespace fvlm::recipe {
namespace {

constexpr const char* each_entry = "[]";

// The records that a field refers to, and the path from it to them.
void add_records(const Node& node, const std::string& path, std::deque<std::pair<const RecordInfo*, std::string>>& to) {
  if (node.record()) {
    to.emplace_back(node.record(), path + ".");
    return;
  }
  const bool is_list = node.lua_type().ends_with("[]");
  for (const Node* part : node.parts()) add_records(*part, is_list ? path + each_entry : path, to);
}

// Whether --set can give it a value that is no table.
bool is_plain(const Node& node) {
  return node.accepts(Value{1.0}) || node.accepts(Value{true}) || node.accepts(Value{std::string("text")});
}

} // namespace

std::string advice_on_option(const std::string& name) {
  const RecordInfo& recipe = *recipe_schema()->record();
  if (const ForeignKey* foreign = foreign_key(recipe, name)) return foreign->advice;
  std::deque<std::pair<const RecordInfo*, std::string>> records{{&recipe, ""}};
  std::vector<const RecordInfo*> seen;
  for (; !records.empty(); records.pop_front()) { // the outermost first
    const auto [info, path] = records.front();
    if (std::ranges::find(seen, info) != seen.end()) continue;
    seen.push_back(info);
    const auto own =
        std::ranges::find_if(info->fields, [&](const FieldInfo& field) { return same_name(field.name, name); });
    const FieldInfo* field = own == info->fields.end() ? field_by_alias(*info, name) : &*own;
    if (field && field->place == Place::key && !field->derived)
      return is_plain(*field->node) && path.find(each_entry) == path.npos
                 ? fmt::format("the recipe has it, as {0}{1}; on the command line: --set {0}{1}=...", path, field->name)
                 : fmt::format("the recipe has it, as {}{} (recipes/REFERENCE.md)", path, field->name);
    for (const FieldInfo& inner : info->fields)
      if (inner.place == Place::items && info == &recipe)
        records.emplace_back(stage_schema()->record(), path + inner.name + ".*.");
      else
        add_records(*inner.node, path + inner.name, records);
  }
  for (const RecordInfo* info : seen)
    if (const ForeignKey* foreign = foreign_key(*info, name)) return foreign->advice;
  return "";
}

} // namespace fvlm::recipe
