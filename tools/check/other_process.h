// Other processes that open the plugin, use it and end: what it makes of another time, environment and address space,
// and of a process that exits.
#pragma once
#include "check/child.h"
#include "check/context.h"
#include "check/process_state.h"

namespace fvlm::check {

// The plugin's results on the ordinary trials of a kind, a line each: the trial's label and a hash of all outputs.
// Backwards: the last trial runs first; the lines keep their order.
std::vector<std::string> result_hashes(Context& context, bool backwards);

// The same from several other processes, each with another id, environment, working folder and order of addresses.
// Throws Refused where one of them does not come to its end.
std::vector<std::vector<std::string>> result_hashes_elsewhere(Context& context);

// What came of another process that used the plugin for the first time, and then exited.
struct FreshProcess {
  std::map<Aspect, std::string> changes; // which the first calls left in it
  std::string exit;                      // how its exit was another than any process's; "" for nothing
};
// Asked once for each kind. Throws Refused where that process does not come to its end.
const FreshProcess& fresh_process(Context& context);

// What such a process does: job.errand names it. `subject` has not been opened yet.
[[noreturn]] void do_errand(const Job& job, Subject& subject);

} // namespace fvlm::check
