// The operations between attentions, and the linears.
#include "ops/operations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace fvlm::ops {
namespace {

constexpr uint32_t with(uint32_t option, bool wanted) {
  return wanted ? option : 0;
}

// Nobody waits for the gradients of parameters, which Weight::claim_aside() claims: a GPU computes them beside what
// follows.
void beside(const std::function<void()>& work, int64_t bytes) {
  if (device::Runtime* gpu = device::runtime())
    gpu->beside(work, bytes);
  else
    work();
}

// What the tape's steps compute aside is there when they are through.
void join_at_end(Tape& tape) {
  struct Joining {
    device::Runtime& gpu;
    explicit Joining(device::Runtime& runtime) : gpu(runtime) {}
    Joining(const Joining&) = delete;
    Joining& operator=(const Joining&) = delete;
    ~Joining() { gpu.join(); }
  };
  if (device::Runtime* gpu = device::runtime()) tape.keep([gpu] { return std::make_shared<Joining>(*gpu); });
}

} // namespace

void Operations::weight_gradient(const Linear& op, const at::Tensor& d_y, const at::Tensor& x, const Weight& weight,
                                 const Weight& bias) {
  if (!weight.trains()) {
    if (bias.trains()) bias.add_gradient(d_y.sum(0, false, bias.gradient().scalar_type()));
    return;
  }
  const bool adds = Weight::claim_aside(std::array{weight, bias});
  beside(
      [&op, d_y, x, weight, bias, adds] {
        op.weight_gradient(d_y, x, bias.trains(), {weight.gradient(), bias.gradient()}, adds);
      },
      static_cast<int64_t>(d_y.nbytes() + x.nbytes()));
}

// Those of parameters have the arena's type, those of scaled ones a wide type of their own.
at::ScalarType Operations::gradient_type(const Layer& layer) const {
  for (const Weight* each : {&layer.weight, &layer.bias})
    if (each->trains()) return each->gradient().scalar_type();
  return options_.gradient_dtype;
}

const Linear& Operations::linear_of(const at::Tensor& x, const Layer& layer, uint32_t options,
                                    at::ScalarType gradient_type) {
  auto query = kernels_query(FVLM_OP_LINEAR, options | with(FVLM_WITH_BIAS, layer.bias.defined()), x.size(0),
                             layer.weight.value().size(0));
  query.inner = layer.weight.value().size(1);
  query.gradient_dtype = abi_dtype(gradient_type);
  return kernel<Linear>(query);
}

Value Operations::linear(Tape& tape, const Value& x, const Weight& weight, const Weight& bias, const JointPass& pass) {
  const auto joint = tape.records(x, weight, bias) ? pass.of(weight, x.data.size(0)) : nullptr;
  if (!joint) return linear(tape, x, {weight, bias}, {});
  const Linear& op = linear_of(x.data, {weight, bias}, FVLM_WITH_BACKWARD, gradient_type({weight, bias}));
  Value y(op.forward(x.data, weight.value(), bias.value()).y, true);
  join_at_end(tape);
  push_joint(tape, op, x, weight, bias, y, joint, pass.index());
  return y;
}

// The rows that carry what they lose along are multiplied once more, by a product that is made for few.
at::Tensor Operations::product(const Linear& op, const at::Tensor& x, const Layer& layer, const at::Tensor& residual,
                               Carried* carried) {
  const at::Tensor &weight = layer.weight.value(), &bias = layer.bias.value();
  at::Tensor sum = op.forward(x, weight, bias, {}, residual).y;
  if (!carried || c10::elementSize(options_.dtype) != 2) return sum;
  const auto few = [step = carried->step](const at::Tensor& rows) {
    return rows.unflatten(0, {-1, step}).select(1, step - 1);
  };
  const at::Tensor own = few(x);
  const Linear& of_few = linear_of(own, layer, FVLM_WITH_RESIDUAL | FVLM_WITH_REST, gradient_type(layer));
  carried->rest = of_few.forward(own, weight, bias, {few(sum), {}, {}}, few(residual), carried->rest).rest;
  return sum;
}

