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

// [width]: what is multiplied by the tap so many before the last one.
at::Tensor tap(const ConvolutionTaps& taps, int64_t before_last) {
  return widened(taps.weight.value()).flatten(1).select(1, taps.count() - 1 - before_last);
}

// `rows_at`: what each row reads for a tap, which is counted from the last one back.
template <class RowsAt>
at::Tensor convolved(const ConvolutionTaps& taps, const RowsAt& rows_at) {
  at::Tensor sum = widened(rows_at(0)) * tap(taps, 0);
  for (int64_t place = 1; place < taps.count(); ++place) sum.addcmul_(widened(rows_at(place)), tap(taps, place));
  return taps.bias.defined() ? sum.add_(widened(taps.bias.value())) : sum;
}

// The same for the taps' gradients, which are computed meanwhile.
template <class RowsAt>
at::Tensor convolved(const ConvolutionTaps& taps, const RowsAt& rows_at, const at::Tensor& d_sum) {
  if (taps.bias.defined() && taps.bias.requires_grad()) taps.bias.add_gradient(d_sum.sum(0));
  if (!taps.weight.requires_grad()) return convolved(taps, rows_at);
  std::vector<at::Tensor> by_tap;
  at::Tensor sum = convolved(taps, [&](int64_t place) {
    at::Tensor rows = rows_at(place);
    by_tap.insert(by_tap.begin(), (d_sum * rows).sum(0));
    return rows;
  });
  taps.weight.add_gradient(at::stack(by_tap, 1).view(taps.weight.value().sizes()));
  return sum;
}

// `read`: of rows and a tap, what each row reads of them; `returned`: of what rows have read, whose it was.
template <class Read, class Returned>
Value gated_convolution(Tape& tape, const Value& gates_and_x, const ConvolutionTaps& taps, const Read& read,
                        const Returned& returned) {
  const auto rows_of = [read](const at::Tensor& all) {
    return [read, rows = columns(all, Third::b) * columns(all, Third::x)](int64_t place) { return read(rows, place); };
  };
  const auto gated = [taps, rows_of](const at::Tensor& all) {
    return (convolved(taps, rows_of(all)).mul_(columns(all, Third::c))).to(all.scalar_type());
  };
  Value y(gated(gates_and_x.data), tape.records(gates_and_x, taps.weight, taps.bias));
  if (!y.requires_grad()) return y;
  tape.set_recompute(y, [gated, all = gates_and_x.data] { return gated(all); });
  tape.push([=, all = gates_and_x.data, in = gates_and_x.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const at::Tensor d_sum = widened(d_y) * columns(all, Third::c);
    at::Tensor sum = convolved(taps, rows_of(all), d_sum);
    if (!in) return;
    at::Tensor d = at::empty_like(all);
    columns(d, Third::c).copy_(sum.mul_(d_y));
    at::Tensor d_rows = returned(d_sum, 0) * tap(taps, 0);
    for (int64_t place = 1; place < taps.count(); ++place) d_rows.addcmul_(returned(d_sum, place), tap(taps, place));
    columns(d, Third::b).copy_(d_rows * columns(all, Third::x));
    columns(d, Third::x).copy_(d_rows * columns(all, Third::b));
    in->add(std::move(d));
  });
  return y;
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
  return gated_convolution(
      tape, gates_and_x, taps,
      [within](const at::Tensor& rows, int64_t distance) {
        return distance == 0 ? rows : moved(rows, distance).mul_(within[distance - 1]);
      },
      [within](const at::Tensor& read, int64_t distance) {
        return distance == 0 ? read : moved(read * within[distance - 1], -distance);
      });
}

PatchSquares::PatchSquares(const at::Tensor& at_offsets)
    : rows(at_offsets.clamp_min(0)), exists(at_offsets.ge(0).unsqueeze(2)) {}

// The patch that one reads at an offset reads that one at the opposite offset.
Value gated_convolution(Tape& tape, const Value& gates_and_x, const ConvolutionTaps& taps,
                        const PatchSquares& squares) {
  const auto at_offset = [squares](const at::Tensor& rows, int64_t offset) {
    return rows.index_select(0, squares.rows[offset]).mul_(squares.exists[offset]);
  };
  const int64_t last = taps.count() - 1;
  return gated_convolution(
      tape, gates_and_x, taps,
      [=](const at::Tensor& rows, int64_t before_last) { return at_offset(rows, last - before_last); }, at_offset);
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
  return convolved(taps, [&](int64_t distance) { return rows[static_cast<size_t>(distance)]; })
      .mul_(columns(gates_and_x, Third::c))
      .to(gates_and_x.scalar_type());
}

} // namespace fvlm::ops
