// Linears: with a residual, with a shared weight gradient, GELU's MLP, padded columns, folded LayerScale.
#include "base/log.h"
#include "ops/dry_run.h"
#include "ops/operations.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

namespace fvlm::ops {
namespace {

// Parameters' gradients are on no critical path: a GPU computes them on the side stream, next to the rest of the
// backward pass. Weight::begin_side_stream_write() has to come before.
void run_on_side_stream(const std::function<void()>& work, int64_t bytes) {
  if (device::Runtime* gpu = device::runtime())
    gpu->run_on_side_stream(work, bytes);
  else
    work();
}

// Whether a weight's gradient is a large product that is bound by reading its operands. Beside others of that kind it
// takes as much longer as they do, and what its operands hold is needed for longer.
bool is_bound_by_reads(const at::Tensor& d_y, const at::Tensor& x) {
  constexpr int64_t large = int64_t{64} << 20, flops_per_byte = 400; // what products and memory of current GPUs manage
  const int64_t out = d_y.size(1), in = x.size(1), bytes = static_cast<int64_t>(d_y.nbytes() + x.nbytes());
  return bytes >= large && 2 * d_y.size(0) * in * out < flops_per_byte * bytes;
}

} // namespace

// Makes the current stream wait for the side stream when the backward pass is through.
void Operations::join_side_stream_after_backward(Tape& tape) {
  struct JoinWhenDestroyed {
    device::Runtime& gpu;
    explicit JoinWhenDestroyed(device::Runtime& runtime) : gpu(runtime) {}
    JoinWhenDestroyed(const JoinWhenDestroyed&) = delete;
    JoinWhenDestroyed& operator=(const JoinWhenDestroyed&) = delete;
    ~JoinWhenDestroyed() { gpu.join_side_stream(); }
  };
  if (device::Runtime* gpu = device::runtime())
    tape.hold_until_done([gpu] { return std::make_shared<JoinWhenDestroyed>(*gpu); });
}

void Operations::weight_gradient(const Linear& op, const at::Tensor& d_y, const at::Tensor& x, const Weight& weight,
                                 const Weight& bias) {
  if (!weight.requires_grad()) {
    if (bias.requires_grad()) bias.add_gradient(d_y.sum(0, false, bias.gradient().scalar_type()));
    return;
  }
  const std::array parameters{weight, bias};
  const bool in_order = is_bound_by_reads(d_y, x),
             accumulate = in_order ? Weight::begin_write(parameters) : Weight::begin_side_stream_write(parameters);
  const auto compute = [&op, d_y, x, weight, bias, accumulate] {
    op.weight_gradient(d_y, x, bias.requires_grad(), {weight.gradient(), bias.gradient()}, accumulate);
  };
  if (in_order)
    compute();
  else
    run_on_side_stream(compute, static_cast<int64_t>(d_y.nbytes() + x.nbytes()));
}

const Linear* Operations::extended_linear_for(const at::Tensor& x, const Layer& layer, uint32_t options,
                                              double epsilon) {
  const Linear& plain = linear_for(x, layer, 0, gradient_type(layer));
  fvlm_kernels_query query = plain.query();
  query.options |= options;
  query.epsilon = static_cast<float>(epsilon);
  if (options & FVLM_WITH_SWIGLU) query.width /= 2;
  return extended(plain, query);
}

Value Operations::linear_of_norm(Tape& tape, const Value& x, const Weight& norm_weight, double epsilon,
                                 const Layer& layer, bool gated) {
  const auto& [weight, bias] = layer;
  const uint32_t options = FVLM_WITH_NORM | option_if(FVLM_WITH_SWIGLU, gated);
  if (!tape.records(x, norm_weight, weight, bias) && !weight.is_adapted() && !observe_linear_) {
    const auto of_norm = [&] { return norm_weight.defined() ? norm_weight.value() : ones(x.data.size(1)); };
    if (weight.is_quantized()) {
      const uint32_t quantized = FVLM_QUANTIZED_NORM | option_if(FVLM_QUANTIZED_SWIGLU, gated);
      if (const Quantizer* op = extended_quantizer_for(weight, x.data.size(0), quantized, epsilon))
        return Value(op->linear(weight.packed(), x.data, bias.value(), {}, {{}, of_norm()}));
    } else if (const Linear* op = extended_linear_for(x.data, layer, options, epsilon)) {
      return Value(op->forward(x.data, weight.value(), bias.value(), {}, {}, {}, of_norm()).y);
    }
  }
  const Value y = linear(tape, rmsnorm(tape, x, {}, norm_weight, epsilon).y, layer, {});
  return gated ? swiglu(tape, y) : y;
}

// Parameters' gradients have the type of their arena, those of folded weights are float32 or wider.
at::ScalarType Operations::gradient_type(const Layer& layer) const {
  for (const Weight* each : {&layer.weight, &layer.bias})
    if (each->requires_grad()) return each->gradient().scalar_type();
  return options_.gradient_dtype;
}

const Linear& Operations::linear_for(const at::Tensor& x, const Layer& layer, uint32_t options,
                                     at::ScalarType gradient_type) {
  options |= option_if(FVLM_WITH_BIAS, layer.bias.defined()) |
             option_if(FVLM_STRIDED_WEIGHT, !layer.weight.is_quantized() && layer.weight.is_strided()) |
             option_if(FVLM_BFLOAT16_WEIGHT, options_.dtype == at::kFloat && layer.weight.is_bfloat16());
  auto query = kernels_query(FVLM_OP_LINEAR, options, x.size(0), layer.weight.value().size(0));
  query.inner = layer.weight.value().size(1);
  query.gradient_dtype = abi_dtype(gradient_type);
  return kernel<Linear>(query);
}

Value Operations::quantized_linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual) {
  const bool records = tape.records(x, layer.bias, residual);
  if (residual.defined() && !records)
    if (const Quantizer* with_residual =
            extended_quantizer_for(layer.weight, x.data.size(0), FVLM_QUANTIZED_RESIDUAL, 0))
      return Value(with_residual->linear(layer.weight.packed(), x.data, layer.bias.value(), {}, {residual.data, {}}));
  const Quantizer& op = quantizer_for(layer.weight, x.data.size(0));
  const at::Tensor product = op.linear(layer.weight.packed(), x.data, layer.bias.value());
  Value y(residual.defined() ? residual.data + product : product, records);
  if (!records) return y;
  tape.push([&op, in = x.gradient, layer, residual = residual.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (layer.bias.requires_grad()) layer.bias.add_gradient(d_y.sum(0, false, layer.bias.gradient().scalar_type()));
    if (in) in->add(op.linear_gradient(layer.weight.packed(), d_y));
    if (residual) residual->add(d_y);
  });
  return y;
}

