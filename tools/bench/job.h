// The work of measured steps: packs of synthetic samples of one size, and the plan by which they are trained.
#pragma once
#include "bench/training.h"
#include "train/synthetic_pack.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::bench {

// "SHAPE:SAMPLES", and any of ":checkpointing", ":light" or, in the vision tower alone, ":light-vision" where
// activations are recomputed, ":stills" where a sample's frames are one repeated image, ":cached-teacher" where the
// teacher's rows are computed once, ":lora" where every linear of the decoder has an adapter of rank 16 and all else is
// frozen, or ":qlora" where these linears are in int4 besides: "135m:8", "1.7b:8:checkpointing", "1.7b:8:lora:light".
struct Configuration {
  std::string name, shape;
  int64_t samples = 0;
  plan::ActivationCheckpointing recompute = {};
  bool caches_teacher = false, lora = false, quantized = false, stills = false;
};

inline constexpr std::string_view configuration_variants[] = {
    "checkpointing", "light", "light-vision", "cached-teacher", "lora", "qlora", "stills"};
inline constexpr int64_t lora_rank = 16;                    // of ":lora", whose alpha is twice as much
Configuration configuration_named(const std::string& name); // throws Error(usage)

struct Job {
  std::string name, reference;
  plan::Plan plan;
  std::filesystem::path model;
  std::vector<train::SyntheticPack> packs; // steps take them in turn
  PackSize capacity;
  bool is_quantized = false;
  int64_t samples() const { return std::ssize(packs.front().samples); } // of a pack
};

// Of a measurement: so many that no step finds the data of the previous ones in a cache. The default numbers of steps
// (3 and 10) begin and end with the same pack, so that the first and the last loss compare.
inline constexpr int64_t packs_in_turn = 4;

// Frames are in the memory that a loader would use for the device. `frames` and `text` are sizes of each sample.
// `reference` is "remembered" (cached) or "live" for preference pairs; empty: samples are no pairs. Pixels and tokens
// are random and differ from sample to sample and from pack to pack.
Job job_of(const Configuration& configuration, const TrainingSetting& setting, int64_t frames, int64_t text,
           const std::string& reference, SyntheticModels& models, Registry& registry, at::Device device,
           int64_t packs = 1);

} // namespace fvlm::bench
