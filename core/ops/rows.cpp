#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

namespace fvlm::ops {

Value gather_rows(Tape& tape, const Value& x, const at::Tensor& index) {
  Value y(x.data.index_select(0, index), tape.records(x));
  if (!y.requires_grad()) return y;
  x.gradient->withdraw_bias_gradient();
  tape.push([index, shape = x.data.sizes().vec(), options = x.data.options(), in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) in->accumulator(shape, options).index_add_(0, index, d_y);
  });
  return y;
}

Value append_means(Tape& tape, const Value& x, const at::Tensor& rows, const at::Tensor& shares) {
  const int64_t count = x.data.size(0), width = x.data.size(1);
  const at::Tensor index = rows.flatten(), factors = shares.to(x.data.scalar_type()).unsqueeze(2);
  const at::Tensor terms = x.data.index_select(0, index).view({rows.size(0), rows.size(1), width});
  Value y(at::concat({x.data, (terms * factors).sum(1)}), tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([index, factors, count, width, in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const auto wide = d_y.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor d_means = d_y.narrow(0, count, d_y.size(0) - count).unsqueeze(1) * factors;
    const at::Tensor sum = d_y.narrow(0, 0, count).to(wide, false, true);
    in->add(sum.index_add_(0, index, d_means.reshape({-1, width}).to(wide)).to(d_y.scalar_type()));
  });
  return y;
}

Value gather_repeated_rows(Tape& tape, const Value& x, const at::Tensor& index) {
  Value y(x.data.index_select(0, index), tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([index, rows = x.data.size(0), in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const auto wide = d_y.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor sum = at::zeros({rows, d_y.size(1)}, d_y.options().dtype(wide));
    in->add(sum.index_add_(0, index, d_y.to(wide)).to(d_y.scalar_type()));
  });
  return y;
}

Value embed(Tape& tape, const Weight& table, const Value& visual, const Sequence& sequence, at::ScalarType dtype) {
  const int64_t rows = sequence.tokens.size(0);
  // Padding is copied to an additional row at the end.
  const at::Tensor with_padding_row =
      at::empty({rows + 1, table.value().size(1)}, table.value().options().dtype(dtype));
  at::Tensor text = with_padding_row.narrow(0, 0, rows);
  if (table.value().scalar_type() == dtype)
    at::index_select_out(text, table.value(), 0, sequence.tokens);
  else
    text.copy_(table.value().index_select(0, sequence.tokens));
  if (visual.defined()) with_padding_row.index_copy_(0, sequence.visual_rows, visual.data);
  Value y(text, tape.records(table, visual));
  if (!y.requires_grad()) return y;
  tape.push([table, sequence, rows, in = visual.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (in) {
      const at::Tensor clamped = sequence.visual_rows.clamp_max(rows - 1);
      in->add(d_y.index_select(0, clamped) * (sequence.visual_rows < rows).unsqueeze(1));
    }
    if (!table.requires_grad()) return;
    if (!Weight::begin_write(table)) table.gradient().zero_();
    table.gradient().index_add_(0, sequence.tokens, (d_y * sequence.is_text).to(table.gradient().scalar_type()));
  });
  return y;
}

Value broadcast_row(Tape& tape, const Weight& row, int64_t rows) {
  Value y(row.value().expand({rows, row.value().size(1)}).contiguous(), tape.records(row));
  if (!y.requires_grad()) return y;
  tape.push([row, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) row.add_gradient(d_y.sum(0, true, row.gradient().scalar_type()));
  });
  return y;
}

Value strided_rows(Tape& tape, const Value& x, int64_t step, int64_t first) {
  const auto rows = [step, first](const at::Tensor& all) { return all.unflatten(0, {-1, step}).select(1, first); };
  Value y(rows(x.data).contiguous(), tape.records(x));
  if (!y.requires_grad()) return y;
  x.gradient->withdraw_bias_gradient();
  tape.push([rows, shape = x.data.sizes().vec(), options = x.data.options(), in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) rows(in->accumulator(shape, options)).add_(d_y);
  });
  return y;
}

Value scale(Tape& tape, const Value& x, double factor) {
  Value y(x.data * factor, tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([factor, in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) in->add(d_y * factor);
  });
  return y;
}

} // namespace fvlm::ops
