// What the ranks tell each other of a step before its gradients are reduced: numbers of the host, summed over all.
#pragma once
#include "dist/ranks.h"
#include "train/step_counts.h"

#include <cstdint>
#include <vector>

namespace fvlm::train {

struct StepTotals {
  bool ran_out_of_memory = false; // a rank did; the step begins anew
  bool cut_packs = false;         // the rank cuts packs into twice as many parts for it, and then all do
  bool dropped_plugin = false;    // the step begins anew with the rank's next plugin
  bool stop_requested = false;
  int64_t failed_decodes = 0; // see LoadedPack
  double counted = 0;         // see GradientComputer
  double flops = 0;
  int64_t used_rows = 0, all_rows = 0;
  StepCounts used; // of the samples that could be decoded

  bool begins_anew() const { return ran_out_of_memory || dropped_plugin; }
};

// Of all ranks, where those of a context group have the same packs. Every rank calls it.
StepTotals sum_over(const dist::Ranks& ranks, StepTotals own);

} // namespace fvlm::train
