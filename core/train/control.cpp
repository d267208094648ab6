#include "train/control.h"

#include "base/descriptor.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "recipe/control_memory.h"
#include "recipe/freeze.h"
#include "recipe/schema/type.h"

#include <fmt/format.h>

namespace fvlm::train {
namespace {

using recipe::Json;

Json actions_json(const std::vector<plan::Action>& actions) {
  Json list = Json::array();
  for (const plan::Action& action : actions)
    if (const auto* scale = std::get_if<plan::ScaleRate>(&action))
      list.push_back({{"scale_lr", scale->factor}});
    else
      list.push_back(std::holds_alternative<plan::Save>(action) ? "save" : "stop_stage");
  return list;
}

std::vector<plan::Action> read_journaled(const Json& list) {
  std::vector<plan::Action> actions;
  for (const Json& action : list)
    if (action.is_object())
      actions.emplace_back(plan::ScaleRate{action.at("scale_lr").get<double>()});
    else if (action == "save")
      actions.emplace_back(plan::Save{});
    else
      actions.emplace_back(plan::StopStage{});
  return actions;
}

} // namespace

ControlCalls::ControlCalls(const plan::Stage& stage, std::string plan_hash, std::shared_ptr<recipe::Sandbox> lua,
                           std::filesystem::path journal, const dist::Ranks& ranks)
    : stage_(stage), ranks_(ranks), plan_hash_(std::move(plan_hash)), lua_(std::move(lua)) {
  if (!stage.control || !ranks.is_first()) return;
  if (!lua_)
    throw Error(ErrorKind::recipe, "this stage has a control function, and a plan file holds no functions")
        .at(fmt::format("stages.{}.control", stage.name))
        .advise("train from the recipe; the run's folder recipe/ has it");
  const std::string text = std::filesystem::exists(journal) ? read_file(journal) : "";
  const size_t whole = text.rfind('\n') + 1; // a killed process may have begun a line: what it says was not done
  for (const std::string& line : split(text.substr(0, whole), '\n')) {
    if (line.empty()) continue;
    try {
      const Json entry = parse_json(line, journal.string());
      if (entry.at("stage") == stage.name && entry.value("plan", "") == plan_hash_)
        known_[entry.at("step").get<int64_t>()] = {entry.at("actions").dump(), entry.at("memory").dump()};
    } catch (const nlohmann::json::exception& error) {
      throw Error(ErrorKind::data, fmt::format("the journal makes no sense: {}", error.what())).at(journal.string());
    }
  }
  journal_.emplace(journal, whole);
  fsync_folder(journal.parent_path());
}

std::vector<plan::Action> ControlCalls::answer(int64_t step, const std::map<std::string, double>& metrics,
                                               std::string& memory) {
  const Entry own = ranks_.is_first() ? answer_of_first(step, metrics, memory) : Entry();
  const std::string actions = ranks_.from_first(own.actions);
  memory = ranks_.from_first(own.memory);
  return read_journaled(Json::parse(actions));
}

ControlCalls::Entry ControlCalls::answer_of_first(int64_t step, const std::map<std::string, double>& metrics,
                                                  const std::string& memory) {
  if (const auto known = known_.find(step); known != known_.end()) return known->second;
  Json numbers = Json::object();
  for (const auto& [name, value] : metrics) numbers[name] = value;
  const recipe::Origin here{stage_.control->run.defined, 0, ""};
  const recipe::Value arguments[] = {recipe::from_json(numbers, here), recipe::from_json(Json::parse(memory), here)};
  std::vector<recipe::Value> after;
  const Json actions = actions_json(recipe::read_actions(
      lua_->call(recipe::FunctionId{static_cast<int>(stage_.control->run.index)}, arguments, &after)));
  const Json kept = recipe::control_memory_json(after.at(1));
  const Json line = {
      {"stage", stage_.name}, {"plan", plan_hash_}, {"step", step}, {"actions", actions}, {"memory", kept}};
  journal_->append(line.dump() + "\n");
  journal_->flush();
  return {actions.dump(), kept.dump()};
}

} // namespace fvlm::train
