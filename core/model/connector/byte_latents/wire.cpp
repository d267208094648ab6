#include "model/connector/byte_latents/wire.h"

#include "model/connector/byte_latents/settings.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

namespace fvlm::model {

at::Tensor over_wire(const at::Tensor& latents, int64_t frames, std::string_view mode) {
  const auto type = latents.scalar_type();
  const int64_t bits = connector::wire_bits(mode), group = connector::wire_group;
  if (bits == 0) return latents;
  if (bits == 16) return latents.to(at::kHalf).to(type);
  const double largest = static_cast<double>((int64_t{1} << (bits - 1)) - 1);
  const at::Tensor flat = latents.to(at::kFloat).reshape({frames, -1});
  const int64_t values = flat.size(1), padding = (group - values % group) % group;
  const at::Tensor groups = at::constant_pad_nd(flat, {0, padding}).view({frames, -1, group});
  at::Tensor scale = (groups.abs().amax(-1, true) / largest).to(at::kHalf).to(at::kFloat);
  scale = at::where(scale.eq(0), at::ones_like(scale), scale);
  const at::Tensor rounded = (groups / scale).round().clamp(-largest, largest) * scale;
  return rounded.view({frames, -1}).narrow(1, 0, values).reshape(latents.sizes()).to(type);
}

} // namespace fvlm::model
