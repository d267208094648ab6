// Norms, rotary embedding and the elementwise operations between linears and attentions.
#include "base/error.h"
#include "ops/dry_run.h"
#include "ops/operations.h"

#include <ATen/ops/ones.h>

namespace fvlm::ops {

Operations::NormOutput Operations::norm(Tape& tape, const Value& x, const Value& residual, const Weight& weight,
                                        const Weight& bias, double epsilon, int32_t op_code, const at::Tensor& into,
                                        at::Tensor* compensation) {
  const bool records = tape.records(x, residual, weight, bias);
  const bool has_residual = residual.defined();
  const bool compensates = compensation && has_residual && c10::elementSize(options_.dtype) == 2;
  auto query = kernels_query(op_code,
                             option_if(FVLM_WITH_RESIDUAL, has_residual) | option_if(FVLM_COMPENSATED, compensates) |
                                 option_if(FVLM_WITH_BACKWARD, records),
                             x.data.size(0), x.data.size(1));
  query.epsilon = static_cast<float>(epsilon);
  const Norm& op = kernel<Norm>(query);
  Norm::Output output = op.forward(x.data, residual.data, weight.value(), bias.value(), {into, {}, {}, {}},
                                   compensates ? *compensation : at::Tensor());
  if (compensates) *compensation = std::exchange(output.compensation, {});
  const at::Tensor s = has_residual ? output.sum : x.data;
  NormOutput normed{Value(output.y, records), has_residual ? Value(output.sum, records) : x};
  if (!records) return normed;
  output.y.reset();
  if (tape.recomputes_cheap_outputs()) {
    auto plain = query;
    plain.options = 0;
    tape.set_recompute(normed.y, [&op = kernel<Norm>(plain), s, weight, bias] {
      return op.forward(s, {}, weight.value(), bias.value()).y;
    });
  }
  tape.push([this, &op, s, output, x = x.gradient, residual = residual.gradient, weight, bias, y = normed.y.gradient,
             sum = has_residual ? normed.sum.gradient : nullptr] {
    const at::Tensor d_y = y->take();
    // Without a residual, the kernel adds what other operations contributed to x's gradient so far.
    const at::Tensor d_sum = sum ? sum->take() : x && d_y.defined() ? x->take() : at::Tensor();
    if (!d_y.defined() && !d_sum.defined()) return;
    at::Tensor d_s = d_sum;
    const Weight* fused_bias = nullptr;
    if (d_y.defined()) {
      fused_bias = x && op.gives_column_sums() ? x->requested_bias(options_.gradient_dtype) : nullptr;
      const Weight input_bias = fused_bias ? *fused_bias : Weight();
      const bool accumulate = Weight::begin_write(std::array{weight, bias, input_bias});
      d_s = op.backward(
                  s, weight.value(), output, d_y, d_sum, {weight.requires_grad(), bias.requires_grad()},
                  {x ? x->allocate_like(s) : at::Tensor(), weight.gradient(), bias.gradient(), input_bias.gradient()},
                  accumulate)
                .x;
    }
    if (residual) residual->add(d_s);
    if (fused_bias)
      x->add_with_bias_gradient(std::move(d_s));
    else if (x)
      x->add(std::move(d_s));
  });
  return normed;
}

Operations::NormOutput Operations::rmsnorm(Tape& tape, const Value& x, const Value& residual, const Weight& weight,
                                           double epsilon, const at::Tensor& into, at::Tensor* compensation) {
  if (!weight.defined()) {
    auto frozen = std::make_shared<Parameter>();
    frozen->value = ones(x.data.size(1));
    return norm(tape, x, residual, Weight(std::move(frozen)), {}, epsilon, FVLM_OP_RMSNORM, into, compensation);
  }
  return norm(tape, x, residual, weight, {}, epsilon, FVLM_OP_RMSNORM, into, compensation);
}

Value Operations::rmsnorm_heads(Tape& tape, const Heads& heads, int64_t head_dim, const Weight& weight, double epsilon,
                                const Heads& gate) {
  const Value& of = heads.value;
  const Gradient::Columns columns{heads.column, heads.count * head_dim}, gate_columns{gate.column, columns.count};
  const bool is_gated = gate.value.data.defined(), records = tape.records(of, weight, gate.value);
  auto query = kernels_query(
      FVLM_OP_RMSNORM, FVLM_PER_HEAD | option_if(FVLM_WITH_GATE, is_gated) | option_if(FVLM_WITH_BACKWARD, records),
      of.data.size(0), columns.count);
  query.heads = static_cast<int32_t>(heads.count);
  query.head_dim = static_cast<int32_t>(head_dim);
  query.epsilon = static_cast<float>(epsilon);
  const Norm& op = kernel<Norm>(query);
  const auto of_heads = [](const at::Tensor& rows, const Gradient::Columns& read) {
    return rows.narrow(1, read.first, read.count);
  };
  const at::Tensor x = of_heads(of.data, columns), values = weight.defined() ? weight.value() : ones(head_dim),
                   gates = is_gated ? of_heads(gate.value.data, gate_columns) : at::Tensor();
  Norm::Output output = op.forward(x, {}, values, {}, {}, {}, gates);
  Value y(output.y, records);
  if (!records) return y;
  output.y.reset();
  for (const auto& [value, read] : {std::pair(&of, columns), {&gate.value, gate_columns}})
    if (value->requires_grad()) {
      value->gradient->withdraw_bias_gradient();
      value->gradient->announce(read);
    }
  // Where a gradient goes, and whether it is overwritten there; what is undefined is not required.
  struct Destination {
    std::shared_ptr<Gradient> gradient;
    Gradient::Columns columns;
    std::vector<int64_t> shape;

    std::pair<at::Tensor, bool> find(const at::TensorOptions& options) const {
      return gradient ? gradient->destination(columns, shape, options) : std::pair(at::Tensor(), false);
    }
  };
  const auto destination_of = [](const Value& value, const Gradient::Columns& read) {
    return value.requires_grad() ? Destination{value.gradient, read, value.data.sizes().vec()} : Destination{};
  };
  tape.push([this, &op, x, values, gates, output, weight, in = destination_of(of, columns),
             of_gate = destination_of(gate.value, gate_columns), out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const bool accumulate = Weight::begin_write(weight);
    const auto [total, overwrites] = in.find(x.options());
    const auto [gate_total, gate_overwrites] = of_gate.find(x.options());
    const Norm::Gradients d = op.backward(
        x, values, output, d_y, {}, {weight.requires_grad(), false},
        {overwrites ? total : at::Tensor(), weight.gradient(), {}, {}, gate_overwrites ? gate_total : at::Tensor()},
        accumulate, gates);
    if (total.defined() && !overwrites) add_strided(d.x, total);
    if (gate_total.defined() && !gate_overwrites) add_strided(d.gate, gate_total);
  });
  return y;
}

Operations::NormOutput Operations::layernorm(Tape& tape, const Value& x, const Value& residual, const Weight& weight,
                                             const Weight& bias, double epsilon, at::Tensor* compensation) {
  return norm(tape, x, residual, weight, bias, epsilon, FVLM_OP_LAYERNORM, {}, compensation);
}

Value Operations::layernorm(Tape& tape, const Value& x, const Weight& weight, const Weight& bias, double epsilon) {
  return norm(tape, x, {}, weight, bias, epsilon, FVLM_OP_LAYERNORM).y;
}

Value Operations::slice_columns(Tape& tape, const Value& x, int64_t first, int64_t count) {
  Value y(x.data.narrow(1, first, count), tape.records(x));
  if (!y.requires_grad()) return y;
  x.gradient->withdraw_bias_gradient();
  tape.push([this, first, count, shape = x.data.sizes().vec(), options = x.data.options(), in = x.gradient,
             out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) add_strided(d_y, in->accumulator(shape, options).narrow(1, first, count));
  });
  return y;
}

