// How many samples a second the loader gives, against a webdataset + PIL pipeline on the same shards.
#pragma once
#include "bench/progress.h"
#include "bench/times.h"
#include "plugin/registry.h"

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::bench {

// Shards to read, and the tokenizer for their texts.
struct DataSet {
  std::string name;
  std::vector<std::string> shards;
  std::filesystem::path tokenizer; // a folder
};

struct DataRequest {
  std::vector<DataSet> sets;
  int64_t size = 224; // pixels a side
  int64_t workers = 2;
  int64_t batch = 32, samples = 512, turns = 4; // samples a turn
  at::Device device = at::kCPU;                 // frames are pinned if it is a GPU
  std::string peer;                             // a command, see peer.h; empty: none
};

// The measurements of one side.
struct DataSide {
  std::vector<double> seconds;
  int64_t samples = 0, frames = 0;
  double samples_per_second() const;
  double best() const; // over all rounds
};

struct DataReport {
  struct Row {
    std::string set;
    int64_t samples_a_turn = 0;
    DataSide engine;
    std::optional<DataSide> peer;
    bool pinned = false; // the engine's frames
    double ratio() const { return engine.samples_per_second() / peer->samples_per_second(); }
  };
  std::vector<Row> rows;
  nlohmann::ordered_json json() const;
};

// Called after each round of both sides.

// Alternates between both sides. Samples that a side has prefetched before its round are discarded and not timed.
DataReport measure_data(const DataRequest& request, Registry& registry, const Progress& progress);

// Generates two sets of textured 640 x 480 pictures, JPEG and PNG, with the program `make_shapes`, in an existing
// folder.
std::vector<DataSet> make_data_sets(const std::filesystem::path& make_shapes, const std::filesystem::path& folder);

} // namespace fvlm::bench
