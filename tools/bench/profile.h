// A whole training step on a device, forward, backward, clip and optimizer, on made data that lie there.
#pragma once
#include "bench/anatomy.h"
#include "bench/progress.h"
#include "bench/times.h"
#include "bench/training.h"
#include "plugin/registry.h"

#include <optional>
#include <string>
#include <vector>

namespace fvlm::bench {

struct ProfileRequest : TrainingSetting {
  // As job.h names them: "135m:8", "1.7b:8:checkpointing".
  std::vector<std::string> configurations;
  int64_t frames = 8, text = 128;     // of each sample; of each of its texts
  bool pairs = false;                 // preferences, each with a reference that is remembered and one in the same step
  std::filesystem::path model, batch; // a model directory and a batch file, in place of configurations
  std::filesystem::path numbers;      // a file for what each step came to and the last one's gradients; empty: none
  std::string peer;                   // a command, see peer.h; empty: none
  int64_t warmup = 3, repeat = 10;
  bool watch = false; // what the device does in a step, too
};

// What the peer came to on the same steps.
struct PeerSide {
  Times times;
  double first_loss = 0;
  int64_t peak_bytes = 0;
};

struct ProfileReport {
  struct Row {
    std::string configuration;
    std::string reference; // of pairs: "remembered", "live"
    Times asked;           // remembering it, where that is how it is: the pack, each time
    int64_t samples = 0, labels = 0;
    Times times;            // a step each
    double ready_after = 0; // seconds until the first step was done, the model being there
    int64_t peak_bytes = 0; // of tensors, while measured; where steps are recorded, all that is reserved
    int64_t kernels = 0;    // launched from recordings, a step; 0: operation by operation
    double first_loss = 0, last_loss = 0, gradient_norm = 0;
    double flops = 0;                  // a step
    std::optional<double> utilisation; // of what the device's sheet promises
    std::optional<StepAnatomy> anatomy;
    std::optional<PeerSide> peer;
    double ratio() const { return peer->times.median() / times.median(); }
    std::string problem; // it could not be measured
  };
  std::vector<Row> rows;
  std::vector<std::string> choices; // which plugin each operation took, of the last row
  nlohmann::ordered_json json() const;
};

ProfileReport measure_profile(const ProfileRequest& request, Registry& registry, const Progress& progress);

} // namespace fvlm::bench