// to += rows, where the rows of `to` are strided. LibTorch reads such rows an element at a time, at 1.6 TB/s on an
// H100; a kernel for rows reaches 2.6.
void Operations::add_strided(const at::Tensor& rows, const at::Tensor& to) {
  if (real_device(options_.device).is_cpu()) {
    to.add_(rows);
    return;
  }
  kernel<LayerScale>(kernels_query(FVLM_OP_LAYERSCALE_RESIDUAL, 0, rows.size(0), rows.size(1)))
      .forward(rows, ones(rows.size(1)), to, to);
}

const at::Tensor& Operations::ones(int64_t length) {
  at::Tensor& ones = ones_[length];
  if (!ones.defined()) ones = at::ones({length}, tensor_options());
  return ones;
}

Value Operations::swiglu(Tape& tape, const Value& gate_up, const at::Tensor& into) {
  return gated(tape, gate_up, into, 0);
}

Value Operations::geglu(Tape& tape, const Value& gate_up) {
  return gated(tape, gate_up, {}, FVLM_GELU_TANH);
}

Value Operations::gated(Tape& tape, const Value& gate_up, const at::Tensor& into, uint32_t options) {
  const int64_t width = gate_up.data.size(1) / 2;
  const bool records = tape.records(gate_up);
  const SwiGlu& op = kernel<SwiGlu>(
      kernels_query(FVLM_OP_SWIGLU, options | option_if(FVLM_WITH_BACKWARD, records), gate_up.data.size(0), width));
  const auto half = [width](const at::Tensor& both, int64_t which) { return both.narrow(1, which * width, width); };
  Value y(op.forward(half(gate_up.data, 0), half(gate_up.data, 1), into), records);
  if (!records) return y;
  tape.set_recompute(y, [&op, half, both = gate_up.data] { return op.forward(half(both, 0), half(both, 1)); });
  const SwiGlu* const op_with_output = y.recompute ? with_options(op, FVLM_WITH_OUTPUT) : nullptr;
  if (op_with_output) y.gradient->offer_data();
  tape.push([&op, op_with_output, half, gate_up, out = y.gradient] {
    const auto data_work = out->take_data_work();
    const at::Tensor d_y = data_work.empty() ? out->take() : out->take_exclusive();
    if (!d_y.defined()) return;
    at::Tensor d = gate_up.gradient->allocate_over(gate_up.data);
    const SwiGlu& backward = data_work.empty() ? op : *op_with_output;
    const at::Tensor again = data_work.empty() ? at::Tensor() : d_y;
    backward.backward(half(gate_up.data, 0), half(gate_up.data, 1), d_y, {half(d, 0), half(d, 1)}, again);
    for (const Gradient::DataWork& work : data_work) work(again);
    gate_up.gradient->add(std::move(d));
  });
  return y;
}

