// Estimates the largest sample of a stage from a part of its data, to choose pack sizes before training opens all
// shards.
#pragma once
#include "data/stream/prefetcher.h"
#include "recipe/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace fvlm {

class VideoDecoder;

struct DataSizes {
  plan::Stage stage; // with limits lowered to the largest sample found
  std::string said;  // a sentence on what was measured, or why nothing was
  bool seen = false;
  double frames_per_row = 0; // of the mix, by the samples looked at
};

// Measures up to `most` samples of each source, evenly spread, on all cores.
std::vector<MeasuredSample> measure_evenly(const SampleSource& samples, int64_t most);

// Measures up to 256 samples of each source from at most four of its shards, whose indices are built if necessary.
// Without a video decoder, a stage with videos keeps the limits of the recipe. `visual_rows`: of the plan's model.
DataSizes measure_data_sizes(const plan::Plan& plan, const plan::Stage& stage, const VideoDecoder* video,
                             const plan::VisualRows& visual_rows);

} // namespace fvlm
