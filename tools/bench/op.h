// Operations by themselves: each plugin that has one, and the reference, against what the device can do at most.
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
  // "135m:8": what a training step of it asks for. Or shapes: "rmsnorm:8704x576", see shapes_help().
  std::vector<std::string> configurations, shapes;
  std::vector<std::string> operations; // of those alone; empty: all
  int64_t frames = 8, text = 128;      // of each sample
  std::string peer;                    // a command, see peer.h; empty: none
};

struct OpReport {
  Ceiling ceiling; // measured in the same run
  bool on_gpu = false;

  struct Side {
    std::string plugin, reason;                    // what it will use
    std::optional<double> forward, backward, both; // seconds; both: as training calls them
    bool recorded = false;                         // timed without the host's part
    std::string problem;                           // it could not be timed
  };
  struct Row {
    std::string configuration; // empty where a shape was given
    std::string operation, shape;
    std::string chosen; // by the score, or as --kernels has it
    Passes least;
    std::vector<Side> sides;
  };
  std::vector<Row> rows;

  nlohmann::ordered_json json() const;
};

OpReport measure_ops(const OpRequest& request, Registry& registry, const Progress& progress);

std::string shapes_help(); // a line an operation

} // namespace fvlm::bench