Value Operations::geglu(Tape& tape, const Value& gate, const Value& up) {
  const bool records = tape.records(gate, up);
  const SwiGlu& op = kernel<SwiGlu>(kernels_query(
      FVLM_OP_SWIGLU, FVLM_GELU_TANH | option_if(FVLM_WITH_BACKWARD, records), gate.data.size(0), gate.data.size(1)));
  Value y(op.forward(gate.data, up.data), records);
  if (!records) return y;
  tape.push(
      [&op, gate = gate.saved(), up = up.saved(), of_gate = gate.gradient, of_up = up.gradient, out = y.gradient] {
        const at::Tensor d_y = out->take();
        if (!d_y.defined()) return;
        SwiGlu::Gradients d = op.backward(gate.get(), up.get(), d_y);
        if (of_gate) of_gate->add(std::move(d.gate));
        if (of_up) of_up->add(std::move(d.up));
      });
  return y;
}

const FewRowsExperts* Operations::few_rows_experts(const ExpertSizes& sizes, uint32_t options, double epsilon,
                                                   double scale) {
  auto query = kernels_query(FVLM_OP_EXPERTS, options, sizes.rows, sizes.width);
  query.inner = sizes.inner;
  query.experts = static_cast<int32_t>(sizes.experts);
  query.chosen = static_cast<int32_t>(sizes.chosen);
  query.epsilon = static_cast<float>(epsilon);
  query.router_scale = static_cast<float>(scale);
  const FewRowsExperts& op = kernel<FewRowsExperts>(query);
  return op.backend().instance().computes_with_aten() ? nullptr : &op;
}

