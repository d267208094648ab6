// The process in which a plugin is checked. It runs the rows one after the other and reports each as a line of JSON. A
// plugin that crashes or hangs takes down this process alone; the supervisor starts another one that resumes after
// that row.
#pragma once
#include "check/subject.h"

#include <string>
#include <vector>

namespace fvlm::check {

// The work of one child process, passed to it as JSON in one argument of its command line.
struct Job {
  std::string library; // "": the reference
  std::optional<DeclaredPlugin> declared;
  std::optional<std::string> refusal; // why the engine's loader refuses the plugin, "" if it does not; unset: unknown
  std::string device = "cpu";
  std::string after;               // resume after this row; "" starts at the first
  std::vector<std::string> failed; // rows that have failed so far, and rows skipped because of them
  std::string only;                // rows whose name contains this, or one of these, between commas
  bool bench = false;
  bool quick = false;               // rows of Extent::thorough are left out
  std::vector<std::string> command; // how the supervisor starts a child; the job follows
  std::string child_task;           // "results" or "exit": run no rows but this task (other_process.h)
  std::string kind;                 // the plugin's kind that a child_task is about
};
bool is_selected(const Job& job, const std::string& row);
std::string to_text(const Job& job);
Job job_from(const std::string& text);

// The file descriptor to which a child writes: one JSON document a line, {"begin": name} before a row and
// {"end": name, "state": ..., "text": ...} behind it.
constexpr int report_descriptor = 3;

// Restarts the supervisor's time limit, for a row that is known to take long and is making progress.
void keep_alive();

// Runs the job and ends the process. `reference` is the engine's own plugin, to check and to measure against.
[[noreturn]] void run_child(const std::string& job, fvlm_plugin_entry_function reference);

} // namespace fvlm::check
