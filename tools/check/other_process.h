// Runs the plugin in other processes: to compare its results under another time, environment and address space, and to
// see what it changes in a fresh process and at its exit.
#pragma once
#include "check/child.h"
#include "check/context.h"
#include "check/process_state.h"

namespace fvlm::check {

// The plugin's results on the ordinary trials of a kind, a line each: the trial's label and a hash of all outputs.
// Backwards: the last trial runs first; the lines keep their order.
std::vector<std::string> result_hashes(Context& context, bool backwards);

// The same from several other processes, each with another id, environment, working folder and order of addresses.
// Throws RowAborted if one of them fails.
std::vector<std::vector<std::string>> result_hashes_elsewhere(Context& context);

// What was observed in another process that used the plugin for the first time and then exited.
struct FreshProcess {
  std::map<Aspect, std::string> changes; // left by the first calls
  std::string exit;                      // how its exit was abnormal; "" if it was not
};
// Runs once for each kind. Throws RowAborted if that process fails.
const FreshProcess& fresh_process(Context& context);

// Runs job.child_task in such a process. `subject` has not been opened yet.
[[noreturn]] void run_child_task(const Job& job, Subject& subject);

} // namespace fvlm::check
