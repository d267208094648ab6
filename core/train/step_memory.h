// StepMemory: the memory that a stage's steps need, known without taking one. The stage's real model, objective and
// optimizer go through a step on tensors that have no content, and their allocations are counted (ops/dry_run.h).
#pragma once
#include "budget/stage_budget.h"
#include "data/stream/composer.h"
#include "ops/dry_run.h"
#include "train/stage_model.h"

#include <memory>

namespace fvlm::train {

// The first of so many ranks with ZeRO-2 (or as `zero` says), of which the others are not there: for sizes alone. Of
// one: alone.
Sharing first_of(int64_t ranks, int64_t zero = 2);

class StepMemory {
 public:
  // Of a run on `device`, which need not be there. On a CPU the registry's plugins are asked for what they need; on a
  // GPU a table of what the bundled plugins need takes their place. Nothing else may use the device meanwhile. Throws
  // Error for teachers and groups that make no sense. `sharing`: of first_of(). [setup]
  StepMemory(const plan::Plan& plan, const plan::Stage& stage, const ModelDescription& description, Registry& registry,
             budget::Device device, const Sharing& sharing = {});
  ~StepMemory();

  int64_t last_bucket() const; // bytes of the gradients that are complete last
  // Of a full pack of this size; `most_samples` 0: any number.
  budget::Need of(const PackSize& size, int64_t most_samples, const plan::ActivationCheckpointing& recompute);

 private:
  class Step;
  // Throws Error(data) where a part of the model or objective calls an operator that needs content.
  void run(Step& step, PartTimes& times) const;
  budget::Need need(const Step& step, const std::map<std::string, int64_t>& kept) const;

  plan::Plan plan_;
  plan::Stage stage_;
  const ModelDescription& description_;
  budget::Device device_;
  ops::DryRun dry_run_; // before all that holds tensors
  std::unique_ptr<Registry> without_gpu_;
  Registry& registry_;
  std::unique_ptr<ops::Operations> operations_;
  StageModel model_;
};

// Of a stage of a plan, on the largest pack that one of its steps can hold; and of one of so many ranks.
budget::StageBudget stage_budget(const plan::Plan& plan, const plan::Stage& stage, const ModelDescription& description,
                                 Registry& registry, budget::Device device, int64_t ranks = 1);

} // namespace fvlm::train
