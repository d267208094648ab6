// A synthetic run folder, written without training: the quickstart's plan, plausible curves, events, held-out sets, and
// answers with frames and attention maps.
#pragma once
#include <cstdint>
#include <filesystem>

namespace fvlm::test {

struct SyntheticRun {
  int64_t stages = 3;       // of the recipe's three
  double last_progress = 1; // how much of the last of them
  bool samples = true, parameters = true, events = true;
};

// Writes it into `folder`, which is there and empty. Throws Error.
void make_run(const std::filesystem::path& folder, const SyntheticRun& wanted = {});

} // namespace fvlm::test
