// What lies in a run's folder besides checkpoints and metrics: plan.json, recipe/, parameters.json, report.html.
#pragma once
#include "budget/parameter_groups.h"
#include "recipe/resolve.h"

#include <filesystem>
#include <vector>

namespace fvlm::train {

class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}

  // Makes the folder of a new run. Of one that has begun: throws Error(usage) with what differs where its Plan is
  // another one, unless it may be.
  // True where the Plan is to be written.
  bool open(const recipe::Resolved& resolved, bool allow_change) const;

  // Writes plan.json and recipe/, once the Plan's first stage can begin or go on.
  void write_plan(const recipe::Resolved& resolved) const;

  // Adds the stage to parameters.json: its groups, how large they are, and how they are trained.
  void write_parameters(const std::string& stage, const std::vector<budget::GroupLine>& groups) const;

  // report.html, as far as the run has got.
  void write_report() const;

 private:
  bool has_trained(const plan::Plan& plan) const;
  std::filesystem::path path_;
};

} // namespace fvlm::train
