#include "recipe/resolve.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/path_hint.h"
#include "base/text.h"
#include "recipe/freeze.h"
#include "recipe/schema/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>

namespace fvlm::recipe {
namespace {

constexpr const char* plan_format = "fvlm.plan/1";
constexpr size_t max_plan_bytes = 64 << 20;

// A Plan has more values than its recipe, because of defaults and sampled functions.
std::shared_ptr<Allowance> plan_file_allowance() {
  return std::make_shared<Allowance>(Limits{.instructions = 500'000'000, .memory_bytes = 1 << 30, .values = 2'000'000});
}

std::map<std::string, std::string> sources_of(const plan::Plan& plan, const Reader& reader) {
  constexpr uint64_t cost_of_a_leaf = 100; // in instructions
  std::map<std::string, std::string> sources;
  for (const auto& leaf : plan_leaves(plan)) {
    reader.allowance().charge({}, cost_of_a_leaf);
    if (const Origin* origin = reader.value_origin(leaf.path)) sources[leaf.path] = written_at(*origin);
  }
  return sources;
}

// The behavior of a run depends on the functions that are called in training, so the hash of the Plan includes the Lua
// files.
void hash_functions(plan::Plan& plan, const Sandbox& lua) {
  Sha256 all;
  for (const auto& [path, text] : lua.files())
    all.update(fmt::format("{}\n{}\n", path.filename().string(), text.size())), all.update(text);
  std::string code = all.hex();
  for (auto& stage : plan.stages) {
    if (stage.control) stage.control->run.code = code;
    for (plan::Term& term : stage.objective)
      if (plan::LuaFunction* function = term ? term->function() : nullptr) function->code = code;
  }
}

void report_unread_args(const Request& request, const Sandbox& lua, Reader& reader) {
  std::vector<std::string> read;
  for (const auto& [name, default_value] : lua.args_read()) read.push_back(name);
  for (const auto& [name, value] : request.args)
    if (std::ranges::find(read, name) == read.end())
      reader.report({fmt::format("--arg {}={}", name, value), 0},
                    fmt::format("the recipe reads no argument '{}'", name),
                    read.empty() ? "it reads none" : advise_key(name, read));
}

struct Run {
  std::shared_ptr<Sandbox> lua;
  plan::Plan plan;
  Reader reader;
};

Run run_recipe(const Request& request, const std::map<std::string, std::string>& args,
               const std::shared_ptr<Allowance>& allowance) {
  auto lua = std::make_shared<Sandbox>(SandboxConfig{
      .library = request.library, .args = args, .constructors = constructors(), .limits = request.limits});
  Value value = lua->run(request.file, allowance.get());
  if (std::holds_alternative<std::monostate>(value.data))
    throw Error(ErrorKind::recipe, "the recipe returns nothing")
        .at(request.file.string())
        .advise("write 'return' before fvlm.recipe { ... }");
  const auto call = [lua, allowance](FunctionId f, std::span<const Value> arguments) {
    return lua->call(f, arguments, nullptr, allowance.get());
  };
  Run run{lua, {}, Reader(call, allowance)};
  run.plan = freeze(std::move(value), request.sets, run.reader, request.read_model_directory);
  hash_functions(run.plan, *lua);
  return run;
}

// Attributes values to --arg: runs the recipe again without each argument and compares the Plans, because Lua values
// carry no origin. Where the allowance is exhausted, values keep the line they were written on.
void attribute_args(const Request& request, const std::shared_ptr<Allowance>& allowance, Resolved& resolved) {
  for (const auto& [name, value] : request.args) {
    auto others = request.args;
    others.erase(name);
    plan::Plan without;
    try {
      Run run = run_recipe(request, others, allowance);
      if (run.reader.mistakes.any()) continue; // the recipe requires the argument, so there is nothing to compare with
      without = std::move(run.plan);
    } catch (const Error&) {
      continue;
    }
    for (const auto& difference : differences(without, resolved.plan)) {
      auto found = resolved.sources.find(difference.path);
      if (found == resolved.sources.end() || found->second.starts_with("--set")) continue;
      found->second = fmt::format("--arg {}={} ({})", name, value, found->second);
    }
  }
}

Resolved resolve_recipe(const Request& request) {
  const auto allowance = std::make_shared<Allowance>(request.limits);
  Run run = run_recipe(request, request.args, allowance);
  report_unread_args(request, *run.lua, run.reader);
  run.reader.mistakes.raise();
  Resolved resolved;
  resolved.plan = std::move(run.plan);
  resolved.sources = sources_of(resolved.plan, run.reader);
  resolved.files = run.lua->files();
  resolved.lua = run.lua;
  attribute_args(request, allowance, resolved);
  return resolved;
}

// Throws Error(recipe) for a document of another kind or format.
Json read_plan_document(const std::filesystem::path& file) {
  const std::string name = file.string();
  auto fail = [&](std::string what) { return Error(ErrorKind::recipe, std::move(what)).at(name); };
  const char* advice = "a plan file is what `fvlm-engine plan RECIPE --json` prints";
  Json document;
  try {
    document = parse_json(read_file(file, max_plan_bytes), name);
  } catch (const Error& error) {
    throw Error(ErrorKind::recipe, error.what()).at(error.where()).advise(advice);
  }
  bool has_format = document.is_object() && document.contains("format") && document["format"].is_string();
  if (!has_format || !document.contains("plan")) throw fail("not a plan file").advise(advice);
  if (document["format"] != plan_format)
    throw fail(
        fmt::format("unsupported plan format {}, expected {}", document["format"].get<std::string>(), plan_format))
        .advise("generate it again from its recipe");
  return document;
}

plan::Plan plan_of(const Json& document, const std::string& name, Reader& reader) {
  reader.reads_plan_file = true;
  plan::Plan plan = freeze(from_json(document["plan"], {name, 0}), {}, reader);
  reader.mistakes.raise();
  return plan;
}

Resolved resolve_plan_file(const Request& request) {
  std::string name = request.file.string();
  auto fail = [&](std::string what) { return Error(ErrorKind::recipe, std::move(what)).at(name); };
  if (!request.args.empty())
    throw Error(ErrorKind::usage, "--arg applies to recipes only; a plan file has no arguments").at(name);
  const Json document = read_plan_document(request.file);
  Reader reader({}, plan_file_allowance());
  Resolved resolved;
  resolved.plan = plan_of(document, name, reader);
  std::string recorded_hash = document.value("hash", "");
  if (!recorded_hash.empty() && !reader.ignored_removed_key && recorded_hash != plan_hash(resolved.plan))
    throw fail("the plan does not match its hash: it was edited after it was written")
        .advise("change values with --set instead, or remove the line \"hash\" from the file");
  resolved.sources = document.value("sources", std::map<std::string, std::string>{});
  if (!request.sets.empty()) {
    Reader changed({}, plan_file_allowance());
    changed.reads_plan_file = true;
    resolved.plan = freeze(from_json(plan_json(resolved.plan), {name, 0}), request.sets, changed);
    changed.mistakes.raise();
    for (const auto& [path, source] : sources_of(resolved.plan, changed))
      if (source.starts_with("--set")) resolved.sources[path] = source;
  }
  return resolved;
}

// By its first bytes: a folder of data may have any number of large JSON files.
bool is_plan_file(const std::filesystem::path& file) {
  std::array<char, 64> head{};
  std::ifstream(file, std::ios::binary).read(head.data(), head.size());
  return std::string_view(head.data(), head.size()).find(fmt::format("\"format\": \"{}\"", plan_format)) !=
         std::string_view::npos;
}

// The recipes and plan files of a folder, as a user would name them.
std::vector<std::string> recipes_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder.empty() ? "." : folder, ignored))
    if (entry.path().extension() == ".lua" || (entry.path().extension() == ".json" && is_plan_file(entry.path())))
      names.push_back((folder / entry.path().filename()).string());
  std::ranges::sort(names);
  return names;
}

