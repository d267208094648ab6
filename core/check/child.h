// The process in which a plugin is checked: it runs the rows one after the other and says so, line by line. A plugin
// that crashes or hangs takes only this process along; the supervisor starts the next one behind that row.
#pragma once
#include "check/subject.h"

#include <string>
#include <vector>

namespace fvlm::check {

// What a child is to do. Crosses to it as one argument of its command line, in JSON.
struct Job {
  std::string library; // "": the reference
  std::optional<Declared> declared;
  std::string device = "cpu";
  std::string after;               // the row behind which to begin, "" for the first
  std::vector<std::string> failed; // rows that failed before, and those that build on them
  std::string only;                // rows whose name contains this, or one of these, between commas
  bool bench = false;
  std::string errand; // not rows but one thing: errand.h
  bool quick = false; // rows of Extent::thorough are left out
};
bool asks_for(const Job& job, const std::string& row);
std::string to_text(const Job& job);
Job job_from(const std::string& text);

// The file descriptor to which a child writes: one JSON document a line, {"begin": name} before a row and
// {"end": name, "state": ..., "text": ...} behind it.
constexpr int report_descriptor = 3;

// Does the job and ends the process. `reference` is the engine's own plugin, to check and to measure against.
[[noreturn]] void run_child(const std::string& job, fvlm_plugin_entry_function reference);

} // namespace fvlm::check
