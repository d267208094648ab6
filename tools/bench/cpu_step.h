// A training step on the CPU, forward and backward without an optimizer, against PyTorch's on the same model and data.
#pragma once
#include "bench/progress.h"
#include "bench/times.h"
#include "plugin/registry.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::bench {

struct CpuStepRequest {
  std::filesystem::path model, batch; // both or none; none: synthetic ones of `shape`
  std::string shape = "tiny";
  std::string mode = "coarse_fine"; // or coarse_only, shallow
  std::string recompute = "none";   // model::Recompute::parse()
  std::vector<std::string> kernels; // plugins, in order of preference; empty: auto
  int64_t threads = 0;              // 0: LibTorch's default
  int64_t warmup = 3, repeat = 30;
  std::string peer; // a command, see peer.h; empty: none
};

// The engine, or its peer.
struct CpuStepSide {
  Times times;
  double loss = 0;
};

struct CpuStepReport {
  // One batch.
  struct Row {
    std::string batch;
    int64_t samples, frames, rows,
        padded_rows; // rows of the decoder; rows if each sample were padded to the longest
    CpuStepSide engine;
    std::optional<CpuStepSide> peer;
    double ratio() const { return peer->times.median() / engine.times.median(); }
    double ratio_of_cpu() const { return peer->times.median_cpu() / engine.times.median_cpu(); }
    double ratio_of_min() const { return peer->times.min() / engine.times.min(); }
  };
  std::vector<Row> rows;
  int64_t threads = 0;
  std::vector<std::string> choices; // which plugin each operation took
  nlohmann::ordered_json json() const;
};

// Called after each block of steps with the batch, the steps done and their total.

// Alternates between both sides, a few steps each. Throws Error(data) if the losses differ, because the times are then
// not comparable.
CpuStepReport measure_cpu_step(const CpuStepRequest& request, Registry& registry, const Progress& progress);

} // namespace fvlm::bench
