#include "train/run_folder.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "budget/budget_text.h"
#include "recipe/print.h"
#include "report/page.h"
#include "train/checkpoint.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
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
    fs::create_directories(to.parent_path());
    write_file_atomic(to, text);
  }
}

// A folder of shards or weights that was named by mistake: a run would be laid among them.
void refuse_data(const fs::path& folder) {
  std::error_code failed;
  if (fs::exists(folder / "plan.json", failed) || fs::exists(folder / "metrics.jsonl", failed)) return;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    const bool is_data = name.ends_with(".tar") || name.ends_with(".tar.gz") || name.ends_with(".safetensors") ||
                         name.ends_with(".fvlm-index") || name == "config.json" || name == "fvlm.json";
    if (is_data)
      throw Error(ErrorKind::usage, fmt::format("this folder holds data or a model ({}), and no run", name))
          .at(folder.string())
          .advise("name a folder for the run that is new or empty: --run-dir runs/NAME");
  }
}

// Two processes would write over each other's lines and take each other's checkpoints for half done. A file that stays
// while the run does, and is open for writing, can be locked on a network's disk, too; where it cannot, nobody is kept
// out.
Descriptor locked(const fs::path& folder) {
  refuse_data(folder);
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw Error(ErrorKind::data, "cannot create the run's folder: " + failed.message()).at(folder.string());
  const fs::path file = folder / "metrics.jsonl";
  Descriptor lock(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock) fail_on_file(file, "open the file");
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw Error(ErrorKind::usage, "another process trains into this folder")
        .at(folder.string())
        .advise("let it end, or train into another folder: --run-dir");
  return lock;
}

} // namespace

RunFolder::RunFolder(fs::path path) : path_(std::move(path)), lock_(locked(path_)) {}

// A line of metrics or a checkpoint.
bool RunFolder::has_trained(const plan::Plan& plan) const {
  std::error_code absent;
  if (const auto bytes = fs::file_size(path_ / "metrics.jsonl", absent); !absent && bytes > 0) return true;
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [&](const plan::Stage& stage) { return !StageFolder(path_ / stage.name).steps().empty(); });
}

bool RunFolder::open(const recipe::Resolved& resolved, bool allow_change) const {
  const fs::path file = path_ / "plan.json";
  if (!fs::exists(file)) return true;
  recipe::Request request;
  request.file = file;
  const auto before = recipe::resolve(request);
  if (before.hash == resolved.hash) return false;
  if (!has_trained(before.plan)) return true;
  const auto table = recipe::differences_text(recipe::differences(before.plan, resolved.plan), "the run", "now");
  if (!allow_change)
    throw Error(ErrorKind::usage, "the run was begun with another plan:\n" + table)
        .at(path_.string())
        .advise("--allow-plan-change goes on with the new one; --run-dir trains into another folder");
  log_warning("goes on with another plan:\n{}", table);
  return true;
}

void RunFolder::write_plan(const recipe::Resolved& resolved) const {
  write_file_atomic(path_ / "plan.json", recipe::plan_document(resolved).dump(1) + "\n");
  write_recipe(path_ / "recipe", resolved.files);
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

void RunFolder::write_report() const {
  try {
    report::write_report(path_);
  } catch (const Error& error) { // the run is worth more than its report
    log_warning("no report: {}\n  `fvlm-engine report {}` makes it later", error.text(), path_.string());
  }
}

} // namespace fvlm::train
