// Codes whose rounding errors make up for each other in a linear's output (GPTQ: Frantar et al., 2022).
#pragma once
#include "model/weights/packed_weight.h"

#include <ATen/core/Tensor.h>

namespace fvlm::quantize {

// The codes of a weight [rows, cols] in float32, as fvlm/quantizer.h lays them out, by the scales that a quantizer has
// found. One column is rounded after another, those with the largest inputs first, and what the others have to be then
// for the least error of the output is what they are rounded from. `moments`: the mean of x^T x over inputs x, float32
// [cols, cols].
at::Tensor codes_with_feedback(const at::Tensor& weight, const at::Tensor& scales, const at::Tensor& moments,
                               const PackedScheme& scheme);

} // namespace fvlm::quantize
