// The results of a conformance test, and their text and JSON.
#pragma once
#include "check/check.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace fvlm::check {

struct Entry {
  std::string name, proves; // "attention.causal"
  Outcome outcome;
  double seconds = 0;
};

struct Report {
  std::string plugin, version, library, device;
  std::vector<std::string> kinds;
  std::vector<Entry> entries;
  std::vector<Measurement> figures; // name: "attention: ragged forward"

  size_t count(State state) const;
  bool passed() const { return count(State::failed) == 0; }
  nlohmann::json json() const;
  // The last lines of the terminal's output.
  std::string summary() const;
};

const char* state_name(State state); // "ok", "failed", "not applicable"

// One line of the terminal's output, with the reason of a failure below it.
std::string line_of(const Entry& entry);

} // namespace fvlm::check
