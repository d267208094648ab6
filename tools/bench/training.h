// What measurements train: a made model on a device, by a plan that no recipe wrote.
#pragma once
#include "base/scratch_folder.h"
#include "bench/synthetic_model.h"
#include "recipe/plan.h"
#include "train/async_readback.h"
#include "train/stage_model.h"

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::bench {

struct TrainingSetting {
  std::string device = "cpu";
  plan::Precision precision = plan::Precision::bf16;
  plan::Moments moments = plan::Moments::fp32;
  plan::Gradients gradients = plan::Gradients::fp32;
  double rate = 1e-5;
  plan::Speed speed;
  bool deterministic = false;
  std::vector<std::string> freeze;  // groups of parameters
  std::vector<std::string> kernels; // plugins, in order of preference; empty: auto
};

// One stage that learns all text of samples of at most so many frames and tokens, with AdamW.
plan::Plan synthetic_plan(const TrainingSetting& setting, int64_t image_size, int64_t frames, int64_t text);

// Model directories, each made when it is first asked for.
class SyntheticModels {
 public:
  const std::filesystem::path& of(const Shape& shape);

 private:
  ScratchFolder scratch_;
  std::map<std::string, std::filesystem::path> folders_;
};

class Training {
 public:
  // Plan and registry outlive it. A pack has at most so many samples; 0: any number. Where the plan remembers a
  // reference, all packs are of the same samples, and remember() comes first.
  Training(const plan::Plan& plan, Registry& registry, at::Device device, const std::filesystem::path& model,
           const PackSize& capacity, int64_t most_samples);

  train::GradientComputer& learner() { return *learner_; }
  // A second one on the same model, which goes by another plan.
  std::unique_ptr<train::GradientComputer> learner_of(const plan::Plan& plan);
  model::Model& vlm() { return *made_.vlm; }
  // What the model as it stands, which is the reference, thinks of the pack's pairs. Before the first step, and done
  // with end_remembering().
  void remember(const HostPack& pack) { learner_->cache_reference(pack, *made_.vlm); }
  void end_remembering() { learner_->finish_caching(); }

  void optimize(bool recorded = true); // clip and optimizer, with the gradients as they stand
  // Of the step before; they wait for the device.
  double loss() const;
  double gradient_norm() const { return made_.optimization->gradient_norm(); }
  // The same without a wait.
  train::AsyncReadback numbers() const { return train::AsyncReadback({learner_->sums(), made_.optimization->norm()}); }
  static double loss(const train::AsyncReadback& numbers);

  int64_t kernels() const { return learner_->kernels() + made_.optimization->kernels(); } // launched from recordings
  std::vector<std::string> choices() const; // which plugin each operation took
  const ops::Operations& operations() const { return *operations_; }

 private:
  const plan::Plan& plan_;
  std::optional<Order> order_; // of the pairs that are remembered
  train::StageModel made_;
  std::unique_ptr<ops::Operations> operations_;
  model::Capacity most_;
  std::unique_ptr<train::GradientComputer> learner_;
};

} // namespace fvlm::bench
