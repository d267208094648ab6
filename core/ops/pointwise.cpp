#include "ops/pointwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/relu.h>

namespace fvlm::ops {

Value add(Tape& tape, const Value& x, const Value& residual, at::Tensor* compensation) {
  at::Tensor sum;
  if (const auto type = x.data.scalar_type(); compensation && x.data.element_size() == 2) {
    at::Tensor exact = x.data.to(at::kFloat).add_(residual.data);
    if (compensation->defined()) exact.add_(*compensation);
    sum = exact.to(type);
    *compensation = exact.sub_(sum).to(type);
  } else {
    sum = x.data + residual.data;
  }
  Value y(std::move(sum), tape.records(x, residual));
  if (!y.requires_grad()) return y;
  tape.push([x = x.gradient, residual = residual.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (residual) residual->add(d_y);
    if (x) x->add(d_y);
  });
  return y;
}

Value relu_squared(Tape& tape, const Value& x) {
  const auto square = [](const at::Tensor& rows) { return at::relu(rows).square_(); };
  Value y(square(x.data), tape.records(x));
  if (!y.requires_grad()) return y;
  tape.set_recompute(y, [square, rows = x.data] { return square(rows); });
  tape.push([rows = x.data, in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) in->add(at::relu(rows).mul_(2).mul_(d_y));
  });
  return y;
}

Value softcap(Tape& tape, const Value& x, double cap) {
  const auto type = x.data.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor part = (x.data.to(type) / cap).tanh_();
  Value y(part * cap, tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([part, type = x.data.scalar_type(), in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) in->add(((1 - part.square()) * d_y).to(type));
  });
  return y;
}

} // namespace fvlm::ops
