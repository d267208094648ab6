// A believable run folder, made without training: the quickstart's plan, curves as such a run has them, events,
// held-out sets, answers with frames and where the model looked.
#pragma once
#include <cstdint>
#include <filesystem>

namespace fvlm::test {

struct MadeRun {
  int64_t stages = 3;       // of the recipe's three
  double last_progress = 1; // how much of the last of them
  bool samples = true, parameters = true, events = true;
};

// Writes it into `folder`, which is there and empty. Throws Error.
void make_run(const std::filesystem::path& folder, const MadeRun& wanted = {});

} // namespace fvlm::test