void require_file(const std::filesystem::path& file) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    auto inside = recipes_in(file);
    throw Error(ErrorKind::recipe, "this is a folder")
        .at(file.string())
        .advise(inside.empty() ? "name a recipe (.lua)" : "name a recipe in it: " + inside.front());
  }
  if (std::filesystem::exists(file, ignored)) return;
  auto near = nearest(file.string(), recipes_in(file.parent_path()));
  throw Error(ErrorKind::recipe, "there is no such file")
      .at(file.string())
      .advise(near ? fmt::format("did you mean '{}'?", *near) : hint_on_home(file));
}

} // namespace

Resolved resolve(const Request& request) {
  require_file(request.file);
  bool is_plan = request.file.extension() == ".json";
  Resolved resolved = is_plan ? resolve_plan_file(request) : resolve_recipe(request);
  plan::Model& model = resolved.plan.model;
  if (!is_plan && request.image_size && !resolved.sources.contains("model.image_size"))
    model.image_size = request.image_size(model).value_or(model.image_size);
  resolved.hash = plan_hash(resolved.plan);
  resolved.recipe = request.file.string();
  return resolved;
}

RecordedPlan read_recorded_plan(const std::filesystem::path& file) {
  const Json document = read_plan_document(file);
  Reader reader({}, plan_file_allowance());
  return {plan_of(document, file.string(), reader), document.value("hash", "")};
}

Json plan_document(const Resolved& resolved) {
  return {{"format", plan_format},
          {"hash", resolved.hash},
          {"recipe", resolved.recipe},
          {"plan", plan_json(resolved.plan)},
          {"sources", resolved.sources}};
}

} // namespace fvlm::recipe
