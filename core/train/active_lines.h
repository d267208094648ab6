// What a stage computes with, one line each, for whoever watches it begin.
#pragma once
#include "data/stream/host_pack.h"
#include "plugin/selection.h"
#include "recipe/plan.h"

#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace fvlm::train {

// The packs of a step beside the same sequences without packing, each padded to the longest of them.
struct PackingStatistics {
  int64_t sequences = 0, packs = 0;
  int64_t queries = 0;             // of retrieval samples
  int64_t tokens = 0, longest = 0; // of sequences: visual and text
  double padding_share = 0;        // of the packs' rows, those that hold nothing

  void add(const HostPack& pack);
  double padding_without() const;
};

// What the matrix products are computed in: TF32 is only had where no plugin takes the linear layers, on a GPU.
plan::Precision product_precision(plan::Precision precision, at::Device device,
                                  const std::vector<SelectionReport>& operations);

struct ActiveParts {
  const std::vector<SelectionReport>&operations, &optimizers;
  const SelectionReport& packer;
  PackingStatistics packing;
  bool did_without_fp8 = false; // a plugin did, as a warning says
};

// "Using attention backend: attention-cpu (online softmax by tiles)", ... Plugins that were preferred by name and
// refused are named with the reason; of the others the log for debugging tells.
std::vector<std::string> active_lines(const plan::Plan& plan, const plan::Stage& stage, at::Device device,
                                      const ActiveParts& parts);

} // namespace fvlm::train
