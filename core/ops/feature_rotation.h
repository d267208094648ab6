// Rotary positions whose angles may differ between the two features of a pair, as in HunyuanOCR: each feature x of a
// head becomes x cos a -+ y sin a, where y is the other feature of its pair and a the angle of x. They are ATen's and
// need no plugin.
#pragma once
#include "ops/tape.h"

namespace fvlm::ops {

struct FeatureAngles {
  at::Tensor cos, sin; // float32 [rows, 1, head_dim], or float64; undefined: nothing is rotated
};

// `positions`: [rows], the same on all axes, or [axes, rows]. `frequencies`: float64 [axes, head_dim], which axis
// rotates a feature by how many radians, and 0 for all other axes. `factor`: of what is rotated.
FeatureAngles feature_angles(const at::Tensor& positions, const at::Tensor& frequencies, double factor,
                             at::ScalarType type);

// The leading `heads` of each row of x, rotated: [rows, heads * head_dim].
Value rotate_features(Tape& tape, const Value& x, int64_t heads, int64_t head_dim, const FeatureAngles& angles);

} // namespace fvlm::ops