Value Operations::linear(Tape& tape, const Value& x, const Weight& weight, const Weight& bias,
                         const SharedGradientPass& pass) {
  if (!weight.is_plain()) return linear(tape, x, {weight, bias}, {});
  if (!tape.records(x, weight, bias) || !pass.gradient_of(weight, x.data.size(0)))
    return linear(tape, x, {weight, bias}, {}, nullptr, weight.allows_fp8());
  const Linear& plain = linear_for(x.data, {weight, bias}, FVLM_WITH_BACKWARD, gradient_type({weight, bias}));
  const Linear& op = fp8_or_plain(plain, weight);
  Value y(op.forward(x.data, weight.value(), bias.value()).y, true);
  join_side_stream_after_backward(tape);
  push_gradients(tape, op, plain, x, {weight, bias}, y, pass, nullptr);
  return y;
}

// The compensated rows are computed a second time, by a kernel for few rows that also returns the rounding error.
at::Tensor Operations::compensated_linear(const Linear& op, const at::Tensor& x, const Layer& layer,
                                          const at::Tensor& residual, Compensation* compensation) {
  const at::Tensor &weight = layer.weight.value(), &bias = layer.bias.value();
  at::Tensor sum = op.forward(x, weight, bias, {}, residual).y;
  if (!compensation || c10::elementSize(options_.dtype) != 2) return sum;
  const auto compensated = [step = compensation->step](const at::Tensor& rows) {
    return rows.unflatten(0, {-1, step}).select(1, step - 1);
  };
  const at::Tensor few_rows = compensated(x);
  const Linear& op_of_few = linear_for(few_rows, layer, FVLM_WITH_RESIDUAL | FVLM_COMPENSATED, gradient_type(layer));
  const Linear::Output again =
      op_of_few.forward(few_rows, weight, bias, {compensated(sum), {}, {}}, compensated(residual), compensation->value);
  compensation->value = again.compensation;
  return sum;
}

