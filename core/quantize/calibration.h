// Calibration: how much each input feature of a linear weighs, from the activations of samples.
#pragma once
#include "model/model.h"
#include "plugin/registry.h"
#include "recipe/plan.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>

namespace fvlm::quantize {

// By the weight's name in the model directory: the mean square of each input feature, float32 [cols] on the CPU.
using Importance = std::map<std::string, at::Tensor>;

// Runs the first `samples` training samples of the recipe's first stage without pairs of texts through the model.
// Throws Error(recipe) where every stage has pairs.
using CalibrationProgress = std::function<void(int64_t done, int64_t all)>;
Importance calibrate(const plan::Plan& plan, int64_t samples, model::Model& model, ops::Operations& ops,
                     Registry& registry, const CalibrationProgress& progress);

} // namespace fvlm::quantize
