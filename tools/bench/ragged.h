// Measures training on a stream of samples of all lengths, end to end: measuring, packing, staging, copying, training.
#pragma once
#include "bench/progress.h"
#include "bench/training.h"
#include "plugin/registry.h"

#include <nlohmann/json.hpp>

#include <map>
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
  // Sums over some of the steps; each step is one pack.
  struct Part {
    int64_t steps = 0, samples = 0, frames = 0, tokens = 0; // tokens of text
    int64_t rows = 0, computed_rows = 0;                    // of the decoder: filled, and with padding
    int64_t new_classes = 0, captured = 0; // steps that were the first of their size class, or captured it
    double seconds = 0;
    std::map<std::string, double> parts; // those seconds by part of the step; "wait": for data
    std::optional<double> lost_seconds;  // time of steps of new classes beyond that of replayed steps
    Part& operator+=(const Part& more);
    bool replayed() const { return new_classes + captured == 0; }
    double a_second(int64_t count) const { return static_cast<double>(count) / seconds; }
  };
  struct Row {
    std::string packs;
    PackSize capacity;
    std::vector<Part> passes;
    Part replayed; // steps after the first pass that were replayed; without such steps, all after it
    int64_t classes = 0;
    int64_t peak_bytes = 0; // as in ProfileReport
    double first_loss = 0, last_loss = 0;
    std::string problem; // it could not be measured
    double fill_of_frames(const Part& part) const;
    double fill_of_rows(const Part& part) const;
  };
  std::vector<Row> rows;

  // The peer trains on the first samples of the stream to warm up, and is timed on as many after them.
  struct PeerSide {
    Part measured;
    double first_loss = 0; // of the engine's first pack
    int64_t peak_bytes = 0;
    std::string problem; // it could not be measured
  };
  std::optional<PeerSide> peer;
  double ratio(const Row& row) const; // of samples per second, over replayed steps if there are any

  std::vector<std::string> choices; // which plugin each operation took, of the last row
  nlohmann::ordered_json json() const;
};

RaggedReport measure_ragged(const RaggedRequest& request, Registry& registry, const Progress& progress);

} // namespace fvlm::bench
