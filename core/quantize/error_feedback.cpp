#include "quantize/error_feedback.h"

#include <ATen/ops/argsort.h>
#include <ATen/ops/cholesky_inverse.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linalg_cholesky.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace fvlm::quantize {
namespace {

using at::Tensor;

constexpr int64_t block = 128;   // columns whose errors reach the columns behind them in one product
constexpr double damping = 0.01; // of the mean square of an input: few samples say little about small ones

// Row i: by how much the columns from i on change for each unit of column i's error, times its own element.
Tensor feedback_factors(Tensor moments) {
  const Tensor diagonal = moments.diagonal();
  diagonal.add_(std::max(damping * diagonal.mean().item<double>(), 1e-30));
  return at::linalg_cholesky(at::cholesky_inverse(at::linalg_cholesky(moments)), true);
}

Tensor rounded(const Tensor& weight, const Tensor& scale, int64_t bits) {
  const Tensor divisor = at::where(scale.eq(0), 1, scale);
  return (weight / divisor).round_().clamp_(bits == 8 ? -127 : -8, bits == 8 ? 127 : 7);
}

// Two codes a byte, the first in the low bits; a row has whole words of 32 bits.
Tensor nibbles(const Tensor& codes) {
  const Tensor all = (codes + 8).to(at::kByte);
  const Tensor pairs = at::constant_pad_nd(all, {0, (8 - all.size(1) % 8) % 8}).unflatten(1, {-1, 2});
  return pairs.select(2, 0) + pairs.select(2, 1) * 16;
}

} // namespace

Tensor codes_with_feedback(const Tensor& weight, const Tensor& scales, const Tensor& moments,
                           const PackedScheme& scheme) {
  const int64_t cols = weight.size(1), group = scheme.group(cols);
  const Tensor order = at::argsort(moments.diagonal(), 0, true);
  const Tensor factors = feedback_factors(moments.to(at::kDouble).index_select(0, order).index_select(1, order));
  // Columns as rows, which lie together in memory.
  Tensor wanted = weight.to(at::kDouble).t().index_select(0, order).contiguous();
  const Tensor scale = scales.to(at::kDouble)
                           .view({weight.size(0), -1})
                           .repeat_interleave(group, 1)
                           .t()
                           .index_select(0, order)
                           .contiguous();
  const Tensor codes = at::zeros_like(wanted);
  for (int64_t begin = 0; begin < cols; begin += block) {
    const int64_t end = std::min(begin + block, cols);
    const Tensor errors = at::zeros_like(wanted.narrow(0, begin, end - begin));
    for (int64_t i = begin; i < end; ++i) {
      const Tensor column = wanted[i], code = rounded(column, scale[i], scheme.bits);
      codes[i].copy_(code);
      const Tensor error = (column - code * scale[i]).div_(factors[i][i]);
      errors[i - begin].copy_(error);
      if (i + 1 < end)
        wanted.narrow(0, i + 1, end - i - 1).sub_(at::outer(factors[i].narrow(0, i + 1, end - i - 1), error));
    }
    if (end < cols)
      wanted.narrow(0, end, cols - end)
          .sub_(factors.narrow(0, begin, end - begin).narrow(1, end, cols - end).t().matmul(errors));
  }
  Tensor in_place = at::zeros_like(codes);
  in_place.index_copy_(0, order, codes);
  const Tensor by_row = in_place.t().contiguous();
  return scheme.bits == 8 ? by_row.to(at::kChar) : nibbles(by_row);
}

} // namespace fvlm::quantize
