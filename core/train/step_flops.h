// The floating-point operations that the samples of a step stand for, without padding and recomputed activations.
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
  // All but the optimization outlive it.
  StepFlops(const plan::Plan& plan, const plan::Stage& stage, const model::Model& policy,
            const Optimization& optimization, const objective::FrozenModels& frozen);
  // `encoded_frames`: those that the encoder read of these samples, see BuiltPass.
  double of(std::span<const std::shared_ptr<const Sample>> samples, int64_t encoded_frames) const;

 private:
  double of_decoder(size_t decoder, std::span<const std::shared_ptr<const Sample>> samples,
                    int64_t encoded_frames) const;

  const plan::Plan& plan_;
  const plan::Stage& stage_;
  const model::Model& policy_;
  std::vector<model::TrainedParts> trained_; // by decoder
  // Models that read every pack and do not train; those that read the texts of teachers with their own prompts; and
  // those whose output head alone works.
  std::vector<const model::Model*> frozen_, teachers_, heads_;
};

} // namespace fvlm::train
