// The floating-point operations that the samples of a step stand for, whatever is padded or computed twice.
#pragma once
#include "data/samples/sample.h"
#include "model/flops.h"
#include "recipe/plan.h"
#include "train/gradient_computer.h"
#include "train/optimization.h"

#include <memory>
#include <span>
#include <vector>

namespace fvlm::train {

class StepFlops {
 public:
  // Plan, stage and policy outlive it.
  StepFlops(const plan::Plan& plan, const plan::Stage& stage, const model::Model& policy,
            const Optimization& optimization, const objective::FrozenModels& frozen);
  double of(std::span<const std::shared_ptr<const Sample>> samples) const;

 private:
  const plan::Plan& plan_;
  const plan::Stage& stage_;
  const model::Model& policy_;
  model::TrainedParts trained_;
  std::vector<std::shared_ptr<const model::Model>> frozen_; // models that read every pack and do not train
};

} // namespace fvlm::train