// A device's plugin may do without fp8, and the reference would be slower there than the plugin in 16 bits. On a CPU
// fp8 is there to be tried out, by whoever computes it.
const Linear& Operations::fp8_or_plain(const Linear& plain, const Weight& weight, int64_t pairs) {
  if (!options_.fp8 || !weight.allows_fp8()) return plain;
  fvlm_kernels_query query = plain.query();
  query.options =
      (query.options & ~uint32_t{FVLM_WITH_COLUMN_SUMS}) | FVLM_WITH_FP8 | option_if(FVLM_FP8_PAIRS, pairs > 0);
  query.pairs = pairs;
  if (real_device(options_.device).is_cpu()) return kernel<Linear>(query);
  if (const Linear* in_fp8 = extended(plain, query)) return *in_fp8;
  did_without_fp8_ = true;
  const std::string& reason = kernels_.at(key_of(query)).refused.begin()->second;
  if (const auto line = fmt::format("'{}' computes no linears in fp8 here ({}); falling back to bf16",
                                    plain.backend().plugin(), reason);
      registry_.is_first_occurrence(line))
    log_warning("{}", line);
  return plain;
}

at::Tensor Operations::gradients_in_fp8(const Linear& op, const at::Tensor& d_y, const at::Tensor& x,
                                        const Weight& weight, bool requires_input) {
  const bool accumulate = Weight::begin_write(weight);
  const at::Tensor d_x =
      requires_input ? at::empty({d_y.size(0), weight.value().size(1)}, d_y.options()) : at::Tensor();
  op.both_gradients(d_y, x, weight.value(), weight.gradient(), d_x, accumulate);
  return d_x;
}

const Linear* Operations::fp8_gradients(const Linear& op, const Linear& plain) {
  if (&op == &plain) return nullptr;
  fvlm_kernels_query query = op.query();
  query.options = FVLM_WITH_BACKWARD | FVLM_WITH_FP8 | FVLM_BOTH_GRADIENTS;
  return real_device(options_.device).is_cpu() ? &kernel<Linear>(query) : extended(plain, query);
}

Value Operations::linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual,
                         Compensation* compensation) {
  return linear(tape, x, layer, residual, compensation, false);
}

Value Operations::linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual,
                         Compensation* compensation, bool allows_fp8) {
  const auto& [weight, bias] = layer;
  if (observe_linear_) observe_linear_(weight, x.data);
  if (!weight.is_plain()) {
    if (compensation) compensation->value.reset();
    return weight.is_adapted() ? adapted_linear(tape, x, layer, residual) : quantized_linear(tape, x, layer, residual);
  }
  const bool records = tape.records(x, weight, bias, residual);
  const uint32_t options = option_if(FVLM_WITH_BACKWARD, records) | option_if(FVLM_WITH_RESIDUAL, residual.defined());
  const Linear& plain = linear_for(x.data, layer, options, gradient_type(layer));
  const Linear& op = allows_fp8 ? fp8_or_plain(plain, weight) : plain;
  Value y(compensated_linear(op, x.data, layer, residual.data, compensation), records);
  if (!records) return y;
  join_side_stream_after_backward(tape);
  if (bias.requires_grad()) y.gradient->request_bias_gradient(bias);
  const Linear* both = x.gradient && weight.requires_grad() ? fp8_gradients(op, plain) : nullptr;
  tape.push([this, &op, &plain, both, input = weight.requires_grad() ? x.saved() : SavedTensor<at::Tensor>(),
             in = x.gradient, layer, residual = residual.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const Weight bias_here = out->has_bias_gradient() ? Weight() : layer.bias;
    if (both) {
      if (bias_here.requires_grad()) bias_here.add_gradient(d_y.sum(0, false, bias_here.gradient().scalar_type()));
      in->add(gradients_in_fp8(*both, d_y, input.get(), layer.weight, true));
    } else {
      weight_gradient(plain, d_y, input.get(), layer.weight, bias_here);
      if (in) in->add(op.input_gradient(d_y, layer.weight.value()));
    }
    if (residual) residual->add(d_y);
  });
  return y;
}

// The weight's gradient is computed in the backward step of pass 0, which is the last of the two.
void Operations::push_shared_weight_gradient(Tape& tape, const Linear& plain, const at::Tensor& x, const Layer& layer,
                                             const Value& y, const std::shared_ptr<SharedWeightGradient>& shared,
                                             size_t pass, InputGradient input_gradient) {
  auto query = plain.query();
  query.rows = shared->rows();
  const Linear& op_of_both = kernel<Linear>(query);
  shared->set_input(pass, x);
  y.gradient->set_destination([shared, pass] { return shared->output_gradient(pass); });
  tape.push([this, &op_of_both, shared, pass, layer, out = y.gradient, input_gradient = std::move(input_gradient)] {
    const at::Tensor d_y = out->take();
    shared->set_output_gradient(pass, d_y);
    if (pass == 0)
      if (const auto [all_x, all_d_y] = shared->take_operands(); all_d_y.defined())
        weight_gradient(op_of_both, all_d_y, all_x, layer.weight, layer.bias);
    if (d_y.defined()) input_gradient(d_y);
  });
}

