// Measures whole training steps of a device (forward, backward, clipping and optimizer) on synthetic data.
#pragma once
#include "bench/anatomy.h"
#include "bench/device_steps.h"
#include "bench/progress.h"
#include "bench/times.h"
#include "bench/training.h"
#include "plugin/registry.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::bench {

struct ProfileRequest : TrainingSetting {
  // As job.h names them: "135m:8", "1.7b:8:checkpointing".
  std::vector<std::string> configurations;
  int64_t frames = 8, text = 128;     // of each sample; of each of its texts
  bool pairs = false;                 // preference pairs, once with a cached reference and once with a live one
  std::filesystem::path model, batch; // a model directory and a batch file, in place of configurations
  std::filesystem::path numbers;      // a file for the losses of all steps and the last one's gradients; empty: none
  std::string peer;                   // a command, see peer.h; empty: none
  int64_t warmup = 3, repeat = 10;
  double sustained = 0;      // seconds for which steps go on after the repeated ones; 0: they do not
  bool with_anatomy = false; // also profile a step
  // Of several ranks each measures every configuration alone, and then together with the others. All make the same.
  train::Sharing sharing;
  ops::ContextGroup context;
};

// The peer's results on the same steps.
struct PeerSide {
  Times times;
  std::optional<Sustained> sustained;
  double first_loss = 0, last_loss = 0;
  int64_t peak_bytes = 0;
};

struct ProfileReport {
  struct Row {
    std::string configuration;
    std::string reference;           // of pairs: "remembered", "live"
    Times caching;                   // with a cached reference: times of caching the pack's log-probabilities
    int64_t samples = 0, labels = 0; // of all ranks
    Times times;                     // of each step
    std::optional<Sustained> sustained;
    // Of several ranks: the median step of each of them alone, where all have the memory for that.
    std::optional<std::vector<double>> alone;
    double packs_of_a_rank = 1; // of a step: less than 1 where ranks share their sequences
    double ready_after = 0;     // seconds from the loaded model to the end of the first step
    int64_t peak_bytes = 0;     // of tensors during the measurement; with captured steps, all reserved memory
    int64_t kernels = 0;        // launched by CUDA graphs per step; 0: eager
    double first_loss = 0, last_loss = 0, gradient_norm = 0;
    double flops = 0;                  // a step
    std::optional<double> utilisation; // fraction of the data sheet's peak
    std::optional<StepAnatomy> anatomy;
    std::optional<PeerSide> peer;
    double ratio() const { return peer->times.median() / times.median(); }
    double sustained_ratio(const PeerSide& side) const { // of samples per second
      return sustained->samples_per_second(samples) / side.sustained->samples_per_second(samples);
    }
    // Together all ranks wait for the slowest GPU, and so its rate alone is the one to compare with.
    double slowest_alone() const { return *std::max_element(alone->begin(), alone->end()); }
    double share_of_alone() const { return packs_of_a_rank * slowest_alone() / times.median(); }
    std::string problem; // it could not be measured
  };
  std::vector<Row> rows;
  std::vector<std::string> choices; // which plugin each operation took, of the last row
  nlohmann::ordered_json json() const;
};

ProfileReport measure_profile(const ProfileRequest& request, Registry& registry, const Progress& progress);

} // namespace fvlm::bench
