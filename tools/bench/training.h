// The training that benchmarks measure: a synthetic model on a device, with a plan that is built without a recipe.
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
#include <span>
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

// A plan of one stage that trains on all text tokens of samples of at most so many frames and tokens, with AdamW.
plan::Plan synthetic_plan(const TrainingSetting& setting, int64_t image_size, int64_t frames, int64_t text);

// What a synthetic model is stored in for a run of this type: no larger than it has to be.
DType stored_type(const std::string& dtype);

// Model directories, each written when it is first needed.
class SyntheticModels {
 public:
  explicit SyntheticModels(DType dtype = DType::f32) : dtype_(dtype) {}
  const std::filesystem::path& of(const Shape& shape);
  // The same with the decoder's linears in int4.
  const std::filesystem::path& quantized(const Shape& shape, Registry& registry);

 private:
  DType dtype_;
  ScratchFolder scratch_;
  std::map<std::string, std::filesystem::path> folders_;
};

class Training {
 public:
  // Plan and registry must outlive it. `max_samples` per pack; 0: no limit. If the plan caches a reference or a
  // teacher, there are `packs` of so many samples each, at positions from 0 on, and cache_frozen() must be called
  // first. Among ranks, each context has packs of its own, and optimize() is of all.
  Training(const plan::Plan& plan, Registry& registry, at::Device device, const std::filesystem::path& model,
           const PackSize& capacity, int64_t max_samples, const train::Sharing& sharing = {},
           const ops::ContextGroup& context = {}, int64_t packs = 1);

  train::GradientComputer& gradient_computer() { return *gradient_computer_; }
  // A step of one pack: its passes, and the sum of the ranks' gradients where the optimizer does not do it.
  void forward_backward(train::GradientComputer::StagedPack& pack, PartTimes& times);
  // A second GradientComputer on the same model, with another plan.
  std::unique_ptr<train::GradientComputer> gradient_computer_for(const plan::Plan& plan);
  model::Model& trained_model() { return *stage_.model; }
  // Caches the log-probabilities of the pack's pairs under the untrained model, which is the reference, or the hidden
  // states of teachers. Call it before the first step, and finish_caching() after the last pack.
  void cache_frozen(const HostPack& pack) {
    if (stage_.frozen.cache) gradient_computer_->cache_reference(pack, *stage_.model);
    if (stage_.frozen.teacher_cache) gradient_computer_->cache_teachers(pack);
  }
  void finish_caching() { gradient_computer_->finish_caching(); }

  // Of a step whose packs are staged and hold these samples.
  double flops(std::span<const std::shared_ptr<const Sample>> samples) const;
  void optimize(bool captured = true); // clipping and optimizer step on the current gradients
  // Of the last optimize(), over all ranks. They synchronize with the device.
  double loss() const;
  double gradient_norm() const { return stage_.optimization->gradient_norm(); }
  // The same without synchronization.
  train::AsyncReadback numbers() const {
    return train::AsyncReadback({stage_.optimization->sums(), stage_.optimization->norm()});
  }
  double loss(const train::AsyncReadback& numbers) const;

  int64_t kernels() const {
    return gradient_computer_->kernels() + stage_.optimization->kernels();
  }                                         // launched by CUDA graphs
  std::vector<std::string> choices() const; // which plugin each operation took
  const ops::Operations& operations() const { return *operations_; }

 private:
  const plan::Plan& plan_;
  std::optional<Order> order_; // of the samples of which something is cached
  train::StageModel stage_;
  std::unique_ptr<ops::Operations> operations_;
  model::Capacity capacity_;
  std::unique_ptr<train::GradientComputer> gradient_computer_;
};

} // namespace fvlm::bench
