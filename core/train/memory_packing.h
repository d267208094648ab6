// packing.tokens = "memory": the largest pack whose step, as StepMemory estimates it, fits into a device's memory.
#pragma once
#include "budget/stage_budget.h"
#include "data/stream/data_sizes.h"
#include "dist/ranks.h"
#include "model/weights/model_directory.h"
#include "plugin/registry.h"
#include "recipe/plan.h"
#include "train/run_record.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace fvlm::train {

// What tensors may take of this machine's device: `requested` bytes, or with 0 a share of what is free, which so many
// processes divide. No bytes: there is no such device here.
budget::MemoryLimit memory_limit(budget::Device device, int64_t requested, int64_t processes = 1);

struct PackRequest {
  budget::Device device;
  budget::MemoryLimit limit;
  int64_t ranks = 1, zero = 0; // that share the stage; of Sharing
  int64_t replicas = 1;        // of the model, within this process
};

// Of a stage, as `data` has its samples. Throws Error(device) where not even its largest sample fits. Takes no memory
// itself.
budget::ChosenPack choose_pack(const plan::Plan& plan, const plan::Stage& stage, const DataSizes& data,
                               const ModelDescription& description, Registry& registry, const PackRequest& request);

// The packs of a run that trains on a device of this machine.
class MemoryPacking {
 public:
  struct Run {
    at::Device device = at::kCPU;
    int64_t memory = 0; // bytes that tensors may take; 0: what is free
    int64_t zero = 0;   // of Sharing
    int64_t replicas = 1;
  };
  // All outlive it.
  MemoryPacking(const plan::Plan& plan, const ModelDescription& description, Registry& registry,
                const dist::Ranks& ranks, const Run& run)
      : plan_(plan), description_(description), registry_(registry), ranks_(ranks), run_(run) {}

  // The stage with numbers for its pack, where it leaves them to the memory: those of `packs`, if `keeps`, or else
  // newly chosen ones, which `packs` gets. Every rank calls it and gets the same, which fits the rank with the least
  // memory.
  plan::Stage with_pack(const plan::Stage& stage, std::map<std::string, RunRecord::Pack>& packs, bool keeps) const;

 private:
  budget::Device device() const { return run_.device.is_cpu() ? budget::Device::cpu : budget::Device::cuda; }
  PackRequest request() const; // with the least limit of all ranks
  DataSizes sizes_of(const plan::Stage& stage) const;
  RunRecord::Pack kept(const plan::Stage& stage, const RunRecord::Pack& pack, const PackRequest& request) const;
  RunRecord::Pack chosen(const plan::Stage& stage, const PackRequest& request) const;

  const plan::Plan& plan_;
  const ModelDescription& description_;
  Registry& registry_;
  const dist::Ranks& ranks_;
  Run run_;
};

} // namespace fvlm::train
