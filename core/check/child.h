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
  std::optional<std::string> refusal; // why the engine's loader refuses it, "" for nothing; none: nobody asked it
  std::string device = "cpu";
  std::string after;               // the row behind which to begin, "" for the first
  std::vector<std::string> failed; // rows that failed before, and those that build on them
  std::string only;                // rows whose name contains this, or one of these, between commas
  bool bench = false;
  bool quick = false;               // rows of Extent::thorough are left out
  std::vector<std::string> command; // how the supervisor starts a child; the job follows
  std::string errand;               // not rows but one thing, which other_process.h names
  std::string kind;                 // of an errand: which of the plugin's
};
bool asks_for(const Job& job, const std::string& row);
std::string to_text(const Job& job);
Job job_from(const std::string& text);

// The file descriptor to which a child writes: one JSON document a line, {"begin": name} before a row and
// {"end": name, "state": ..., "text": ...} behind it.
constexpr int report_descriptor = 3;

// Tells the supervisor that a row which takes long is still at work: its time begins anew.
void keep_alive();

// Does the job and ends the process. `reference` is the engine's own plugin, to check and to measure against.
[[noreturn]] void run_child(const std::string& job, fvlm_plugin_entry_function reference);

} // namespace fvlm::check
