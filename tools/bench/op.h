// Measures single operations of each plugin and the reference against the device's peak.
#pragma once
#include "bench/ceiling.h"
#include "bench/op_work.h"
#include "bench/progress.h"
#include "bench/training.h"
#include "plugin/registry.h"

#include <optional>
#include <string>
#include <vector>

namespace fvlm::bench {

struct OpRequest : TrainingSetting {
  // "135m:8": the operations of such a training step. Or shapes: "rmsnorm:8704x576", see shapes_help().
  std::vector<std::string> configurations, shapes;
  std::vector<std::string> operations; // only these; empty: all
  int64_t frames = 8, text = 128;      // of each sample
  std::string peer;                    // a command, see peer.h; empty: none
};

struct OpReport {
  Ceiling ceiling; // measured in the same run
  bool on_gpu = false;

  struct Side {
    std::string plugin, reason; // reason: what the plugin says it will use
    std::optional<double> forward, backward,
        both;              // seconds; both: forward and backward together, as training calls them
    bool captured = false; // timed as a CUDA graph, without launch overhead
    std::string problem;   // why it could not be timed; else empty
  };
  struct Row {
    std::string configuration; // empty where a shape was given
    std::string operation, shape;
    std::string chosen; // the plugin that selection takes, by score or --kernels
    Passes minimal;
    std::vector<Side> sides;
  };
  std::vector<Row> rows;

  nlohmann::ordered_json json() const;
};

OpReport measure_ops(const OpRequest& request, Registry& registry, const Progress& progress);

std::string shapes_help(); // one line for each operation

} // namespace fvlm::bench
