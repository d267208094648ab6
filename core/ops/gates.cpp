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
  const auto in_parts = [count = gates.data.size(1)](const at::Tensor& rows) { return rows.unflatten(1, {count, -1}); };
  const auto gated = [in_parts](const at::Tensor& rows, const at::Tensor& factors) {
    return (in_parts(rows) * factors.unsqueeze(2)).flatten(1);
  };
  Value y(gated(x.data, gates.data.sigmoid()), tape.records(x, gates));
  if (!y.requires_grad()) return y;
  tape.push([=, x = x.saved(), gates = gates.data, in = x.gradient, of_gates = gates.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const at::Tensor factor = gates.sigmoid();
    if (of_gates) of_gates->add(in_parts(d_y * x.get()).sum(2) * factor * (1 - factor));
    if (in) in->add(gated(d_y, factor));
  });
  return y;
}

} // namespace fvlm::ops
