// What lies in a run's folder besides checkpoints and metrics: run.json, plan.json, recipe/, parameters.json.
#pragma once
#include "base/descriptor.h"
#include "budget/parameter_groups.h"
#include "recipe/resolve.h"
#include "train/run_record.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::train {

// What a run's folder becomes with the plan that it is opened with. Nothing of it is written yet.
struct OpenedRun {
  RunRecord record;                 // of run.json; its newest plan is that of now
  std::optional<plan::Plan> before; // that the run was trained under, where it is another one
  std::string differences;          // between the two, for people; empty: it is the same plan
  bool writes_plan = false;
};

// Throws Error(usage) for a folder that has other files and no run.
void refuse_other_content(const std::filesystem::path& folder);

// Reads it without holding or changing the folder, which need not exist.
OpenedRun read_run_folder(const std::filesystem::path& path, const recipe::Resolved& resolved);

class RunFolder {
 public:
  // Makes the folder, and holds it against other processes. Throws Error(usage) where one is at work in it, or where it
  // has other files than a run's.
  explicit RunFolder(std::filesystem::path path);

  OpenedRun open(const recipe::Resolved& resolved) const { return read_run_folder(path_, resolved); }

  // Writes run.json, and where the plan is new plan.json and recipe/, once its first stage can begin or resume.
  void write(const OpenedRun& opened, const recipe::Resolved& resolved) const;

  // Where write() was never called: removes what an attempt to start has left, so that nobody takes it for a run, and
  // the folder if it then is empty. Throws nothing.
  void remove_unstarted(const plan::Plan& plan) const;

  // Adds the stage to parameters.json: its groups, how large they are, and how they are trained.
  void write_parameters(const std::string& stage, const std::vector<budget::GroupLine>& groups) const;

 private:
  std::filesystem::path path_;
  Descriptor lock_;
};

} // namespace fvlm::train
