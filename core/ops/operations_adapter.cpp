// Linears whose frozen weight has low-rank adapters: two skinny products beside the frozen one, added in place.
#include "ops/adapter.h"
#include "ops/operations.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <memory>

namespace fvlm::ops {
namespace {

at::ScalarType wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// x y in the type of `like`, without rounding in between where the device can.
at::Tensor product(const at::Tensor& x, const at::Tensor& y, at::ScalarType type) {
  if (x.scalar_type() == type) return at::mm(x, y);
  if (x.is_cuda() && type == at::kFloat) return at::mm(x, y, type);
  return x.is_cpu() ? at::mm(x.to(type), y.to(type)) : at::mm(x, y).to(type);
}

// A step of a 32-bit mixing function (splitmix-like) in int64, whose products of numbers below 2^32 and 2^31 fit.
at::Tensor mixed(at::Tensor x) {
  constexpr int64_t mask = 0xffffffff;
  x = (x ^ (x.bitwise_right_shift(16))) * 0x45d9f3b & mask;
  x = (x ^ (x.bitwise_right_shift(16))) * 0x45d9f3b & mask;
  return x ^ (x.bitwise_right_shift(16));
}

} // namespace

at::Tensor dropout_mask(const at::Tensor& x, double p, const at::Tensor& seed, int64_t id) {
  const auto on = x.options().dtype(at::kLong);
  const at::Tensor rows = mixed((mixed((seed + id) & 0xffffffff) + at::arange(x.size(0), on)) & 0xffffffff);
  const at::Tensor numbers = mixed(rows.unsqueeze(1) ^ mixed(at::arange(x.size(1), on)).unsqueeze(0));
  return (numbers >= static_cast<int64_t>(p * 4294967296.0)).to(x.scalar_type()).mul_(1 / (1 - p));
}

// The adapters of a weight's parts. Their As lie next to each other, and one product reads them all.
struct Operations::AdaptedWeight {
  struct Part {
    const Adapter* adapter;
    int64_t row, rows; // of the weight
    int64_t rank_begin, rank;
    Weight b, magnitude;
  };
  std::vector<Part> parts;
  Weight a;

  explicit AdaptedWeight(const Weight& weight) {
    std::vector<Parameter*> all_a;
    int64_t row = 0, rank = 0;
    for (Parameter* part : weight.parts()) {
      const int64_t rows = part->value.size(0);
      if (const Adapter* adapter = part->adapter.get()) {
        const int64_t own = adapter->a->value.size(0);
        parts.push_back({adapter, row, rows, rank, own, Weight(*adapter->b),
                         adapter->magnitude ? Weight(*adapter->magnitude) : Weight()});
        all_a.push_back(adapter->a);
        rank += own;
      }
      row += rows;
    }
    a = Weight(std::move(all_a));
  }

  bool requires_grad() const { return a.requires_grad() || parts.front().b.requires_grad(); }
  bool is_dora() const { return first().magnitude != nullptr; }
  const Adapter& first() const { return *parts.front().adapter; }
};

// The frozen part of an adapted linear.
at::Tensor Operations::frozen_linear(const at::Tensor& x, const Layer& layer, const at::Tensor& residual,
                                     bool records) {
  if (layer.weight.is_quantized()) {
    const at::Tensor y = quantizer_for(layer.weight, x.size(0)).linear(layer.weight.packed(), x, layer.bias.value());
    return residual.defined() ? y + residual : y;
  }
  const uint32_t options = option_if(FVLM_WITH_BACKWARD, records) | option_if(FVLM_WITH_RESIDUAL, residual.defined());
  return linear_for(x, layer, options, options_.gradient_dtype)
      .forward(x, layer.weight.value(), layer.bias.value(), {}, residual)
      .y;
}

at::Tensor Operations::frozen_input_gradient(const at::Tensor& d_y, const Weight& weight) {
  if (weight.is_quantized())
    return quantizer_for(weight, d_y.size(0)).linear_gradient(weight.packed(), d_y.contiguous());
  auto query = kernels_query(FVLM_OP_LINEAR, FVLM_WITH_BACKWARD, d_y.size(0), weight.value().size(0));
  query.inner = weight.value().size(1);
  query.gradient_dtype = abi_dtype(options_.gradient_dtype);
  return kernel<Linear>(query).input_gradient(d_y.contiguous(), weight.value());
}

// m / n for DoRA's rows, ones for others: [out], float32 or wider. The squared norm of a row of W + s B A is
// |w|^2 + 2 s b (A w) + s^2 b (A A^T) b: products of rank columns, and no copy of W.
at::Tensor Operations::dora_factors(const Weight& weight, const AdaptedWeight& adapted,
                                    std::vector<at::Tensor>& norms) {
  const at::Tensor& all_a = adapted.a.value();
  const auto type = wide(all_a);
  const at::Tensor a_w = frozen_linear(all_a, {weight, {}}, {}, false); // [ranks, out]
  const at::Tensor factors = at::ones({weight.value().size(0)}, all_a.options().dtype(type));
  for (const auto& part : adapted.parts) {
    std::call_once(part.adapter->base_square_once,
                   [&] { part.adapter->base_square = squared_norms(weight).narrow(0, part.row, part.rows); });
    const at::Tensor a = all_a.narrow(0, part.rank_begin, part.rank).to(type), b = part.b.value().to(type);
    const at::Tensor cross = a_w.narrow(0, part.rank_begin, part.rank).narrow(1, part.row, part.rows).t().to(type);
    const double s = part.adapter->scale;
    const at::Tensor square =
        part.adapter->base_square + (b * cross).sum(1) * (2 * s) + (at::mm(b, at::mm(a, a.t())) * b).sum(1) * (s * s);
    norms.push_back(square.clamp_min(1e-30).sqrt());
    factors.narrow(0, part.row, part.rows).copy_(part.magnitude.value().to(type) / norms.back());
  }
  return factors;
}

at::Tensor Operations::squared_norms(const Weight& weight) {
  const at::Tensor values = weight.is_quantized() ? quantizer_for(weight, 0).unpack(weight.packed()) : weight.value();
  return at::linalg_vector_norm(values, 2, at::IntArrayRef{1}, false, wide(values)).square();
}

// What the backward pass of an adapted linear reads.
struct Operations::AdaptedPass {
  std::shared_ptr<const AdaptedWeight> adapted;
  Weight weight; // the frozen one
  const Linear* op_a;
  at::Tensor low;                // dropout(x) A^T
  at::Tensor factors, direction; // of DoRA: m / n, and what it scales
  std::vector<at::Tensor> norms; // n of each part
  bool drops;

