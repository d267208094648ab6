// The speed of answers about many videos at once, against the same one after another: frames, queries and tokens of all
// requests are computed together, or of each by itself.
#pragma once
#include "bench/progress.h"
#include "model/execution.h"
#include "plugin/registry.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace fvlm::bench {

struct VideosRequest {
  model::Execution execution;
  std::vector<std::string> shapes = {"135m"};
  int64_t videos = 32, frames = 8;  // and frames of each
  int64_t prompt = 16, answer = 32; // tokens of each
  int64_t repeat = 3;               // measured runs, of which the fastest counts
};

struct VideosReport {
  struct Row {
    std::string shape;
    double together = 0, one_by_one = 0; // seconds, from frames to the last token
    double ratio() const { return one_by_one / together; }
  };
  int64_t videos = 0, frames = 0, prompt = 0, answer = 0;
  std::vector<Row> rows;

  nlohmann::ordered_json json() const;
};

// Throws Error(usage) for sizes that make no sense.
VideosReport measure_videos(const VideosRequest& request, Registry& registry, const Progress& progress);

} // namespace fvlm::bench