Value Operations::gelu_mlp(Tape& tape, const Value& x, const Layer& up, const Layer& down, const Value& residual,
                           Compensation* compensation, Gelu form) {
  if (!up.weight.is_plain() || !down.weight.is_plain() || observe_linear_)
    return linear(tape, gelu(tape, linear(tape, x, up, {}), form), down, residual, compensation);
  const bool records = tape.records(x, up.weight, up.bias, down.weight, down.bias, residual);
  const uint32_t options = option_if(FVLM_WITH_BACKWARD, records) | form_option(form),
                 down_options = options | option_if(FVLM_WITH_RESIDUAL, residual.defined());
  const Linear& op_up = linear_for(x.data, up, options | FVLM_WITH_GELU, gradient_type(up));
  const Linear::Output hidden = op_up.forward(x.data, up.weight.value(), up.bias.value());
  const Linear& op_down = linear_for(hidden.y, down, down_options, gradient_type(down));
  // Its column sums are the gradient of the other linear's bias, which may have another type.
  const Linear& op_down_input_gradient = linear_for(hidden.y, down, down_options, gradient_type(up));
  Value inner(hidden.y), y(compensated_linear(op_down, hidden.y, down, residual.data, compensation), records);
  if (!records) return y;
  if (tape.recomputes_cheap_outputs()) {
    const auto& gelu =
        kernel<BiasGelu>(kernels_query(FVLM_OP_BIAS_GELU, form_option(form), x.data.size(0), hidden.y.size(1)));
    tape.set_recompute(inner,
                       [&gelu, pre_activation = hidden.pre_activation] { return gelu.forward(pre_activation, {}); });
  }
  if (down.bias.requires_grad()) y.gradient->request_bias_gradient(down.bias);
  join_side_stream_after_backward(tape);
  tape.push([this, &op_up, &op_down, &op_down_input_gradient, in = x.gradient, input = x.saved(), up, down,
             inner = inner.saved(), pre_activation = hidden.pre_activation, residual = residual.gradient,
             out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (residual) residual->add(d_y);
    weight_gradient(op_down, d_y, down.weight.requires_grad() ? inner.get() : at::Tensor(), down.weight,
                    out->has_bias_gradient() ? Weight() : down.bias);
    if (!in && !up.weight.requires_grad() && !up.bias.requires_grad()) return;
    const bool fuses_bias = op_down_input_gradient.gives_column_sums() && up.bias.requires_grad(),
               accumulate = fuses_bias && Weight::begin_write(up.bias);
    const at::Tensor d_inner = op_down_input_gradient.input_gradient(
        d_y, down.weight.value(), pre_activation, {}, fuses_bias ? up.bias.gradient() : at::Tensor(), accumulate);
    weight_gradient(op_up, d_inner, up.weight.requires_grad() ? input.get() : at::Tensor(), up.weight,
                    fuses_bias ? Weight() : up.bias);
    if (in) in->add(op_up.input_gradient(d_inner, up.weight.value()));
  });
  return y;
}

int64_t Operations::padded(int64_t columns) const {
  if (real_device(options_.device).is_cpu()) return columns;
  const int64_t multiple = 16 / static_cast<int64_t>(c10::elementSize(options_.dtype));
  return (columns + multiple - 1) / multiple * multiple;
}

Weight Operations::padded(Tape& tape, const Weight& weight, int64_t all_columns) {
  const int64_t rows = weight.value().size(0), columns = weight.value().size(1);
  if (all_columns == columns) return weight;
  auto parameter = std::make_shared<Parameter>();
  parameter->value = at::zeros({rows, all_columns}, weight.value().options());
  parameter->value.narrow(1, 0, columns).copy_(weight.value());
  if (tape.records(weight)) parameter->gradient = at::empty({rows, all_columns}, weight.gradient().options());
  const Weight padded(std::move(parameter));
  if (!padded.requires_grad()) return padded;
  join_side_stream_after_backward(tape);
  tape.push([weight, padded, columns] {
    if (!padded.has_gradient()) return;
    const bool accumulate = Weight::begin_side_stream_write(std::array{weight});
    run_on_side_stream(
        [weight, padded, columns, accumulate] {
          const at::Tensor gradient = padded.gradient().narrow(1, 0, columns);
          accumulate ? weight.gradient().add_(gradient) : weight.gradient().copy_(gradient);
        },
        static_cast<int64_t>(padded.gradient().nbytes()));
  });
  return padded;
}

