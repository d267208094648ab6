// What a measured step trains: so many made samples, all alike, and the plan by which it does.
#pragma once
#include "bench/training.h"
#include "train/synthetic_pack.h"

#include <filesystem>
#include <string>

namespace fvlm::bench {

// "SHAPE:SAMPLES", and ":checkpointing", ":light" or, in the vision tower alone, ":light-vision" where activations are
// recomputed: "135m:8", "1.7b:8:checkpointing".
struct Configuration {
  std::string name, shape;
  int64_t samples = 0;
  plan::ActivationCheckpointing recompute = {};
};

Configuration configuration_named(const std::string& name); // throws Error(usage)

struct Job {
  std::string name, reference;
  plan::Plan plan;
  std::filesystem::path model, batch; // the file is made where there is none and a peer is to read it
  train::SyntheticPack pack;
  PackSize capacity;
  int64_t samples() const { return std::ssize(pack.samples); }
};

// Frames lie where a loader lays them for the device. `frames`, `text`: of each sample. `reference`: of pairs,
// "remembered" or "live"; empty: samples that are no pairs.
Job job_of(const Configuration& configuration, const TrainingSetting& setting, int64_t frames, int64_t text,
           const std::string& reference, SyntheticModels& models, at::Device device);

} // namespace fvlm::bench
