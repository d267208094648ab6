#include "ops/short_convolution.h"

#include "ops/pointwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace fvlm::ops {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

enum class Third { b, c, x };

at::Tensor columns(const at::Tensor& gates_and_x, Third which) {
  const int64_t width = gates_and_x.size(1) / 3;
  return gates_and_x.narrow(1, static_cast<int64_t>(which) * width, width);
}

// Each row `by` rows later, or earlier where that is negative; zeros where none comes from.
at::Tensor moved(const at::Tensor& rows, int64_t by) {
  at::Tensor out = at::zeros_like(rows);
  const int64_t kept = rows.size(0) - std::abs(by), earlier = std::max<int64_t>(-by, 0);
  if (kept > 0) out.narrow(0, earlier + by, kept).copy_(rows.narrow(0, earlier, kept));
  return out;
}

// [width]: what the row so many rows before is multiplied by.
at::Tensor tap(const ConvolutionTaps& taps, int64_t distance) {
  return widened(taps.weight.value()).select(1, 0).select(1, taps.count() - 1 - distance);
}

// rows: by their distance, from 0 on.
at::Tensor convolved(const ConvolutionTaps& taps, const std::vector<at::Tensor>& rows) {
  at::Tensor sum = widened(rows[0]) * tap(taps, 0);
  for (size_t distance = 1; distance < rows.size(); ++distance)
    sum.addcmul_(widened(rows[distance]), tap(taps, static_cast<int64_t>(distance)));
  return taps.bias.defined() ? sum.add_(widened(taps.bias.value())) : sum;
}

std::vector<at::Tensor> with_rows_before(const at::Tensor& rows, const at::Tensor& within) {
  std::vector<at::Tensor> all{rows};
  for (int64_t distance = 1; distance <= within.size(0); ++distance)
    all.push_back(moved(rows, distance).mul_(within[distance - 1]));
  return all;
}

void add_tap_gradients(const ConvolutionTaps& taps, const std::vector<at::Tensor>& rows, const at::Tensor& d_sum) {
  if (taps.bias.defined() && taps.bias.requires_grad()) taps.bias.add_gradient(d_sum.sum(0));
  if (!taps.weight.requires_grad()) return;
  std::vector<at::Tensor> by_tap;
  for (auto one = rows.rbegin(); one != rows.rend(); ++one) by_tap.push_back((d_sum * *one).sum(0));
  taps.weight.add_gradient(at::stack(by_tap, 1).unsqueeze(1));
}

// Of what was convolved.
at::Tensor rows_gradient(const ConvolutionTaps& taps, const at::Tensor& d_sum, const at::Tensor& within) {
  at::Tensor d = d_sum * tap(taps, 0);
  for (int64_t distance = 1; distance <= within.size(0); ++distance)
    d.addcmul_(moved(d_sum * within[distance - 1], -distance), tap(taps, distance));
  return d;
}

} // namespace

at::Tensor rows_within_segments(const at::Tensor& cu_seqlens, int64_t rows, int64_t reach,
                                const at::TensorOptions& options) {
  const at::Tensor has_before = at::ones({rows + 1, 1}, options); // bounds of segments may be behind the last row
  has_before.index_fill_(0, cu_seqlens.to(at::kLong), 0);
  std::vector<at::Tensor> within{has_before.narrow(0, 0, rows)};
  while (std::ssize(within) < reach) within.push_back(moved(within.back(), 1).mul_(within.front()));
  return at::stack(within).narrow(0, 0, reach);
}

Value gated_convolution(Tape& tape, const Value& gates_and_x, const ConvolutionTaps& taps, const at::Tensor& within) {
  const auto rows = [within](const at::Tensor& all) {
    return with_rows_before(columns(all, Third::b) * columns(all, Third::x), within);
  };
  const auto gated = [taps, rows](const at::Tensor& all) {
    return (convolved(taps, rows(all)).mul_(columns(all, Third::c))).to(all.scalar_type());
  };
  Value y(gated(gates_and_x.data), tape.records(gates_and_x, taps.weight, taps.bias));
  if (!y.requires_grad()) return y;
  tape.set_recompute(y, [gated, all = gates_and_x.data] { return gated(all); });
  tape.push([taps, within, rows, all = gates_and_x.data, in = gates_and_x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const std::vector<at::Tensor> convolves = rows(all);
    const at::Tensor d_sum = widened(d_y) * columns(all, Third::c);
    add_tap_gradients(taps, convolves, d_sum);
    if (!in) return;
    at::Tensor d = at::empty_like(all);
    columns(d, Third::c).copy_(convolved(taps, convolves).mul_(d_y));
    const at::Tensor d_rows = rows_gradient(taps, d_sum, within);
    columns(d, Third::b).copy_(d_rows * columns(all, Third::x));
    columns(d, Third::x).copy_(d_rows * columns(all, Third::b));
    in->add(std::move(d));
  });
  return y;
}

EarlierRows::EarlierRows(const at::Tensor& indices, const at::Tensor& sequences, const at::Tensor& page_table,
                         int64_t page_rows, int64_t reach) {
  const at::Tensor own = indices.to(at::kLong), of_sequence = sequences.to(at::kLong);
  for (int64_t distance = 1; distance <= reach; ++distance) {
    const at::Tensor index = own - distance, there = index.clamp_min(0);
    const at::Tensor page = page_table.index(Indices({of_sequence, there.div(page_rows, "floor")}));
    before.push_back({page.to(at::kLong), there.remainder(page_rows), index.lt(0).unsqueeze(1)});
  }
}

at::Tensor append_and_convolve(const at::Tensor& gates_and_x, const ConvolutionTaps& taps, const at::Tensor& pages,
                               const at::Tensor& places, const EarlierRows& earlier) {
  std::vector<at::Tensor> rows{columns(gates_and_x, Third::b) * columns(gates_and_x, Third::x)};
  pages.index_put_(Indices({places.select(0, 0), places.select(0, 1)}), rows[0]);
  for (const EarlierRows::Places& place : earlier.before)
    rows.push_back(pages.index(Indices({place.pages, place.rows})).masked_fill_(place.missing, 0));
  return convolved(taps, rows).mul_(columns(gates_and_x, Third::c)).to(gates_and_x.scalar_type());
}

} // namespace fvlm::ops
