#include "model/connector/byte_latents/calibration.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>

namespace fvlm::model {
namespace {

constexpr double min_rms = 1e-6;

at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

} // namespace

Value gated(Tape& tape, const Value& x, const Value& other, const Value& gate) {
  const auto type = x.data.scalar_type();
  const at::Tensor share = wide(gate.data).sigmoid();
  Value y((wide(other.data) + share * (wide(x.data) - wide(other.data))).to(type), tape.records(x, other, gate));
  if (!y.requires_grad()) return y;
  tape.push([share, type, of_x = x.data, of_other = other.data, d_x = x.gradient, d_other = other.gradient,
             d_gate = gate.gradient, out = y.gradient] {
    const at::Tensor d = out->take();
    if (!d.defined()) return;
    const at::Tensor d_y = wide(d);
    if (d_x) d_x->add((d_y * share).to(type));
    if (d_other) d_other->add((d_y * (1 - share)).to(type));
    if (d_gate) d_gate->add((d_y * (wide(of_x) - wide(of_other)) * share * (1 - share)).to(type));
  });
  return y;
}

Value modulated(Tape& tape, const Value& x, const Value& scale, const Value& shift) {
  const auto type = x.data.scalar_type();
  const at::Tensor share = wide(scale.data).sigmoid();
  Value y((wide(x.data) * share + wide(shift.data)).to(type), tape.records(x, scale, shift));
  if (!y.requires_grad()) return y;
  tape.push([share, type, of_x = x.data, d_x = x.gradient, d_scale = scale.gradient, d_shift = shift.gradient,
             out = y.gradient] {
    const at::Tensor d = out->take();
    if (!d.defined()) return;
    const at::Tensor d_y = wide(d);
    if (d_x) d_x->add((d_y * share).to(type));
    if (d_scale) d_scale->add((d_y * wide(of_x) * share * (1 - share)).to(type));
    if (d_shift) d_shift->add(d);
  });
  return y;
}

Value colored(Tape& tape, const Value& x, const ops::Weight& gamma, const ops::Weight& beta) {
  const auto type = x.data.scalar_type();
  const auto width = static_cast<double>(x.data.size(1));
  const at::Tensor centered = wide(x.data) - wide(x.data).mean(1, true);
  const at::Tensor deviation = (centered.square().sum(1, true) / (width - 1)).sqrt().clamp_min(min_rms);
  const at::Tensor standard = centered / deviation;
  Value y((standard * wide(gamma.value()) + wide(beta.value())).to(type), tape.records(x, gamma, beta));
  if (!y.requires_grad()) return y;
  tape.push([standard, deviation, width, type, gamma, beta, in = x.gradient, out = y.gradient] {
    const at::Tensor d = out->take();
    if (!d.defined()) return;
    const at::Tensor d_y = wide(d), d_standard = d_y * wide(gamma.value());
    if (gamma.requires_grad()) gamma.add_gradient((d_y * standard).sum(0));
    if (beta.requires_grad()) beta.add_gradient(d_y.sum(0));
    if (!in) return;
    const at::Tensor along = (d_standard * standard).sum(1, true) / (width - 1);
    in->add(((d_standard - d_standard.mean(1, true) - standard * along) / deviation).to(type));
  });
  return y;
}

Value calibrated(Tape& tape, const Value& x, int64_t frames, const at::Tensor& rms) {
  const auto type = x.data.scalar_type();
  const auto sizes = x.data.sizes().vec();
  const at::Tensor rows = wide(x.data).view({frames, -1}), own = rows.square().mean(1, true).sqrt();
  const at::Tensor factor = rms.to(rows.scalar_type()) / own.clamp_min(min_rms);
  Value y((rows * factor).view(sizes).to(type), tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([rows, own, factor, type, sizes, in = x.gradient, out = y.gradient] {
    const at::Tensor d = out->take();
    if (!d.defined()) return;
    const at::Tensor d_y = wide(d).view(rows.sizes());
    const at::Tensor along = (d_y * rows).mean(1, true) / own.square().clamp_min(min_rms * min_rms);
    in->add((factor * (d_y - rows * along * own.ge(min_rms))).view(sizes).to(type));
  });
  return y;
}

at::Tensor EmbeddingRms::value() const {
  if (known_.defined()) return known_;
  const ops::Weight embedding = decoder_.embedding();
  const at::Tensor& table = embedding.value();
  const auto type = table.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor rms = at::linalg_vector_norm(table, 2, {}, false, type) *
                   (decoder_.token_scale() / std::sqrt(static_cast<double>(table.numel())));
  if (!embedding.requires_grad()) known_ = rms;
  return rms;
}

} // namespace fvlm::model
