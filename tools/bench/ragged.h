// Measures training on a stream of samples of all lengths, end to end: measuring, packing, staging, copying, training.
#pragma once
#include "bench/progress.h"
#include "bench/stream_steps.h"
#include "bench/training.h"
#include "plugin/registry.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

namespace fvlm::bench {

struct RaggedRequest : TrainingSetting {
  std::string shape = "135m";
  std::vector<std::string> packs; // "FRAMES:TOKENS", the capacity of a pack; one measurement each
  int64_t samples = 512;          // samples per pass
  int64_t passes = 4;             // each pass has new samples
  int64_t workers = 0;            // 0: one for each core but one
  uint64_t seed = 42;
  std::string peer; // a command, see peer.h; empty: none
};

struct RaggedReport {
  using Part = StreamPart;
  // Of passes over new samples. The first one captures most CUDA graphs, and a peer warms up in it.
  struct Side {
    std::vector<Part> passes;
    Part whole;  // all steps of the passes after the first one, those that captured included
    Part steady; // of these, the steps that captured nothing; none where every step did
    double first_loss = 0;
    int64_t peak_bytes = 0; // as in ProfileReport
    std::string problem;    // it could not be measured
    void sum_up();          // `whole` from the passes
  };
  struct Row : Side {
    std::string packs;
    PackSize capacity;
    int64_t classes = 0;
    double last_loss = 0;
    double fill_of_frames(const Part& part) const;
    double fill_of_rows(const Part& part) const;
  };
  std::vector<Row> rows;

  // Trains on the same stream in as many passes. It captures nothing: its steady state is its whole passes.
  std::optional<Side> peer;
  // Of samples per second.
  double ratio_of_whole(const Row& row) const;
  std::optional<double> ratio_of_steady(const Row& row) const;

  std::vector<std::string> choices; // which plugin each operation took, of the last row
  nlohmann::ordered_json json() const;
};

RaggedReport measure_ragged(const RaggedRequest& request, Registry& registry, const Progress& progress);

} // namespace fvlm::bench
