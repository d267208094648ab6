// short_convolution and delta_rule, which carry a state from row to row of a segment.
#include "check/formulas.h"
#include "check/kernels.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace fvlm::check {

// A third of the rows, none, and the rest without two rows of padding.
std::vector<int> KernelCase::bounds() const {
  const int first = static_cast<int>(rows / 3), all = static_cast<int>(rows > 4 ? rows - 2 : rows);
  return {0, first, first, all};
}

namespace {

using at::Tensor;

// With states: in the second to last slot, in none, in the first. The last segment begins with zeros.
constexpr int slot_count = 5;

struct Segments {
  explicit Segments(const KernelCase& c) : bounds(c.bounds()) {}

  std::vector<int> bounds;
  std::vector<int> slots{slot_count - 2, 2, 0}, starts{0, 0, 1};
  size_t count() const { return slots.size(); }
  bool has_rows(size_t i) const { return bounds[i] < bounds[i + 1]; }

  // [rows, ...] from what each segment's rows make of those before: `make(first row, rows, state)` gives their results
  // and the state behind them. `states` are replaced.
  template <class Make>
  Tensor over(const KernelCase& c, Tensor& states, at::IntArrayRef state_sizes, const Tensor& like,
              const Make& make) const {
    std::vector<Tensor> parts;
    std::vector<Tensor> all = states.defined() ? states.unbind(0) : std::vector<Tensor>();
    for (size_t i = 0; i < count(); ++i) {
      if (!has_rows(i)) continue;
      const bool continues = states.defined() && starts[i] == 0;
      Tensor state = continues ? all[static_cast<size_t>(slots[i])] : at::zeros(state_sizes, like.options());
      parts.push_back(make(bounds[i], bounds[i + 1] - bounds[i], state));
      if (states.defined()) all[static_cast<size_t>(slots[i])] = state;
    }
    if (states.defined()) states = at::stack(all);
    parts.push_back(at::zeros({c.rows - bounds.back(), c.columns()}, like.options()));
    return at::concat(parts);
  }
};

// What both operations are called with besides their own operands.
struct Bound {
  Operand *cu_seqlens, *slots = nullptr, *starts = nullptr, *states = nullptr;