Value Operations::gelu(Tape& tape, const Value& x, Gelu form) {
  const bool records = tape.records(x);
  const uint32_t options = option_if(FVLM_WITH_BACKWARD, records) | form_option(form);
  const BiasGelu& op = kernel<BiasGelu>(kernels_query(FVLM_OP_BIAS_GELU, options, x.data.size(0), x.data.size(1)));
  Value y(op.forward(x.data, {}), records);
  if (!records) return y;
  tape.set_recompute(y, [&op, x = x.data] { return op.forward(x, {}); });
  tape.push([&op, x, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) x.gradient->add(op.backward(x.data, {}, d_y, false).x);
  });
  return y;
}

Value Operations::layerscale(Tape& tape, const Value& x, const Weight& scale, const Value& residual) {
  const bool records = tape.records(x, residual, scale);
  const LayerScale& op = kernel<LayerScale>(kernels_query(
      FVLM_OP_LAYERSCALE_RESIDUAL, option_if(FVLM_WITH_BACKWARD, records), x.data.size(0), x.data.size(1)));
  Value y(op.forward(x.data, scale.value(), residual.data), records);
  if (!records) return y;
  tape.push([this, &op, x, residual = residual.gradient, scale, out = y.gradient] {
    at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (x.requires_grad() || scale.requires_grad()) {
      const Weight* fused_bias =
          x.requires_grad() && op.gives_column_sums() ? x.gradient->requested_bias(options_.gradient_dtype) : nullptr;
      const Weight bias = fused_bias ? *fused_bias : Weight();
      const bool accumulate = Weight::begin_write(scale, bias);
      at::Tensor d_x = op.backward(x.data, scale.value(), d_y, scale.requires_grad(),
                                   {{}, scale.gradient(), bias.gradient()}, accumulate)
                           .x;
      if (fused_bias)
        x.gradient->add_with_bias_gradient(std::move(d_x));
      else if (x.requires_grad())
        x.gradient->add(std::move(d_x));
    }
    if (residual) residual->add(std::move(d_y));
  });
  return y;
}

Value Operations::rotate(Tape& tape, const Value& x, int64_t heads, int64_t head_dim, const Rotary& rotary,
                         const at::Tensor& positions) {
  const bool has_axes = positions.dim() > 1;
  if (has_axes && (!rotary.axes.defined() || rotary.axes.size(0) > positions.size(0)))
    throw Error(ErrorKind::internal, "rows have positions on {} axes, and the rotary embedding has not as many",
                positions.size(0));
  auto query = kernels_query(FVLM_OP_ROPE,
                             option_if(FVLM_WITH_BACKWARD, tape.records(x) || rotary.reversed) |
                                 option_if(FVLM_WITH_FREQUENCIES, has_axes || rotary.frequencies.defined()),
                             x.data.size(0), heads * head_dim);
  query.heads = static_cast<int32_t>(heads);
  query.head_dim = static_cast<int32_t>(head_dim);
  query.rotary_dim = static_cast<int32_t>(rotary.dimensions);
  query.rope_theta = static_cast<float>(rotary.theta);
  const Rope& op = kernel<Rope>(query);
  const auto rotate = [&op, heads, head_dim, rotary, positions, has_axes](const at::Tensor& rows, bool inverse) {
    const at::Tensor view = rows.narrow(1, 0, heads * head_dim).unflatten(1, {heads, head_dim});
    const auto apply = [&](const at::Tensor& along, const at::Tensor& frequencies) {
      op.apply(view, along, inverse != rotary.reversed, view, frequencies);
    };
    if (!has_axes) return apply(positions, rotary.frequencies);
    // A rotation by 0 leaves a pair as it is to the last bit, so that these are one rotation.
    for (int64_t axis = 0; axis < rotary.axes.size(0); ++axis) apply(positions[axis], rotary.axes[axis]);
  };
  rotate(x.data, false);
  if (!tape.records(x)) return x;
  Value y(x.data, true);
  y.gradient->set_destination_of(*x.gradient);
  tape.push([rotate, in = x.gradient, out = y.gradient] {
    if (out->empty()) return;
    at::Tensor d = out->take_exclusive();
    rotate(d, true);
    in->add(std::move(d));
  });
  return y;
}

} // namespace fvlm::ops
