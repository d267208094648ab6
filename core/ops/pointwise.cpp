#include "ops/pointwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>

namespace fvlm::ops {

at::Tensor widened(const at::Tensor& x) {
  return x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

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

Value scale_by(Tape& tape, const Value& x, const at::Tensor& factor, at::Tensor* compensation) {
  at::Tensor scaled;
  if (compensation && compensation->defined()) {
    at::Tensor exact = x.data.to(at::kFloat).add_(*compensation).mul_(factor);
    scaled = exact.to(x.data.scalar_type());
    *compensation = exact.sub_(scaled).to(x.data.scalar_type());
  } else {
    scaled = x.data * factor;
  }
  Value y(std::move(scaled), tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([factor, in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) in->add(d_y * factor);
  });
  return y;
}

Value clamp(Tape& tape, const Value& x, const at::Tensor& least, const at::Tensor& most) {
  Value y(at::clamp(x.data, least, most), tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([outside = x.data != y.data, in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) in->add(d_y.masked_fill(outside, 0));
  });
  return y;
}

Value matmul(Tape& tape, const Value& x, const Weight& weight) {
  Value y(at::mm(x.data, weight.value()), tape.records(x, weight));
  if (!y.requires_grad()) return y;
  tape.push([x = x.data, weight, in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (weight.requires_grad()) weight.add_gradient(at::mm(x.t(), d_y));
    if (in) in->add(at::mm(d_y, weight.value().t()));
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

Value scale_columns(Tape& tape, const Value& x, int64_t columns, const at::Tensor& factors) {
  const auto scale = [columns, factors](const at::Tensor& rows) { rows.narrow(1, 0, columns).mul_(factors); };
  scale(x.data);
  if (!tape.records(x)) return x;
  Value y(x.data, true);
  y.gradient->set_destination_of(*x.gradient);
  tape.push([scale, in = x.gradient, out = y.gradient] {
    if (out->empty()) return;
    at::Tensor d = out->take_exclusive();
    scale(d);
    in->add(std::move(d));
  });
  return y;
}

Value softcap(Tape& tape, const Value& x, double cap) {
  const at::Tensor part = (widened(x.data) / cap).tanh_();
  Value y(part * cap, tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([part, type = x.data.scalar_type(), in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) in->add(((1 - part.square()) * d_y).to(type));
  });
  return y;
}

} // namespace fvlm::ops
