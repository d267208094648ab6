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
  at::Device device = at::kCPU;                 // that would read the frames
  std::string peer;                             // a command, see peer.h; empty: none
};

// Of all turns of one side.
struct DataSide {
  std::vector<double> seconds;
  int64_t samples = 0, frames = 0;
  double samples_per_second() const;
  double best() const; // of any turn
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

// Told after each turn of both sides.

// Both sides take turns. What one has read ahead when its turn begins is thrown away, and no time is counted for it.
DataReport measure_data(const DataRequest& request, Registry& registry, const Progress& progress);

// Two sets of textured pictures of 640 x 480, as JPEG and as PNG, made by `make_shapes`, below a folder that is there.
std::vector<DataSet> make_data_sets(const std::filesystem::path& make_shapes, const std::filesystem::path& folder);

} // namespace fvlm::bench
