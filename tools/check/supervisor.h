// Runs the conformance test in child processes, so that a crash or a hang of the plugin is a failed check.
#pragma once
#include "check/child.h"
#include "check/report.h"

#include <chrono>
#include <functional>

namespace fvlm::check {

struct Supervision {
  std::vector<std::string> command;           // the child's command line; the job is appended as its last argument
  std::chrono::seconds limit{60};             // for one check; benchmarks have ten times as long
  std::function<void(const Entry&)> on_entry; // called after each row
};

Report check_plugin(Job job, const Supervision& supervision);

} // namespace fvlm::check