Value Operations::linear(Tape& tape, const Value& x, const Layer& layer, const Value& residual, Carried* carried) {
  const auto& [weight, bias] = layer;
  const bool records = tape.records(x, weight, bias, residual);
  const uint32_t options = with(FVLM_WITH_BACKWARD, records) | with(FVLM_WITH_RESIDUAL, residual.defined());
  const Linear& op = linear_of(x.data, layer, options, gradient_type(layer));
  Value y(product(op, x.data, layer, residual.data, carried), records);
  if (!records) return y;
  join_at_end(tape);
  if (bias.trains()) y.gradient->ask_sums(bias);
  tape.push([this, &op, input = weight.trains() ? x.kept() : Kept<at::Tensor>(), in = x.gradient, layer,
             residual = residual.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    weight_gradient(op, d_y, input.get(), layer.weight, out->has_sums() ? Weight() : layer.bias);
    if (in) in->add(op.input_gradient(d_y, layer.weight.value()));
    if (residual) residual->add(d_y);
  });
  return y;
}

// The weight's gradient is computed when the pass that went forward first comes back, which is the last to do so.
void Operations::push_joint(Tape& tape, const Linear& op, const Value& x, const Weight& weight, const Weight& bias,
                            const Value& y, const std::shared_ptr<JointRows>& joint, size_t pass) {
  auto query = op.query();
  query.rows = joint->rows();
  const Linear& both = kernel<Linear>(query);
  joint->take_input(pass, x.data);
  y.gradient->place([joint, pass] { return joint->gradient(pass); });
  tape.push([this, &op, &both, joint, pass, in = x.gradient, weight, bias, out = y.gradient] {
    const at::Tensor d_y = out->take();
    joint->take_gradient(pass, d_y);
    if (pass == 0)
      if (const auto [rows, gradient] = joint->take(); gradient.defined())
        weight_gradient(both, gradient, rows, weight, bias);
    if (in && d_y.defined()) in->add(op.input_gradient(d_y, weight.value()));
  });
}

Value Operations::gelu_mlp(Tape& tape, const Value& x, const Layer& up, const Layer& down, const Value& residual,
                           Carried* carried) {
  const bool records = tape.records(x, up.weight, up.bias, down.weight, down.bias, residual);
  const uint32_t options = with(FVLM_WITH_BACKWARD, records),
                 of_second = options | with(FVLM_WITH_RESIDUAL, residual.defined());
  const Linear& first = linear_of(x.data, up, options | FVLM_WITH_GELU, gradient_type(up));
  const Linear::Output made = first.forward(x.data, up.weight.value(), up.bias.value());
  const Linear& second = linear_of(made.y, down, of_second, gradient_type(down));
  const Linear& back = linear_of(made.y, down, of_second, gradient_type(up)); // what it sums is the first one's
  Value inner(made.y), y(product(second, made.y, down, residual.data, carried), records);
  if (!records) return y;
  if (tape.is_lean()) {
    const auto& gelu = kernel<BiasGelu>(kernels_query(FVLM_OP_BIAS_GELU, 0, x.data.size(0), made.y.size(1)));
    tape.make_again(inner, [&gelu, sum = made.pre_activation] { return gelu.forward(sum, {}); });
  }
  if (down.bias.trains()) y.gradient->ask_sums(down.bias);
  join_at_end(tape);
  tape.push([this, &first, &second, &back, in = x.gradient, input = x.kept(), up, down, inner = inner.kept(),
             sum = made.pre_activation, residual = residual.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (residual) residual->add(d_y);
    weight_gradient(second, d_y, down.weight.trains() ? inner.get() : at::Tensor(), down.weight,
                    out->has_sums() ? Weight() : down.bias);
    if (!in && !up.weight.trains() && !up.bias.trains()) return;
    const bool sums = back.gives_sums() && up.bias.trains(), adds = sums && Weight::claim(up.bias);
    const at::Tensor d_inner =
        back.input_gradient(d_y, down.weight.value(), sum, {}, sums ? up.bias.gradient() : at::Tensor(), adds);
    weight_gradient(first, d_inner, up.weight.trains() ? input.get() : at::Tensor(), up.weight,
                    sums ? Weight() : up.bias);
    if (in) in->add(first.input_gradient(d_inner, up.weight.value()));
  });
  return y;
}

