#include "train/run_folder.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/new_file.h"
#include "base/text.h"
#include "budget/budget_text.h"
#include "recipe/print.h"
#include "train/checkpoint.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <sys/file.h>

namespace fvlm::train {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

// The files under the names by which they find each other: below the folder that holds them all.
void write_recipe(const fs::path& folder, const std::map<fs::path, std::string>& files) {
  fs::path common;
  for (const auto& [path, text] : files) {
    fs::path parent = fs::absolute(path).lexically_normal().parent_path();
    while (!common.empty() && fs::relative(parent, common).native().starts_with("..")) common = common.parent_path();
    if (common.empty()) common = parent;
  }
  for (const auto& [path, text] : files) {
    const fs::path to = folder / fs::absolute(path).lexically_normal().lexically_relative(common);
    make_folders(to.parent_path());
    write_file_atomic(to, text);
  }
}

// Two processes would write over each other's lines and take each other's checkpoints for half done. A file that stays
// while the run does, and is open for writing, can be locked on a network's disk, too; where it cannot, nobody is kept
// out.
Descriptor locked(const fs::path& folder) {
  refuse_other_content(folder);
  make_folders(folder);
  Descriptor lock = open_kept_file(folder / "metrics.jsonl");
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw Error(ErrorKind::usage, "another process trains into this folder")
        .at(folder.string())
        .advise("let it end, or train into another folder: --run-dir");
  return lock;
}

constexpr size_t most_differences = 10; // that a message shows

// What cannot be read is as good as missing: run.json knows the plan's hash.
std::optional<recipe::RecordedPlan> recorded_plan(const fs::path& file) {
  if (!fs::exists(file)) return {};
  try {
    return recipe::read_recorded_plan(file);
  } catch (const Error& error) {
    log_warning("{}\n  the run's plan is written again once it is known to be the current one", error.text());
    return {};
  }
}

// As a table, and how many more there are.
std::string first_of(std::vector<recipe::Difference> differences, const fs::path& plan_file) {
  const size_t all = differences.size();
  if (all == 0) return "its plan.json is missing, and its hash in run.json is another one";
  differences.resize(std::min(all, most_differences));
  std::string text = recipe::differences_text(differences, "the run", "now");
  if (all > differences.size())
    text += fmt::format("and {} more: fvlm-engine plan RECIPE --diff {}", all - differences.size(), plan_file.string());
  return text;
}

// "stages.align.samples: 80 -> 96; seed: 42 -> 7; and 3 more"
std::string sentence_of(const std::vector<recipe::Difference>& differences) {
  std::vector<std::string> parts;
  for (const auto& difference : differences) {
    if (parts.size() == most_differences) {
      parts.push_back(fmt::format("and {} more", differences.size() - most_differences));
      break;
    }
    parts.push_back(fmt::format("{}: {} -> {}", difference.path, recipe::value_text(difference.left),
                                recipe::value_text(difference.right)));
  }
  return parts.empty() ? "the plan before is not known" : join(parts, "; ");
}

// A line of metrics or a checkpoint.
bool has_trained(const fs::path& run, const plan::Plan& plan) {
  std::error_code absent;
  if (const auto bytes = fs::file_size(run / "metrics.jsonl", absent); !absent && bytes > 0) return true;
  return std::ranges::any_of(plan.stages,
                             [&](const plan::Stage& stage) { return !StageFolder(run / stage.name).steps().empty(); });
}

} // namespace

// A run would be written among the files of a folder named by mistake. A log that the shell opened there is allowed.
void refuse_other_content(const fs::path& folder) {
  std::error_code failed;
  if (fs::exists(folder, failed) && !fs::is_directory(folder, failed))
    throw Error(ErrorKind::usage, "a run needs a folder, and this is a file")
        .at(folder.string())
        .advise("name a new or empty folder for the run: --run-dir runs/NAME");
  for (const char* file : {"plan.json", "metrics.jsonl", "run.json"})
    if (fs::exists(folder / file, failed)) return;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') && !name.ends_with(".log") && !name.ends_with(".out")) names.push_back(name);
  }
  if (names.empty()) return;
  std::ranges::sort(names);
  throw Error(ErrorKind::usage, "this folder is not empty and holds no run: it has {}{}", names.front(),
              names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "")
      .at(folder.string())
      .advise("name a new or empty folder for the run: --run-dir runs/NAME");
}

RunFolder::RunFolder(fs::path path) : path_(std::move(path)), lock_(locked(path_)) {}

OpenedRun read_run_folder(const fs::path& path, const recipe::Resolved& resolved) {
  OpenedRun opened;
  opened.record = RunRecord::read(path);
  const fs::path file = path / "plan.json";
  const auto before = recorded_plan(file);
  if (before && opened.record.plans.empty()) opened.record.accept(before->hash, ""); // a run of an earlier version
  const bool is_same = before ? recipe::plan_hash(before->plan) == resolved.hash
                              : opened.record.plans.empty() || opened.record.plans.back().hash == resolved.hash;
  opened.writes_plan = !before || !is_same;
  if (is_same) {
    opened.record.accept(resolved.hash, "");
    return opened;
  }
  if (!has_trained(path, before ? before->plan : resolved.plan)) {
    opened.record.plans.clear();
    opened.record.accept(resolved.hash, "");
    return opened;
  }
  const auto differences =
      before ? recipe::differences(before->plan, resolved.plan) : std::vector<recipe::Difference>();
  opened.differences = first_of(differences, file);
  opened.record.accept(resolved.hash, sentence_of(differences));
  if (before) opened.before = before->plan;
  return opened;
}

void RunFolder::write(const OpenedRun& opened, const recipe::Resolved& resolved) const {
  opened.record.write(path_);
  if (!opened.writes_plan) return;
  write_file_atomic(path_ / "plan.json", recipe::plan_document(resolved).dump(1) + "\n");
  write_recipe(path_ / "recipe", resolved.files);
}

void RunFolder::remove_unstarted(const plan::Plan& plan) const {
  std::error_code ignored;
  for (const char* file : {"plan.json", "run.json"})
    if (fs::exists(path_ / file, ignored)) return;
  std::vector<fs::path> left = {path_ / "metrics.jsonl", path_ / "log.txt", path_ / "quarantine.log"};
  if (fs::file_size(left[0], ignored) > 0) return;
  for (const auto& entry : fs::directory_iterator(path_, ignored))
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) left.push_back(entry.path());
  for (const plan::Stage& stage : plan.stages) left.push_back(path_ / stage.name); // where it is empty
  left.push_back(path_);
  for (const fs::path& each : left) fs::remove(each, ignored);
}

void RunFolder::write_parameters(const std::string& stage, const std::vector<budget::GroupLine>& groups) const {
  const fs::path file = path_ / "parameters.json";
  OrderedJson document = OrderedJson::array();
  if (fs::exists(file)) document = OrderedJson::parse(read_file(file), nullptr, false);
  if (!document.is_array()) document = OrderedJson::array();
  for (auto known = document.begin(); known != document.end(); ++known)
    if (known->value("stage", "") == stage) {
      document.erase(known);
      break;
    }
  document.push_back({{"stage", stage}, {"groups", budget::groups_json(groups)}});
  write_file_atomic(file, document.dump(1) + "\n");
}

} // namespace fvlm::train
