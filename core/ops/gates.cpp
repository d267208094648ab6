#include "ops/gates.h"

#include "ops/pointwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/zeros.h>

namespace fvlm::ops {

QueriesAndGates split_gates(Tape& tape, const Value& x, int64_t heads, int64_t head_dim) {
  const int64_t rows = x.data.size(0), both = 2 * heads * head_dim, others = x.data.size(1) - both;
  const auto turns = [=](const at::Tensor& all) { // [rows, heads, 2, head_dim]
    return all.narrow(1, 0, both).unflatten(1, {heads, 2, head_dim});
  };
  const bool requires_grad = tape.records(x);
  QueriesAndGates out{
      Value(at::concat({turns(x.data).select(2, 0).flatten(1), x.data.narrow(1, both, others)}, 1), requires_grad),
      Value(turns(x.data).select(2, 1).flatten(1), requires_grad)};
  if (!requires_grad) return out;
  tape.push(
      [=, options = x.data.options(), in = x.gradient, of_rows = out.rows.gradient, of_gates = out.gates.gradient] {
        const at::Tensor d_rows = of_rows->take(), d_gates = of_gates->take();
        if (!d_rows.defined() && !d_gates.defined()) return;
        at::Tensor d = at::zeros({rows, both + others}, options);
        if (d_rows.defined()) {
          turns(d).select(2, 0).copy_(d_rows.narrow(1, 0, heads * head_dim).view({rows, heads, head_dim}));
          d.narrow(1, both, others).copy_(d_rows.narrow(1, heads * head_dim, others));
        }
        if (d_gates.defined()) turns(d).select(2, 1).copy_(d_gates.view({rows, heads, head_dim}));
        in->add(std::move(d));
      });
  return out;
}

Value gated_by_sigmoid(Tape& tape, const Value& x, const Value& gates) {
  Value y(x.data * gates.data.sigmoid(), tape.records(x, gates));
  if (!y.requires_grad()) return y;
  tape.push([x = x.saved(), gates = gates.data, in = x.gradient, of_gates = gates.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const at::Tensor factor = gates.sigmoid();
    if (of_gates) of_gates->add(d_y * x.get() * factor * (1 - factor));
    if (in) in->add(d_y * factor);
  });
  return y;
}

Value rmsnorm_gated_by_silu(Tape& tape, const Value& x, const Weight& weight, double epsilon, const Value& gates,
                            int64_t column) {
  const int64_t width = x.data.size(1), dim = weight.value().size(0), heads = width / dim;
  const auto of_heads = [=](const at::Tensor& rows) { return widened(rows).unflatten(1, {heads, dim}); };
  const auto gate_rows = [=](const at::Tensor& all) { return of_heads(all.narrow(1, column, width)); };
  const auto factor = [=](const at::Tensor& rows) { return (rows.square().mean(-1, true) + epsilon).rsqrt_(); };
  const at::Tensor rows = of_heads(x.data), gate = gate_rows(gates.data);
  Value y((rows * factor(rows) * widened(weight.value()) * gate * gate.sigmoid()).flatten(1).to(x.data.scalar_type()),
          tape.records(x, gates, weight));
  if (!y.requires_grad()) return y;
  tape.push([=, saved = x.saved(), all = gates.data, in = x.gradient, of_gates = gates.gradient, out = y.gradient] {
    const at::Tensor taken = out->take();
    if (!taken.defined()) return;
    const at::Tensor d_y = of_heads(taken), rows = of_heads(saved.get()), gate = gate_rows(all);
    const at::Tensor scale = factor(rows), normal = rows * scale, sigmoid = gate.sigmoid(), silu = gate * sigmoid;
    const at::Tensor wide = widened(weight.value());
    if (weight.requires_grad()) weight.add_gradient((d_y * normal * silu).sum(at::IntArrayRef{0, 1}));
    if (of_gates) {
      const at::Tensor d_gate = (d_y * normal * wide * (sigmoid * (1 + gate * (1 - sigmoid)))).flatten(1);
      const auto [d, overwrites] = of_gates->destination({column, width}, all.sizes(), all.options());
      overwrites ? d.copy_(d_gate) : d.add_(d_gate);
    }
    if (!in) return;
    const at::Tensor d_normal = d_y * wide * silu;
    const at::Tensor d = (d_normal - normal * (d_normal * normal).mean(-1, true)).mul_(scale);
    in->add(d.flatten(1).to(taken.scalar_type()));
  });
  return y;
}

} // namespace fvlm::ops