Operations::Normed Operations::norm(Tape& tape, const Value& x, const Value& residual, const Weight& weight,
                                    const Weight& bias, double epsilon, int32_t op_code, const at::Tensor& into,
                                    at::Tensor* rest) {
  const bool records = tape.records(x, residual, weight, bias);
  const bool has_residual = residual.defined();
  const bool keeps_rest = rest && has_residual && c10::elementSize(options_.dtype) == 2;
  auto query = kernels_query(op_code,
                             with(FVLM_WITH_RESIDUAL, has_residual) | with(FVLM_WITH_REST, keeps_rest) |
                                 with(FVLM_WITH_BACKWARD, records),
                             x.data.size(0), x.data.size(1));
  query.epsilon = static_cast<float>(epsilon);
  const Norm& op = kernel<Norm>(query);
  Norm::Output output = op.forward(x.data, residual.data, weight.value(), bias.value(), {into, {}, {}, {}},
                                   keeps_rest ? *rest : at::Tensor());
  if (keeps_rest) *rest = std::exchange(output.rest, {});
  const at::Tensor s = has_residual ? output.sum : x.data;
  Normed normed{Value(output.y, records), has_residual ? Value(output.sum, records) : x};
  if (!records) return normed;
  output.y.reset();
  if (tape.is_lean()) {
    auto plain = query;
    plain.options = 0;
    tape.make_again(normed.y, [&again = kernel<Norm>(plain), s, weight, bias] {
      return again.forward(s, {}, weight.value(), bias.value()).y;
    });
  }
  tape.push([this, &op, s, output, x = x.gradient, residual = residual.gradient, weight, bias, y = normed.y.gradient,
             sum = has_residual ? normed.sum.gradient : nullptr] {
    const at::Tensor d_y = y->take();
    // Without a residual what came to x by other ways is added on the way.
    const at::Tensor d_sum = sum ? sum->take() : x && d_y.defined() ? x->take() : at::Tensor();
    if (!d_y.defined() && !d_sum.defined()) return;
    at::Tensor d_s = d_sum;
    const Weight* within = nullptr;
    if (d_y.defined()) {
      within = x && op.gives_sums() ? x->asks_sums(options_.gradient_dtype) : nullptr;
      const Weight inner_bias = within ? *within : Weight();
      const bool adds = Weight::claim(std::array{weight, bias, inner_bias});
      d_s = op.backward(s, weight.value(), output, d_y, d_sum, {weight.trains(), bias.trains()},
                        {x ? x->memory(s) : at::Tensor(), weight.gradient(), bias.gradient(), inner_bias.gradient()},
                        adds)
                .x;
    }
    if (residual) residual->add(d_s);
    if (within)
      x->add_with_sums(std::move(d_s));
    else if (x)
      x->add(std::move(d_s));
  });
  return normed;
}

Operations::Normed Operations::rmsnorm(Tape& tape, const Value& x, const Value& residual, const Weight& weight,
                                       double epsilon, const at::Tensor& into, at::Tensor* rest) {
  return norm(tape, x, residual, weight, {}, epsilon, FVLM_OP_RMSNORM, into, rest);
}

Operations::Normed Operations::layernorm(Tape& tape, const Value& x, const Value& residual, const Weight& weight,
                                         const Weight& bias, double epsilon, at::Tensor* rest) {
  return norm(tape, x, residual, weight, bias, epsilon, FVLM_OP_LAYERNORM, {}, rest);
}

Value Operations::layernorm(Tape& tape, const Value& x, const Weight& weight, const Weight& bias, double epsilon) {
  return norm(tape, x, {}, weight, bias, epsilon, FVLM_OP_LAYERNORM).y;
}

Value Operations::columns(Tape& tape, const Value& x, int64_t first, int64_t count) {
  Value y(x.data.narrow(1, first, count), tape.records(x));
  if (!y.wants_gradient()) return y;
  x.gradient->ask_no_sums();
  tape.push([this, first, count, shape = x.data.sizes().vec(), options = x.data.options(), in = x.gradient,
             out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) add(d_y, in->whole(shape, options).narrow(1, first, count));
  });
  return y;
}

// LibTorch reads rows that lie apart an element at a time: 1.6 TB/s on an H100, where a kernel made for rows has 2.6.
void Operations::add(const at::Tensor& rows, const at::Tensor& to) {
  if (options_.device.is_cpu()) {
    to.add_(rows);
    return;
  }
  at::Tensor& ones = ones_[rows.size(1)];
  if (!ones.defined()) ones = at::ones({rows.size(1)}, tensor_options());
  kernel<LayerScale>(kernels_query(FVLM_OP_LAYERSCALE_RESIDUAL, 0, rows.size(0), rows.size(1)))
      .forward(rows, ones, to, to);
}

