// Helpers for the tests of `plugin check`: paths of test plugins and of the child program, and failed checks as text.
#pragma once
#include "base/file.h"
#include "check/supervisor.h"

namespace fvlm::check {

inline std::filesystem::path plugin(const std::string& name) {
  return program_folder() / "plugins" / (name + ".so");
}

// Of a check that does not hang, however slow the machine is.
constexpr std::chrono::seconds no_hang = std::chrono::hours(1);

inline Supervision supervision(std::chrono::seconds limit) {
  Supervision how;
  how.command = {(program_folder() / "check_child").string()};
  how.limit = limit;
  return how;
}

inline std::string failures(const Report& report) {
  std::string text;
  for (const Entry& entry : report.entries)
    if (entry.outcome.state == State::failed) text += "\n  " + entry.name + ": " + entry.outcome.text;
  return text;
}

} // namespace fvlm::check
