// A run: the stages of a Plan in order, each from what the one before left, in a folder from which it goes on after
// whatever stopped it.
#pragma once
#include "recipe/resolve.h"
#include "train/trainer.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace fvlm::train {

struct TrainRequest {
  std::filesystem::path folder;
  std::optional<std::string> stage;            // this one alone
  std::optional<std::filesystem::path> from;   // what the first stage to run begins with: a model directory
  std::optional<std::filesystem::path> resume; // a checkpoint of the run; none: the newest
  bool allow_plan_change = false;
  int64_t max_steps = -1; // of this process; negative: any number
  // For how long the last checkpoint of a stage is tried again before the run stops.
  std::chrono::milliseconds write_patience = std::chrono::minutes(10);
  at::Device device = at::kCPU;
  std::optional<ThreadReplicas::Size> replicas; // none: as model and machine make it
  const dist::Ranks* ranks = nullptr;           // that train together, of which this process is one; null: alone
  int64_t zero = 0;                             // of Sharing
  int64_t memory = 0;                           // that packing.tokens = "memory" may fill, bytes; 0: what is free
  std::optional<StepRange> profile;             // steps of this process that trace.json of the run's folder shows
  // Writes a report about the run into its folder, as far as the run has got; called whenever a stage has ended. Where
  // it throws an Error, the run warns and continues.
  std::function<void(const std::filesystem::path& folder)> write_report;
  Faults faults = {};
};

struct TrainReport {
  bool stopped = false; // asked to, and resumable
  std::string stage;    // the last one that was at work
  int64_t step = 0;
  std::filesystem::path checkpoint;     // its last
  int64_t samples = 0, text_tokens = 0; // of that stage, up to that step
  int64_t steps = 0;                    // taken by this process
  double seconds = 0;                   // that it took
};

// Throws Error for what makes no sense, and for numbers that go wrong beyond the guard's limits.
TrainReport train(const recipe::Resolved& resolved, const TrainRequest& request, Registry& registry);

// Says where train() would start or resume. Throws what it would throw about the run's folder. Writes nothing.
std::string planned_start(const recipe::Resolved& resolved, const TrainRequest& request, Registry& registry);

// Opens all that train() would open, the data and the model of every stage, and lets it go again: throws what it would
// throw before its first step. Writes nothing.
void rehearse(const recipe::Resolved& resolved, const TrainRequest& request, Registry& registry);

} // namespace fvlm::train