Value Operations::swiglu(Tape& tape, const Value& gate_up, const at::Tensor& into) {
  const int64_t width = gate_up.data.size(1) / 2;
  const bool records = tape.records(gate_up);
  const SwiGlu& op =
      kernel<SwiGlu>(kernels_query(FVLM_OP_SWIGLU, with(FVLM_WITH_BACKWARD, records), gate_up.data.size(0), width));
  const auto half = [width](const at::Tensor& both, int64_t which) { return both.narrow(1, which * width, width); };
  Value y(op.forward(half(gate_up.data, 0), half(gate_up.data, 1), into), records);
  if (!records) return y;
  tape.make_again(y, [&op, half, both = gate_up.data] { return op.forward(half(both, 0), half(both, 1)); });
  tape.push([&op, half, gate_up, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    at::Tensor d = gate_up.gradient->memory(gate_up.data);
    op.backward(half(gate_up.data, 0), half(gate_up.data, 1), d_y, {half(d, 0), half(d, 1)});
    gate_up.gradient->add(std::move(d));
  });
  return y;
}

Value Operations::layerscale(Tape& tape, const Value& x, const Weight& scale, const Value& residual) {
  const bool records = tape.records(x, residual, scale);
  const LayerScale& op = kernel<LayerScale>(
      kernels_query(FVLM_OP_LAYERSCALE_RESIDUAL, with(FVLM_WITH_BACKWARD, records), x.data.size(0), x.data.size(1)));
  Value y(op.forward(x.data, scale.value(), residual.data), records);
  if (!records) return y;
  tape.push([this, &op, x, residual = residual.gradient, scale, out = y.gradient] {
    at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (x.wants_gradient() || scale.trains()) {
      const Weight* within =
          x.wants_gradient() && op.gives_sums() ? x.gradient->asks_sums(options_.gradient_dtype) : nullptr;
      const Weight bias = within ? *within : Weight();
      const bool adds = Weight::claim(scale, bias);
      at::Tensor d_x =
          op.backward(x.data, scale.value(), d_y, scale.trains(), {{}, scale.gradient(), bias.gradient()}, adds).x;
      if (within)
        x.gradient->add_with_sums(std::move(d_x));
      else if (x.wants_gradient())
        x.gradient->add(std::move(d_x));
    }
    if (residual) residual->add(std::move(d_y));
  });
  return y;
}

struct Operations::Stack {
  ScaledRows::Parameters values, gradients;

  // False where they do not lie evenly apart, or do not all train alike.
  bool take(std::span<const ScaledLayer> layers) {
    const auto take = [layers](const Weight& (*of)(const ScaledLayer&), at::Tensor& value, at::Tensor& gradient) {
      std::vector<at::Tensor> all, of_all;
      for (const ScaledLayer& each : layers) {
        all.push_back(of(each).value());
        of_all.push_back(of(each).gradient());
      }
      value = stacked(all);
      gradient = stacked(of_all);
      const bool any_trains =
          std::any_of(of_all.begin(), of_all.end(), [](const at::Tensor& t) { return t.defined(); });
      return value.defined() && gradient.defined() == any_trains;
    };
    return take([](const ScaledLayer& each) -> const Weight& { return each.scale; }, values.scale, gradients.scale) &&
           take([](const ScaledLayer& each) -> const Weight& { return each.layer.weight; }, values.linears.weight,
                gradients.linears.weight) &&
           take([](const ScaledLayer& each) -> const Weight& { return each.layer.bias; }, values.linears.bias,
                gradients.linears.bias);
  }
};

int64_t Operations::widened(int64_t columns) const {
  if (options_.device.is_cpu()) return columns;
  const int64_t at_once = 16 / static_cast<int64_t>(c10::elementSize(options_.dtype));
  return (columns + at_once - 1) / at_once * at_once;
}

Weight Operations::widened(Tape& tape, const Weight& weight) {
  const int64_t rows = weight.value().size(0), own = weight.value().size(1), all = widened(own);
  if (all == own) return weight;
  auto parameter = std::make_shared<Parameter>();
  parameter->value = at::zeros({rows, all}, weight.value().options());
  parameter->value.narrow(1, 0, own).copy_(weight.value());
  if (tape.records(weight)) parameter->gradient = at::empty({rows, all}, weight.gradient().options());
  const Weight wide(std::move(parameter));
  if (!wide.trains()) return wide;
  join_at_end(tape);
  tape.push([this, weight, wide, own] {
    if (!wide.has_gradient()) return;
    const bool adds = Weight::claim_aside(std::array{weight});
    beside(
        [weight, wide, own, adds] {
          const at::Tensor gradient = wide.gradient().narrow(1, 0, own);
          adds ? weight.gradient().add_(gradient) : weight.gradient().copy_(gradient);
        },
        static_cast<int64_t>(wide.gradient().nbytes()));
  });
  return wide;
}

