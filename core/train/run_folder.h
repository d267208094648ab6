// What lies in a run's folder besides checkpoints and metrics: run.json, plan.json, recipe/, parameters.json.
#pragma once
#include "base/descriptor.h"
#include "budget/parameter_groups.h"
#include "recipe/resolve.h"
#include "train/run_record.h"

#include <filesystem>
#include <optional>
#include <vector>

namespace fvlm::train {

// What a run's folder becomes with the plan that it is opened with. Nothing of it is written yet.
struct OpenedRun {
  RunRecord record;                 // of run.json; its newest plan is that of now
  std::optional<plan::Plan> before; // that the run was trained under, where it is another one
  bool writes_plan = false;
};

class RunFolder {
 public:
  // Makes the folder, and holds it against other processes. Throws Error(usage) where one is at work in it.
  explicit RunFolder(std::filesystem::path path);

  // Throws Error(usage) with what differs where the run has begun with another plan, unless it may be.
  OpenedRun open(const recipe::Resolved& resolved, bool allow_change) const;

  // Writes run.json, and where the plan is new plan.json and recipe/, once its first stage can begin or resume.
  void write(const OpenedRun& opened, const recipe::Resolved& resolved) const;

  // Adds the stage to parameters.json: its groups, how large they are, and how they are trained.
  void write_parameters(const std::string& stage, const std::vector<budget::GroupLine>& groups) const;

 private:
  bool has_trained(const plan::Plan& plan) const;
  std::filesystem::path path_;
  Descriptor lock_;
};

} // namespace fvlm::train
