#include "recipe/freeze.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "recipe/rules.h"
#include "recipe/schema/schema.h"
#include "recipe/schema/table.h"

#include <fmt/format.h>

#include <map>

namespace fvlm::recipe {
namespace {

Value apply_sets(Value recipe, const std::vector<std::string>& sets, Reader& reader) {
  for (const auto& set : sets) {
    size_t equals = set.find('=');
    auto parts = split_path(set.substr(0, equals));
    if (equals == std::string::npos || parts.empty())
      throw Error(ErrorKind::usage, "--set: expected PATH=VALUE, got '{}'", set)
          .advise("for example --set stages.align.samples=1000");
    Assignment assignment{set.substr(equals + 1), {"--set " + set, 0}};
    recipe = recipe_schema()->assign(reader, assignment, &recipe, parts);
  }
  return recipe;
}

// The sandbox limits the number of values in a recipe. The tree of a plan file has to be checked here.
void check_size(const Value& value, uint64_t& remaining, const Allowance& allowance) {
  if (remaining-- == 0)
    throw Error(ErrorKind::recipe, "more than {} values", grouped(static_cast<int64_t>(allowance.limits().values)))
        .at(where(value.origin));
  const Table* table = as_table(value);
  if (!table) return;
  for (const Value& argument : table->arguments) check_size(argument, remaining, allowance);
  for (const auto& [key, field] : table->fields) check_size(field, remaining, allowance);
  for (const Value& item : table->items) check_size(item, remaining, allowance);
}

// The parts of a model that is named by its directory. A plan file has them already.
void read_parts(plan::Model& model, Reader& reader, const std::function<void(plan::Model&)>& read_model_directory) {
  if (!model.directory) return;
  for (const char* part : {"model.vision", "model.decoder"}) reader.mark_known(part);
  if (!reader.is_valid("model")) return;
  const auto report = [&](const std::string& key, std::string what, std::string advice) {
    reader.within("model", [&] { return reader.report_at("." + key, std::move(what), std::move(advice)); });
  };
  if (reader.reads_plan_file) {
    const Origin* set = reader.value_origin("model.directory");
    if (set && set->file.starts_with("--set"))
      report("directory", "a plan file has the parts of its own model directory",
             "set it for the recipe, not for the plan file");
    return;
  }
  for (const char* part : {"vision", "decoder", "decoders", "connector"})
    if (reader.value_origin(std::string("model.") + part))
      return report(part, fmt::format("`directory` excludes `{}`: a model directory has all parts of a model", part),
                    "leave out one of them");
  if (!read_model_directory) throw Error(ErrorKind::internal, "nobody reads the model directory of a recipe");
  const std::optional<int64_t> image_size =
      reader.value_origin("model.image_size") ? std::optional(model.image_size) : std::nullopt;
  try {
    read_model_directory(model);
  } catch (const Error& error) {
    return report("directory",
                  error.where().empty() ? error.what() : fmt::format("{}: {}", error.where(), error.what()),
                  error.advice());
  }
  model.image_size = image_size.value_or(model.image_size);
  for (const char* part : {"model.vision", "model.decoder", "model.decoders", "model.connector"})
    reader.inherit_origin(part, "model.directory");
}

} // namespace

plan::Plan freeze(Value recipe, const std::vector<std::string>& sets, Reader& reader,
                  const std::function<void(plan::Model&)>& read_model_directory) {
  recipe = apply_sets(std::move(recipe), sets, reader);
  uint64_t remaining = reader.allowance().limits().values;
  check_size(recipe, remaining, reader.allowance());
  plan::Plan plan;
  recipe_schema()->read(reader, recipe, plan);
  read_parts(plan.model, reader, read_model_directory);
  derive_frames(plan);
  check_plan(reader, plan);
  if (!reader.mistakes.any()) derive(reader, plan);
  return plan;
}

Json plan_json(const plan::Plan& plan) {
  return recipe_schema()->write(plan, Write::everything);
}

std::string plan_hash(const plan::Plan& plan) {
  return sha256_hex(recipe_schema()->write(plan, Write::results).dump());
}

std::vector<Leaf> plan_leaves(const plan::Plan& plan) {
  std::vector<Leaf> all;
  recipe_schema()->leaves(plan_json(plan), "", nullptr,
                          [&](const std::string& path, const Json& value, const FieldInfo* field) {
                            all.push_back({path, value, field});
                          });
  return all;
}

std::vector<Difference> differences(const plan::Plan& left, const plan::Plan& right) {
  auto lefts = plan_leaves(left), rights = plan_leaves(right);
  std::map<std::string, const Leaf*> by_path;
  for (const auto& leaf : rights) by_path[leaf.path] = &leaf;
  std::vector<Difference> all;
  for (const auto& leaf : lefts) {
    auto found = by_path.find(leaf.path);
    if (found == by_path.end())
      all.push_back({leaf.path, leaf.value, nullptr});
    else if (found->second->value != leaf.value)
      all.push_back({leaf.path, leaf.value, found->second->value});
    if (found != by_path.end()) by_path.erase(found);
  }
  for (const auto& leaf : rights)
    if (by_path.contains(leaf.path)) all.push_back({leaf.path, nullptr, leaf.value});
  return all;
}

std::vector<plan::Action> read_actions(const Value& answer) {
  std::vector<plan::Action> actions;
  if (std::holds_alternative<std::monostate>(answer.data)) return actions;
  Reader reader;
  action_schema()->read(reader, answer, actions);
  reader.mistakes.raise();
  return actions;
}

} // namespace fvlm::recipe