// As few calls as they lie evenly apart in memory: one for the layers of a tower.
std::vector<Operations::Layer> Operations::scaled(Tape& tape, std::span<const ScaledLayer> layers) {
  std::vector<Layer> all;
  while (!layers.empty()) {
    size_t count = layers.size();
    Stack stack;
    while (!stack.take(layers.first(count))) --count;
    for (Layer& each : scaled(tape, layers.first(count), stack)) all.push_back(std::move(each));
    layers = layers.subspan(count);
  }
  return all;
}

std::vector<Operations::Layer> Operations::scaled(Tape& tape, std::span<const ScaledLayer> layers, const Stack& stack) {
  const bool scale = stack.gradients.scale.defined(), weight = scale || stack.gradients.linears.weight.defined(),
             bias = scale || stack.gradients.linears.bias.defined(), records = tape.records(weight || bias);
  auto query = kernels_query(FVLM_OP_SCALED_ROWS, with(FVLM_WITH_BACKWARD, records), stack.values.scale.size(0),
                             stack.values.scale.size(1));
  query.inner = stack.values.linears.weight.size(2);
  const ScaledRows& op = kernel<ScaledRows>(query);
  const ScaledRows::Linears values = op.forward(stack.values);
  const auto wide = tensor_options().dtype(options_.dtype == at::kDouble ? at::kDouble : at::kFloat);
  const auto room = [&](bool wanted, const at::Tensor& value) {
    return records && wanted ? at::empty(value.sizes(), wide) : at::Tensor();
  };
  const ScaledRows::Linears gradients{room(weight, values.weight), room(bias, values.bias)};
  std::vector<Layer> made;
  for (int64_t i = 0; i < query.rows; ++i) {
    const auto part = [i](const at::Tensor& value, const at::Tensor& gradient) {
      auto parameter = std::make_shared<Parameter>();
      parameter->value = value[i];
      if (gradient.defined()) parameter->gradient = gradient[i];
      return Weight(std::move(parameter));
    };
    made.push_back({part(values.weight, gradients.weight), part(values.bias, gradients.bias)});
  }
  if (!records) return made;
  join_at_end(tape);
  tape.push([this, &op, stack, gradients, made, layers = std::vector(layers.begin(), layers.end())] {
    std::vector<Weight> from, to;
    for (const Layer& each : made) from.insert(from.end(), {each.weight, each.bias});
    for (const ScaledLayer& each : layers) to.insert(to.end(), {each.layer.weight, each.layer.bias, each.scale});
    if (std::none_of(from.begin(), from.end(), [](const Weight& each) { return each.has_gradient(); })) return;
    for (const Weight& each : from)
      if (each.trains() && !each.has_gradient()) each.gradient().zero_();
    const bool adds = Weight::claim_aside(to);
    beside([&op, stack, gradients, adds] { op.backward(stack.values, gradients, stack.gradients, adds); },
           static_cast<int64_t>(stack.values.linears.weight.nbytes()));
  });
  return made;
}

Value Operations::rotate(Tape& tape, const Value& x, int64_t heads, int64_t head_dim, const Rotary& rotary,
                         const at::Tensor& positions) {
  auto query = kernels_query(FVLM_OP_ROPE, with(FVLM_WITH_BACKWARD, tape.records(x)), x.data.size(0), heads * head_dim);
  query.heads = static_cast<int32_t>(heads);
  query.head_dim = static_cast<int32_t>(head_dim);
  query.rotary_dim = static_cast<int32_t>(rotary.dimensions);
  query.rope_theta = static_cast<float>(rotary.theta);
  const Rope& op = kernel<Rope>(query);
  const auto turn = [&op, heads, head_dim, positions](const at::Tensor& rows, bool inverse) {
    const at::Tensor view = rows.narrow(1, 0, heads * head_dim).unflatten(1, {heads, head_dim});
    op.apply(view, positions, inverse, view);
  };
  turn(x.data, false);
  if (!tape.records(x)) return x;
  Value y(x.data, true);
  tape.push([turn, in = x.gradient, out = y.gradient] {
    if (out->empty()) return;
    at::Tensor d = out->take_own();
    turn(d, true);
    in->add(std::move(d));
  });
  return y;
}

} // namespace fvlm::ops
