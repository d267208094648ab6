// The memory of a step, as it is estimated by a dry run and as it is measured on the tensors of the step itself.
#pragma once
#include "feed/model_samples.h"
#include "model/weights/visual_rows.h"
#include "objective/labels.h"
#include "train/initial_model.h"
#include "train/quantized_weights.h"
#include "train/stage_model.h"
#include "train/step_memory.h"
#include "train/synthetic_pack.h"
#include "train/tensor_memory.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>

namespace fvlm::train {

// For SmallRun's recipe: no two sizes alike, and activations larger than the weights.
inline const std::vector<std::string> measurable_sizes = {
    "model.image_size=32",   "model.vision.width=48",    "model.vision.layers=3",
    "model.vision.heads=4",  "model.decoder.width=40",   "model.decoder.layers=4",
    "model.decoder.heads=4", "model.decoder.kv_heads=2", "model.decoder.mlp=112"};

struct StepSizes {
  int64_t estimated = 0, measured = 0;
  double ratio() const { return static_cast<double>(estimated) / static_cast<double>(measured); }
};

// On a full pack. Two steps are taken and the second is measured, when all workspaces have their size.
// `ranks`: of the first of so many with ZeRO-2. `change`: of the pack that is measured.
inline StepSizes measure_step(const plan::Plan& plan, const plan::Stage& stage, const PackSize& size,
                              Registry& registry, int64_t ranks = 1,
                              const std::function<void(SyntheticPack&)>& change = {}) {
  const c10::InferenceMode without_autograd;
  const auto description = describe(plan);
  TensorMemory memory;
  const auto operations = make_operations(plan, registry, at::kCPU);
  const MakeModel begin = [&](const model::ArenaOptions& options) { return make_model(description, 1, options); };
  auto made = make_stage_model(plan, stage, registry, at::kCPU, begin, begin, first_of(ranks));
  const int64_t image = plan.model.image_size;
  const int64_t rows = visual_rows(plan.model).per_frame;
  SyntheticPack pack =
      make_synthetic_pack(stage, visual_rows(plan.model), size, 0, image, description.vocabulary_sizes());
  if (change) change(pack);
  const auto used = model::Capacity::of(
      feed::model_samples(pack.host, image,
                          [&](const SampleText& text) { return objective::labels(text, stage.objective); }),
      rows);
  EXPECT_EQ(used.frames, size.frames);
  int64_t all_rows = 0; // a teacher's included
  for (const auto& sample : pack.samples) all_rows += sample->rows();
  EXPECT_EQ(all_rows, size.rows);
  const Order order = Order::once({static_cast<int64_t>(pack.samples.size())});
  made.frozen = with_empty_caches(made.frozen, stage, *made.model, order, pack.host);
  model::Capacity most = used;
  if (!plan.speed.shared_preference_frames) most.frames *= stage.texts_per_sample();
  GradientComputer computer(plan, stage, *made.model, *operations, most, made.frozen);
  std::unique_ptr<QuantizedWeights> quantized;
  if (stage.quantization_aware) {
    quantized = std::make_unique<QuantizedWeights>(plan, registry, made.model->parameters(), at::kCPU);
    quantized->quantize();
  }
  const StepCounts counts = counts_of(stage, pack.samples);
  PartTimes times;
  for (int i = 0; i < 2; ++i) {
    memory.reset_peak();
    GradientReduction* reduction = made.optimization->reduction();
    if (reduction) reduction->begin_step(1);
    computer.begin_step();
    computer.forward_backward(pack.host, counts, 1, times, false, reduction);
    if (quantized) quantized->pass_gradients();
    made.optimization->step(made.optimization->base_rates(), 1, 1, computer.sums());
    EXPECT_TRUE(std::isfinite(made.optimization->gradient_norm()));
  }
  const int64_t measured = memory.peak();
  StepMemory estimate(plan, stage, description, registry, budget::Device::cpu, first_of(ranks));
  return {estimate.of(size, 0, stage.activation_checkpointing).peak, measured};
}

} // namespace fvlm::train
