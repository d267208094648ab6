// What lies in a run's folder besides checkpoints and metrics: plan.json, recipe/, parameters.json, report.html.
#pragma once
#include "base/descriptor.h"
#include "budget/parameter_groups.h"
#include "recipe/resolve.h"

#include <filesystem>
#include <vector>

namespace fvlm::train {

class RunFolder {
 public:
  // Makes the folder, and holds it against other processes. Throws Error(usage) where one is at work in it.
  explicit RunFolder(std::filesystem::path path);

  // Whether the Plan is to be written. Throws Error(usage) with what differs where the run has begun with another one,
  // unless it may be.
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
  Descriptor lock_;
};

} // namespace fvlm::train
