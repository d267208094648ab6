// Training on a stream of samples of all lengths, end to end: measured, packed, staged, copied, and learnt.
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
  int64_t samples = 512;          // of a pass
  int64_t passes = 4;             // over samples that are new in each
  int64_t workers = 0;            // 0: one for each core but one
  uint64_t seed = 42;
  std::string peer; // a command, see peer.h; empty: none
};

struct RaggedReport {
  // What some of the steps came to; each is one pack.
  struct Part {
    int64_t steps = 0, samples = 0, frames = 0, tokens = 0; // tokens of text
    int64_t rows = 0, computed_rows = 0;                    // of the decoder: filled, and all
    int64_t new_classes = 0, recorded = 0; // steps that were the first of their class, or its recording
    double seconds = 0;
    std::map<std::string, double> parts; // of those seconds, by what they were spent on; "wait": for data
    std::optional<double> lost_seconds;  // to new classes, above what their samples take replayed
    Part& operator+=(const Part& more);
    bool replayed() const { return new_classes + recorded == 0; }
    double a_second(int64_t count) const { return static_cast<double>(count) / seconds; }
  };
  struct Row {
    std::string packs;
    PackSize capacity;
    std::vector<Part> passes;
    Part replayed; // the steps behind the first pass that were launched from recordings; without those, all behind it
    int64_t classes = 0;
    int64_t peak_bytes = 0; // as in ProfileReport
    double first_loss = 0, last_loss = 0;
    std::string problem; // it could not be measured
    double fill_of_frames(const Part& part) const;
    double fill_of_rows(const Part& part) const;
  };
  std::vector<Row> rows;

  // It learns the first samples of the stream to warm up, and then as many.
  struct PeerSide {
    Part measured;
    double first_loss = 0; // of the pack that the engine began with
    int64_t peak_bytes = 0;
    std::string problem; // it could not be measured
  };
  std::optional<PeerSide> peer;
  double ratio(const Row& row) const; // of samples a second, the steady ones where there are any

  std::vector<std::string> choices; // which plugin each operation took, of the last row
  nlohmann::ordered_json json() const;
};

RaggedReport measure_ragged(const RaggedRequest& request, Registry& registry, const Progress& progress);

} // namespace fvlm::bench
