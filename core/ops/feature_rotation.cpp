#include "ops/feature_rotation.h"

#include "ops/pointwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/concat.h>

namespace fvlm::ops {
namespace {

// Of each head of `x`, [rows, heads, head_dim], its second half with this sign, then its first half with the other.
at::Tensor turned(const at::Tensor& x, bool negates_second) {
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return negates_second ? at::concat({-halves[1], halves[0]}, -1) : at::concat({halves[1], -halves[0]}, -1);
}

} // namespace

FeatureAngles feature_angles(const at::Tensor& positions, const at::Tensor& frequencies, double factor,
                             at::ScalarType type) {
  at::Tensor angles;
  if (positions.dim() == 1) {
    angles = positions.to(at::kDouble).unsqueeze(1) * frequencies.sum(0);
  } else {
    angles = positions[0].to(at::kDouble).unsqueeze(1) * frequencies[0];
    for (int64_t axis = 1; axis < frequencies.size(0); ++axis)
      angles.addcmul_(positions[axis].to(at::kDouble).unsqueeze(1), frequencies[axis]);
  }
  const at::ScalarType own = type == at::kDouble ? at::kDouble : at::kFloat;
  return {angles.cos().mul_(factor).to(own).unsqueeze(1), angles.sin().mul_(factor).to(own).unsqueeze(1)};
}

Value rotate_features(Tape& tape, const Value& x, int64_t heads, int64_t head_dim, const FeatureAngles& angles) {
  const Gradient::Columns columns{0, heads * head_dim};
  const at::Tensor of_heads = widened(x.data.narrow(1, 0, columns.count).unflatten(1, {heads, head_dim}));
  const at::Tensor rotated = of_heads * angles.cos + turned(of_heads, true) * angles.sin;
  Value y(rotated.to(x.data.scalar_type()).flatten(1), tape.records(x));
  if (!y.requires_grad()) return y;
  x.gradient->withdraw_bias_gradient();
  x.gradient->announce(columns);
  tape.push([=, shape = x.data.sizes().vec(), options = x.data.options(), in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const at::Tensor d = widened(d_y).view({-1, heads, head_dim});
    const at::Tensor d_x = (d * angles.cos + turned(d * angles.sin, false)).flatten(1);
    const auto [into, overwrites] = in->destination(columns, shape, options);
    if (overwrites)
      into.copy_(d_x);
    else
      into.add_(d_x.to(into.scalar_type()));
  });
  return y;
}

} // namespace fvlm::ops
