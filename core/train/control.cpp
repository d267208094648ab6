#include "train/control.h"

#include "base/descriptor.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "recipe/control_memory.h"
#include "recipe/freeze.h"
#include "recipe/schema/type.h"

#include <fmt/format.h>

namespace fvlm::train {
namespace {

using recipe::Json;

// The last value of a line is the hash of what stands before it. Lines of earlier versions have none.
constexpr std::string_view before_hash = R"(,"hash":")";
constexpr size_t values_before_hash = 5;

// `object`: a JSON object on one line.
std::string with_hash(std::string object) {
  object.pop_back(); // its brace
  return fmt::format("{}{}{:016x}\"}}", object, before_hash, xxh64(object));
}

// Throws Error(data) for a line that is not as it was written.
void check_hash(const std::string& line, const Json& entry) {
  if (!entry.contains("hash")) {
    if (entry.size() != values_before_hash) throw Error(ErrorKind::data, "it has an unknown value");
  } else if (line != with_hash(line.substr(0, line.rfind(before_hash)) + "}")) {
    throw Error(ErrorKind::data, "it does not match its hash: it was changed after it was written");
  }
}

Json actions_json(const std::vector<plan::Action>& actions) {
  Json list = Json::array();
  for (const plan::Action& action : actions)
    if (const auto* scale = std::get_if<plan::ScaleRate>(&action))
      list.push_back({{"scale_lr", scale->factor}});
    else
      list.push_back(std::holds_alternative<plan::Save>(action) ? "save" : "stop_stage");
  return list;
}

// Throws Error(data) for what actions_json() does not write.
std::vector<plan::Action> read_journaled(const Json& list) {
  if (!list.is_array()) throw Error(ErrorKind::data, "its actions are no list");
  std::vector<plan::Action> actions;
  for (const Json& action : list)
    if (action.is_object() && action.contains("scale_lr") && action["scale_lr"].is_number() && action["scale_lr"] > 0)
      actions.emplace_back(plan::ScaleRate{action["scale_lr"].get<double>()});
    else if (action == "save")
      actions.emplace_back(plan::Save{});
    else if (action == "stop_stage")
      actions.emplace_back(plan::StopStage{});
    else
      throw Error(ErrorKind::data, "it has an unknown action");
  return actions;
}

} // namespace

ControlCalls::ControlCalls(const plan::Stage& stage, std::string plan_hash, std::shared_ptr<recipe::Sandbox> lua,
                           std::filesystem::path journal, const dist::Ranks& ranks)
    : stage_(stage), ranks_(ranks), plan_hash_(std::move(plan_hash)), lua_(std::move(lua)) {
  if (!stage.control || !ranks.is_first()) return;
  if (!lua_)
    throw Error(ErrorKind::recipe, "this stage has a control function, and a plan file holds no functions")
        .at("stages.{}.control", stage.name)
        .advise("train from the recipe; the run's folder recipe/ has it");
  const std::string text = std::filesystem::exists(journal) ? read_file(journal) : "";
  const size_t whole = text.rfind('\n') + 1; // a killed process may have begun a line: what it says was not done
  int64_t number = 0, damaged = 0;
  std::string first;
  for (const std::string& line : split(text.substr(0, whole), '\n')) {
    ++number;
    try {
      if (!line.empty()) read(line);
    } catch (const std::exception& error) { // Error, or nlohmann's
      if (damaged++ == 0) first = fmt::format("line {}: {}", number, error.what());
    }
  }
  if (damaged > 0)
    log_warning("{}: {} cannot be used, the first is {}; `control` is called anew for the steps that are not journaled",
                journal.string(), counted(damaged, "line"), first);
  journal_.emplace(journal, whole);
  fsync_folder(journal.parent_path());
}

void ControlCalls::read(const std::string& line) {
  const Json entry = parse_json(line, "");
  check_hash(line, entry);
  if (entry.at("stage") != stage_.name || entry.at("plan") != plan_hash_) return;
  const Json &actions = entry.at("actions"), &memory = entry.at("memory");
  read_journaled(actions);
  if (!memory.is_object() && !memory.is_array()) throw Error(ErrorKind::data, "its memory is no table");
  known_[entry.at("step").get<int64_t>()] = {actions.dump(), memory.dump()};
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
  const recipe::Value arguments[] = {recipe::from_json(numbers, here),
                                     recipe::control_memory(Json::parse(memory), here)};
  std::vector<recipe::Value> after;
  const Json actions = actions_json(recipe::read_actions(
      lua_->call(recipe::FunctionId{static_cast<int>(stage_.control->run.index)}, arguments, &after)));
  const Json kept = recipe::control_memory_json(after.at(1));
  const Json line = {
      {"stage", stage_.name}, {"plan", plan_hash_}, {"step", step}, {"actions", actions}, {"memory", kept}};
  journal_->append(with_hash(line.dump()) + "\n");
  journal_->flush();
  return {actions.dump(), kept.dump()};
}

} // namespace fvlm::train