  at::Tensor dropped(const at::Tensor& x) const { return drops ? x * mask(x) : x; }
  at::Tensor mask(const at::Tensor& x) const {
    const Adapter& first = adapted->first();
    return dropout_mask(x, first.dropout, first.dropout_seed, first.id);
  }
};

Value Operations::adapted_linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual) {
  AdaptedPass pass{.adapted = std::make_shared<const AdaptedWeight>(layer.weight), .weight = layer.weight};
  const AdaptedWeight& adapted = *pass.adapted;
  const bool records = tape.records(x, adapted, residual);
  for (const auto& part : adapted.parts) (void)tape.records(adapted.a, part.b, part.magnitude, layer.bias);
  pass.drops = adapted.first().dropout > 0 && tape.records();
  const bool is_dora = adapted.is_dora();
  at::Tensor y = is_dora ? frozen_linear(x.data, {layer.weight, {}}, {}, records)
                         : frozen_linear(x.data, layer, residual.data, records);
  const Layer of_a{adapted.a, {}};
  pass.op_a = &linear_for(x.data, of_a, option_if(FVLM_WITH_BACKWARD, records), gradient_type(of_a));
  pass.low = pass.op_a->forward(pass.dropped(x.data), adapted.a.value(), {}).y;
  for (const auto& part : adapted.parts)
    y.narrow(1, part.row, part.rows)
        .addmm_(pass.low.narrow(1, part.rank_begin, part.rank), part.b.value().t(), 1, part.adapter->scale);
  if (is_dora) {
    pass.factors = dora_factors(layer.weight, adapted, pass.norms);
    if (records) pass.direction = y;
    y = y * pass.factors.to(y.scalar_type());
    if (layer.bias.defined()) y.add_(layer.bias.value());
    if (residual.defined()) y.add_(residual.data);
  }
  Value out(y, records);
  if (!records) return out;
  join_side_stream_after_backward(tape);
  tape.push([this, pass = std::move(pass), bias = layer.bias,
             input = adapted.a.requires_grad() ? x.saved() : SavedTensor<at::Tensor>(), in = x.gradient,
             residual = residual.gradient, gradient = out.gradient] {
    const at::Tensor d_y = gradient->take();
    if (!d_y.defined()) return;
    if (bias.requires_grad()) bias.add_gradient(d_y.sum(0, false, bias.gradient().scalar_type()));
    const at::Tensor d_x = adapted_linear_gradient(pass, d_y, input.get(), in != nullptr);
    if (in) in->add(d_x);
    if (residual) residual->add(d_y);
  });
  return out;
}

// Writes the gradients of the adapters, and returns that of x where it is required.
at::Tensor Operations::adapted_linear_gradient(const AdaptedPass& pass, const at::Tensor& of_output,
                                               const at::Tensor& x, bool requires_input) {
  at::Tensor d_y = of_output;
  const AdaptedWeight& adapted = *pass.adapted;
  if (adapted.is_dora()) {
    for (size_t i = 0; i < adapted.parts.size(); ++i) {
      const auto& part = adapted.parts[i];
      if (!part.magnitude.requires_grad()) continue;
      const auto columns = [&](const at::Tensor& of) { return of.narrow(1, part.row, part.rows).to(wide(of)); };
      part.magnitude.add_gradient((columns(d_y) * columns(pass.direction)).sum(0) / pass.norms[i]);
    }
    d_y = d_y * pass.factors.to(d_y.scalar_type());
  }
  const at::Tensor d_low = at::empty_like(pass.low);
  for (const auto& part : adapted.parts) {
    const at::Tensor own = d_y.narrow(1, part.row, part.rows);
    d_low.narrow(1, part.rank_begin, part.rank).addmm_(own, part.b.value(), 0, part.adapter->scale);
    if (!part.b.requires_grad()) continue;
    const at::Tensor low = pass.low.narrow(1, part.rank_begin, part.rank);
    part.b.add_gradient(product(own.t(), low, part.b.gradient().scalar_type()).mul_(part.adapter->scale));
  }
  if (adapted.a.requires_grad()) weight_gradient(*pass.op_a, d_low, pass.dropped(x), adapted.a, {});
  if (!requires_input) return {};
  const at::Tensor d_x = frozen_input_gradient(d_y, pass.weight);
  if (pass.drops) return d_x.add_(at::mm(d_low, adapted.a.value()).mul_(pass.mask(d_x)));
  return d_x.addmm_(d_low, adapted.a.value());
}

} // namespace fvlm::ops
