// What a stage computes with, made as its Plan says: operations, the model that trains, what stands frozen beside it,
// and the optimizer.
#pragma once
#include "budget/stage_budget.h"
#include "data/stream/composer.h"
#include "ops/operations.h"
#include "train/gradient_computer.h"
#include "train/optimization.h"
#include "train/quantized_weights.h"

#include <functional>
#include <memory>
#include <optional>

namespace fvlm::train {

// A stage's model as it begins: weights that train where the stage trains them.
using MakeModel = std::function<std::unique_ptr<model::Model>(const model::ArenaOptions& options)>;
// The model that an earlier stage left.
using MakeLeftModel =
    std::function<std::unique_ptr<model::Model>(const std::string& stage, const model::ArenaOptions& options)>;

// Of activations and of the weights that compute.
at::ScalarType type_of(plan::Precision precision);
std::unique_ptr<ops::Operations> make_operations(const plan::Plan& plan, Registry& registry, at::Device device,
                                                 const ops::ContextGroup& context = {});

// Floating-point operations a second that the device can do at most; none where that is not known.
std::optional<double> peak_flops(at::Device device, plan::Precision precision);

// Throws Error(data) where the tokens of the term's teacher, which lies in `folder`, are others than the model's, or,
// where it reads the stage's frames, it makes another number of decoder rows of each.
void check_teacher(const plan::Plan& plan, const plan::Stage& stage, const plan::ObjectiveTerm& term,
                   const std::filesystem::path& folder, const model::ModelConfig& teacher,
                   const model::ModelConfig& model);

// A model that does not learn. `base`: of a model whose frozen weights below adapters it shares; null: of none.
std::unique_ptr<model::Model> make_frozen(const plan::Plan& plan, at::Device device, const MakeModel& make,
                                          const model::Parameters* base = nullptr);

struct StageModel {
  std::shared_ptr<model::Model> model;
  Frozen frozen;
  std::unique_ptr<Optimization> optimization;
  std::unique_ptr<QuantizedWeights> quantized; // of a stage that trains through its recipe's quantization

  // Does the work on the original weights where the stage computes with quantized ones.
  void with_original_weights(QuantizedWeights::Which which, const std::function<void()>& work) {
    if (quantized) quantized->restore(which);
    work();
    if (quantized) quantized->quantize();
  }
};
// `policy` makes the model that trains, `begin` the live reference; a cache of its log-probabilities is for the caller
// to add. Without `left_by`, a teacher that is an earlier stage is made by `begin`, too, as large as it will be. Throws
// Error for teachers and groups that make no sense, and where nobody has the optimizer.
StageModel make_stage_model(const plan::Plan& plan, const plan::Stage& stage, Registry& registry, at::Device device,
                            const MakeModel& policy, const MakeModel& begin, const Sharing& sharing = {},
                            const MakeLeftModel& left_by = {});

// What a pack of this size can hold of the stage's samples; `most_samples` 0: any number.
model::Capacity max_capacity_of(const plan::Plan& plan, const plan::Stage& stage, const PackSize& capacity,
                                int64_t most_samples);

} // namespace fvlm::train