// The parameters of several layers as one strided view each.
struct Operations::FoldedStack {
  FoldRowScale::Parameters values, gradients;

  // False where the layers are not equally spaced in memory, or only some of them require a gradient.
  bool stack(std::span<const LayerWithScale> layers) {
    const auto stack = [layers](const Weight& (*of)(const LayerWithScale&), at::Tensor& value, at::Tensor& gradient) {
      std::vector<at::Tensor> all_values, all_gradients;
      for (const LayerWithScale& each : layers) {
        all_values.push_back(of(each).value());
        all_gradients.push_back(of(each).gradient());
      }
      value = strided_stack(all_values);
      gradient = strided_stack(all_gradients);
      const bool any_requires_gradient =
          std::any_of(all_gradients.begin(), all_gradients.end(), [](const at::Tensor& t) { return t.defined(); });
      return value.defined() && gradient.defined() == any_requires_gradient;
    };
    return stack([](const LayerWithScale& each) -> const Weight& { return each.scale; }, values.scale,
                 gradients.scale) &&
           stack([](const LayerWithScale& each) -> const Weight& { return each.layer.weight; }, values.linears.weight,
                 gradients.linears.weight) &&
           stack([](const LayerWithScale& each) -> const Weight& { return each.layer.bias; }, values.linears.bias,
                 gradients.linears.bias);
  }
};

// One call for as many layers as are equally spaced in memory: usually a single one for all layers of a vision tower.
std::vector<Operations::Layer> Operations::fold_scale(Tape& tape, std::span<const LayerWithScale> layers) {
  std::vector<Layer> all;
  while (!layers.empty()) {
    size_t count = layers.size();
    FoldedStack stack;
    while (!stack.stack(layers.first(count))) --count;
    for (Layer& each : fold_scale(tape, layers.first(count), stack)) all.push_back(std::move(each));
    layers = layers.subspan(count);
  }
  return all;
}

std::vector<Operations::Layer> Operations::fold_scale(Tape& tape, std::span<const LayerWithScale> layers,
                                                      const FoldedStack& stack) {
  const bool scale = stack.gradients.scale.defined(), weight = scale || stack.gradients.linears.weight.defined(),
             bias = scale || stack.gradients.linears.bias.defined(), records = tape.records(weight || bias);
  for (const LayerWithScale& each : layers) (void)tape.records(each.scale, each.layer.weight, each.layer.bias);
  auto query = kernels_query(FVLM_OP_FOLD_ROW_SCALE, option_if(FVLM_WITH_BACKWARD, records), stack.values.scale.size(0),
                             stack.values.scale.size(1));
  query.inner = stack.values.linears.weight.size(2);
  const FoldRowScale& op = kernel<FoldRowScale>(query);
  const FoldRowScale::Linears values = op.forward(stack.values);
  const auto wide = tensor_options().dtype(options_.dtype == at::kDouble ? at::kDouble : at::kFloat);
  const auto allocate = [&](bool is_required, const at::Tensor& value) {
    return records && is_required ? at::empty(value.sizes(), wide) : at::Tensor();
  };
  const FoldRowScale::Linears gradients{allocate(weight, values.weight), allocate(bias, values.bias)};
  std::vector<Layer> folded;
  for (int64_t i = 0; i < query.rows; ++i) {
    const auto part = [i](const at::Tensor& value, const at::Tensor& gradient) {
      auto parameter = std::make_shared<Parameter>();
      parameter->value = value[i];
      if (gradient.defined()) parameter->gradient = gradient[i];
      return Weight(std::move(parameter));
    };
    folded.push_back({part(values.weight, gradients.weight), part(values.bias, gradients.bias)});
  }
  if (!records) return folded;
  join_side_stream_after_backward(tape);
  tape.push([&op, stack, gradients, folded, layers = std::vector(layers.begin(), layers.end())] {
    std::vector<Weight> from, to;
    for (const Layer& each : folded) from.insert(from.end(), {each.weight, each.bias});
    for (const LayerWithScale& each : layers) to.insert(to.end(), {each.layer.weight, each.layer.bias, each.scale});
    if (std::none_of(from.begin(), from.end(), [](const Weight& each) { return each.has_gradient(); })) return;
    for (const Weight& each : from)
      if (each.requires_grad() && !each.has_gradient()) each.gradient().zero_();
    const bool accumulate = Weight::begin_side_stream_write(to);
    run_on_side_stream(
        [&op, stack, gradients, accumulate] { op.backward(stack.values, gradients, stack.gradients, accumulate); },
        static_cast<int64_t>(stack.values.linears.weight.nbytes()));
  });
  return folded;
}

} // namespace fvlm::ops
