// Calibration: what the inputs of each linear are like, from the activations of samples.
#pragma once
#include "model/model.h"
#include "plugin/registry.h"
#include "recipe/plan.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>

namespace fvlm::quantize {

// The means over all inputs x [cols] of a linear, float32 on the CPU.
struct InputMoments {
  at::Tensor squares;  // [cols]
  at::Tensor products; // x^T x [cols, cols]; undefined for more columns than max_moment_columns
};
constexpr int64_t max_moment_columns = 4096;

// By the weight's name in the model directory.
using Calibration = std::map<std::string, InputMoments>;

// Runs the first `samples` training samples of a stage of the recipe through the model: of the one that has trained it,
// or, where that has pairs of texts, of the last one before it without; of the last such stage for a model of no stage
// of this recipe. Throws Error(recipe) where there is none.
using CalibrationProgress = std::function<void(int64_t done, int64_t all)>;
Calibration calibrate(const plan::Plan& plan, const std::string& trained, int64_t samples, model::Model& model,
                      ops::Operations& ops, Registry& registry, const CalibrationProgress& progress);

} // namespace fvlm::quantize
