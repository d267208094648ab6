#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <utility>

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

double rounded(double number, at::ScalarType type) {
  switch (type) {
  case at::kBFloat16:
    return c10::BFloat16(static_cast<float>(number));
  case at::kHalf:
    return c10::Half(static_cast<float>(number));
  case at::kFloat:
    return static_cast<float>(number);
  default:
    return number;
  }
}

Value embed(Tape& tape, const Weight& table, const Value& visual, const Sequence& sequence, at::ScalarType dtype,
            double token_scale) {
  const int64_t rows = sequence.tokens.size(0);
  // Padding is copied to an additional row at the end.
  const at::Tensor with_padding_row =
      at::empty({rows + 1, table.value().size(1)}, table.value().options().dtype(dtype));
  at::Tensor text = with_padding_row.narrow(0, 0, rows);
  if (table.value().scalar_type() == dtype)
    at::index_select_out(text, table.value(), 0, sequence.tokens);
  else
    text.copy_(table.value().index_select(0, sequence.tokens));
  const double factor = rounded(token_scale, dtype);
  if (factor != 1) text.mul_(factor);
  if (visual.defined()) with_padding_row.index_copy_(0, sequence.visual_rows, visual.data);
  Value y(text, tape.records(table, visual));
  if (!y.requires_grad()) return y;
  tape.push([table, sequence, rows, factor, in = visual.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (in) {
      const at::Tensor clamped = sequence.visual_rows.clamp_max(rows - 1);
      in->add(d_y.index_select(0, clamped) * (sequence.visual_rows < rows).unsqueeze(1));
    }
    if (!table.requires_grad()) return;
    if (!Weight::begin_write(table)) table.gradient().zero_();
    const at::Tensor of_tokens = (d_y * sequence.is_text).to(table.gradient().scalar_type());
    table.gradient().index_add_(0, sequence.tokens, factor == 1 ? of_tokens : of_tokens * factor);
  });
  return y;
}

Value mix_rows_of(Tape& tape, const Weight& table, const at::Tensor& index, const at::Tensor& shares,
                  at::ScalarType dtype) {
  const auto type = table.value().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto column = [](const at::Tensor& all, int64_t i) { return all.select(1, i); };
  const at::Tensor factors = shares.to(type);
  at::Tensor sum;
  for (int64_t i = 0; i < index.size(1); ++i) {
    const at::Tensor term = table.value().index_select(0, column(index, i)).to(type) * column(factors, i).unsqueeze(1);
    sum = sum.defined() ? sum.add_(term) : term;
  }
  Value y(sum.to(dtype), tape.records(table));
  if (!y.requires_grad()) return y;
  tape.push([table, index, factors, type, column, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const at::Tensor wide = d_y.to(type), d_table = at::zeros(table.value().sizes(), wide.options());
    for (int64_t i = 0; i < index.size(1); ++i)
      d_table.index_add_(0, column(index, i), wide * column(factors, i).unsqueeze(1));
    table.add_gradient(d_table);
  });
  return y;
}

Value mix_rows_of(Tape& tape, const Weight& table, const at::Tensor& shares, at::ScalarType dtype) {
  const auto type = table.value().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor factors = shares.to(type);
  Value y(at::mm(factors, table.value().to(type)).to(dtype), tape.records(table));
  if (!y.requires_grad()) return y;
  tape.push([table, factors, type, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) table.add_gradient(at::mm(factors.t(), d_y.to(type)));
  });
  return y;
}

Value swap_inner_quarters(Tape& tape, const Value& x, int64_t head_dim) {
  const auto swapped = [head_dim](const at::Tensor& rows) {
    return rows.unflatten(1, {-1, 2, 2, head_dim / 4}).transpose(2, 3).flatten(1);
  };
  Value y(swapped(x.data), tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([swapped, in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) in->add(swapped(d_y));
  });
  return y;
}

Value join_columns(Tape& tape, const std::vector<Value>& values) {
  std::vector<at::Tensor> data;
  std::vector<std::pair<std::shared_ptr<Gradient>, int64_t>> ins; // with their columns
  bool records = false;
  for (const Value& value : values) {
    data.push_back(value.data);
    ins.emplace_back(value.gradient, value.data.size(1));
    records = tape.records(value) || records;
  }
  Value y(at::concat(data, 1), records);
  if (!y.requires_grad()) return y;
  tape.push([ins, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    int64_t first = 0;
    for (const auto& [in, width] : ins) {
      if (in) in->add(d_y.narrow(1, first, width).contiguous());
      first += width;
    }
  });
  return y;
}

Value add_to_rows(Tape& tape, const Value& x, const Value& added, const at::Tensor& places) {
  const int64_t rows = x.data.size(0);
  // Padding is added to an additional row at the end.
  const at::Tensor with_padding_row = at::empty({rows + 1, x.data.size(1)}, x.data.options());
  at::Tensor sum = with_padding_row.narrow(0, 0, rows);
  sum.copy_(x.data);
  with_padding_row.index_add_(0, places, added.data);
  Value y(sum, tape.records(x, added));
  if (!y.requires_grad()) return y;
  tape.push([places, rows, in = x.gradient, of_added = added.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    if (of_added) of_added->add(d_y.index_select(0, places.clamp_max(rows - 1)) * (places < rows).unsqueeze(1));
    if (in) in->add(d_y);
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

Value side_by_side(Tape& tape, const Value& x, int64_t count) {
  const int64_t width = x.data.size(1);
  Value y(x.data.reshape({-1, count * width}), tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([width, in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) in->add(d_y.reshape({-1, width}));
  });
  return y;
}

Value mean_of_rows(Tape& tape, const Value& x, int64_t count) {
  Value y(x.data.unflatten(0, {-1, count}).mean(1), tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([count, in = x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (d_y.defined()) in->add((d_y / count).unsqueeze(1).expand({-1, count, -1}).flatten(0, 1));
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