  Bound(Workbench& bench, const KernelCase& c, const Tensor& content) {
    const Segments segments(c);
    const auto input = [&](const char* name, const std::vector<int>& values) {
      const Tensor numbers = at::tensor(values, at::kInt);
      return &bench.input(name, numbers, Rows::contiguous, numbers);
    };
    cu_seqlens = input("cu_seqlens", segments.bounds);
    if (!c.states) return;
    slots = input("slots", segments.slots), starts = input("starts", segments.starts);
    states = &bench.updated("states", content);
  }
};

namespace convolution {

struct Numbers {
  Tensor x, weight, bias, states, d_y, held_weight, held_bias;
};

Numbers numbers_of(const KernelCase& c) {
  const auto some = [&](at::IntArrayRef shape, uint64_t seed) { return normal(shape, c.seed * 16 + seed, c.dtype); };
  return {some({c.rows, c.width}, 0),
          some({c.width, c.taps}, 1),
          c.bias ? some({c.width}, 2) : Tensor(),
          c.states ? some({slot_count, c.taps - 1, c.width}, 3) : Tensor(),
          some({c.rows, c.width}, 4),
          normal({c.width, c.taps}, c.seed * 16 + 5, c.gradient_dtype),
          normal({c.width}, c.seed * 16 + 6, c.gradient_dtype)};
}

struct Results {
  Tensor y, states, d_x, d_weight, d_bias;
};

Results formula(const KernelCase& c, const Numbers& n, at::ScalarType work) {
  const Tensor x = leaf(n.x, work), weight = leaf(n.weight, work),
               bias = leaf(c.bias ? n.bias : at::zeros({c.width}, c.dtype), work);
  Results out;
  if (c.states) out.states = n.states.to(work);
  const int64_t reach = c.taps - 1;
  out.y =
      Segments(c).over(c, out.states, {reach, c.width}, x.detach(), [&](int64_t first, int64_t rows, Tensor& state) {
        const Tensor all = at::concat({state, x.narrow(0, first, rows)});
        Tensor sum = bias.expand({rows, c.width});
        for (int64_t tap = 0; tap < c.taps; ++tap) sum = sum + all.narrow(0, tap, rows) * weight.select(1, tap);
        state = all.narrow(0, rows, reach).detach();
        return sum * at::sigmoid(sum);
      });
  if (c.backward) {
    const auto d = gradients({out.y}, {x, weight, bias}, {n.d_y});
    out.d_x = d[0], out.d_weight = d[1], out.d_bias = d[2];
  }
  out.y = out.y.detach();
  return out;
}

Expectation expect(const KernelCase& c) {
  const Numbers n = numbers_of(c);
  const Results exact = formula(c, n, at::kDouble), naive = formula(c, n, c.dtype);
  Expectation all{{"y", exact.y, naive.y, c.dtype}};
  if (c.states) all.push_back({"states", exact.states, naive.states, c.dtype});
  if (!c.backward) return all;
  all.push_back({"d_x", exact.d_x, naive.d_x, c.dtype});
  if (c.frozen) return all;
  all.push_back({"d_weight", accumulated(c, n.held_weight, exact.d_weight),
                 accumulated(c, n.held_weight, naive.d_weight), c.gradient_dtype});
  if (c.bias)
    all.push_back({"d_bias", accumulated(c, n.held_bias, exact.d_bias), accumulated(c, n.held_bias, naive.d_bias),
                   c.gradient_dtype});
  return all;
}

void run(Workbench& bench, const fvlm_kernels_v1& table, const KernelCase& c) {
  const Numbers n = numbers_of(c);
  Operand &x = bench.input("x", n.x), &weight = bench.input("weight", n.weight, Rows::contiguous);
  Operand* bias = c.bias ? &bench.input("bias", n.bias, Rows::contiguous) : nullptr;
  const Bound bound(bench, c, n.states);
  Operand& y = bench.output("y", n.x.sizes(), c.dtype);
  bench.call("forward", bench.required().forward_workspace, table.short_convolution_forward,
             fvlm_convolution_forward{0, x.abi(), weight.abi(), abi_of(bias), bound.cu_seqlens->abi(),
                                      abi_of(bound.slots), abi_of(bound.starts), abi_of(bound.states), y.abi()});
  if (!c.backward || !bench.can_continue()) return;
  Operand &d_y = bench.input("d_y", n.d_y), &d_x = bench.output("d_x", n.x.sizes(), c.dtype);
  Operand* d_weight = parameter_gradient(bench, c, "d_weight", n.held_weight);
  Operand* d_bias = c.bias ? parameter_gradient(bench, c, "d_bias", n.held_bias) : nullptr;
  bench.call("backward", bench.required().backward_workspace, table.short_convolution_backward,
             fvlm_convolution_backward{0, c.accumulate, x.abi(), weight.abi(), abi_of(bias), bound.cu_seqlens->abi(),
                                       d_y.abi(), d_x.abi(), abi_of(d_weight), abi_of(d_bias)});
}

} // namespace convolution

namespace delta_rule {

constexpr int64_t dim = KernelCase::state_dim;

struct Numbers {
  Tensor qkv, gates, log_decay, step_bias, states, d_y, held_decay, held_bias;
};

Numbers numbers_of(const KernelCase& c) {
  const auto some = [&](at::IntArrayRef shape, uint64_t seed) { return normal(shape, c.seed * 16 + seed, c.dtype); };
  const auto held = [&](uint64_t seed) { return normal({c.heads}, c.seed * 16 + seed, c.gradient_dtype); };
  const auto state_type = c.dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {some({c.rows, 2 * c.key_head_count() * dim + c.columns()}, 0),
          some({c.rows, 2 * c.heads}, 1),
          normal({c.heads}, c.seed * 16 + 2, c.dtype, 0.5),
          some({c.heads}, 3),
          c.states ? normal({slot_count, c.heads, dim, dim}, c.seed * 16 + 4, state_type) : Tensor(),
          some({c.rows, c.columns()}, 5),
          held(6),
          held(7)};
}

struct Results {
  Tensor y, states;
  std::vector<Tensor> d; // of qkv, gates, log_decay, step_bias
};

Tensor unit(const Tensor& rows) {
  return rows * at::rsqrt(rows.square().sum(-1, true) + 1e-6);
}

Results formula(const KernelCase& c, const Numbers& n, at::ScalarType work) {
  const Tensor qkv = leaf(n.qkv, work), gates = leaf(n.gates, work), log_decay = leaf(n.log_decay, work),
               step_bias = leaf(n.step_bias, work);
  const int64_t keys = c.key_head_count(), width = keys * dim, group = c.heads / keys;
  const auto heads = [&](int64_t first) { // [rows, heads, dim]
    const Tensor own = unit(qkv.narrow(1, first, width).view({c.rows, keys, 1, dim}));
    return own.expand({c.rows, keys, group, dim}).reshape({c.rows, c.heads, dim});
  };
  const Tensor q = heads(0) / std::sqrt(static_cast<double>(dim)), k = heads(width),
               v = qkv.narrow(1, 2 * width, c.columns()).view({c.rows, c.heads, dim});
  const Tensor rate = at::sigmoid(gates.narrow(1, 0, c.heads)),
               decay = at::exp(-at::exp(log_decay) * at::softplus(gates.narrow(1, c.heads, c.heads) + step_bias));
  Results out;
  if (c.states) out.states = n.states.to(work);
  out.y = Segments(c).over(c, out.states, {c.heads, dim, dim}, qkv.detach(),
                           [&](int64_t first, int64_t rows, Tensor& state) {
                             std::vector<Tensor> results;
                             for (int64_t row = first; row < first + rows; ++row) {
                               state = state * decay[row].view({c.heads, 1, 1});
                               const Tensor error = v[row] - (state * k[row].unsqueeze(2)).sum(1);
                               state = state + k[row].unsqueeze(2) * (rate[row].unsqueeze(1) * error).unsqueeze(1);
                               results.push_back((state * q[row].unsqueeze(2)).sum(1).flatten());
                             }
                             return at::stack(results);
                           });
  if (c.backward) out.d = gradients({out.y}, {qkv, gates, log_decay, step_bias}, {n.d_y});
  out.y = out.y.detach();
  if (c.states) out.states = out.states.detach();
  return out;
}

Expectation expect(const KernelCase& c) {
  const Numbers n = numbers_of(c);
  const Results exact = formula(c, n, at::kDouble), naive = formula(c, n, c.dtype);
  Expectation all{{"y", exact.y, naive.y, c.dtype}};
  if (c.states) all.push_back({"states", exact.states, naive.states, n.states.scalar_type()});
  if (!c.backward) return all;
  all.push_back({"d_qkv", exact.d[0], naive.d[0], c.dtype});
  all.push_back({"d_gates", exact.d[1], naive.d[1], c.dtype});
  if (c.frozen) return all;
  // Sums of what rows have of either sign.
  const double of_rows = c.rows > 0 ? exact.d[1].abs().sum(0).max().item<double>() : 0;
  const auto push = [&](const char* name, const Tensor& held, size_t which) {
    all.push_back({name, accumulated(c, held, exact.d[which]), accumulated(c, held, naive.d[which]), c.gradient_dtype,
                   of_rows, false, static_cast<double>(c.rows)});
  };
  push("d_log_decay", n.held_decay, 2);
  push("d_step_bias", n.held_bias, 3);
  return all;
}

void run(Workbench& bench, const fvlm_kernels_v1& table, const KernelCase& c) {
  const Numbers n = numbers_of(c);
  Operand &qkv = bench.input("qkv", n.qkv), &gates = bench.input("gates", n.gates);
  Operand& log_decay = bench.input("log_decay", n.log_decay, Rows::contiguous);
  Operand& step_bias = bench.input("step_bias", n.step_bias, Rows::contiguous);
  const Bound bound(bench, c, n.states);
  Operand& y = bench.output("y", {c.rows, c.columns()}, c.dtype);
  const auto saved = bench.saved("saved");
  fvlm_delta_rule_forward forward{0,
                                  qkv.abi(),
                                  gates.abi(),
                                  log_decay.abi(),
                                  step_bias.abi(),
                                  bound.cu_seqlens->abi(),
                                  abi_of(bound.slots),
                                  abi_of(bound.starts),
                                  abi_of(bound.states),
                                  y.abi(),
                                  {}};
  fvlm_delta_rule_backward backward{};
  for (size_t i = 0; i < saved.size(); ++i) forward.saved[i] = saved[i]->abi(), backward.saved[i] = saved[i]->abi();
  bench.call("forward", bench.required().forward_workspace, table.delta_rule_forward, forward);
  if (!c.backward || !bench.can_continue()) return;
  backward.accumulate = c.accumulate;
  backward.qkv = qkv.abi(), backward.gates = gates.abi(), backward.cu_seqlens = bound.cu_seqlens->abi();
  backward.log_decay = log_decay.abi(), backward.step_bias = step_bias.abi();
  backward.d_y = bench.input("d_y", n.d_y).abi();
  backward.d_qkv = bench.output("d_qkv", n.qkv.sizes(), c.dtype).abi();
  backward.d_gates = bench.output("d_gates", n.gates.sizes(), c.dtype).abi();
  backward.d_log_decay = abi_of(parameter_gradient(bench, c, "d_log_decay", n.held_decay));
  backward.d_step_bias = abi_of(parameter_gradient(bench, c, "d_step_bias", n.held_bias));
  bench.call("backward", bench.required().backward_workspace, table.delta_rule_backward, backward);
}

} // namespace delta_rule
} // namespace

const Kernel short_convolution_kernel{convolution::run, convolution::expect};
const Kernel delta_rule_kernel{delta_rule::run, delta_rule::expect};

} // namespace fvlm::check
