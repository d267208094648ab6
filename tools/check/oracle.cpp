#include "check/oracle.h"

#include "check/operand.h"
#include "plugin/dtype.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cmath>

namespace fvlm::check {
namespace {

double epsilon(at::ScalarType dtype) {
  switch (dtype) {
  case at::kBFloat16:
    return 0x1p-8;
  case at::kHalf:
    return 0x1p-11;
  case at::kDouble:
    return 0x1p-52;
  default:
    return 0x1p-23;
  }
}

// The largest finite magnitude.
double largest(const at::Tensor& values) {
  if (values.numel() == 0) return 0;
  auto magnitude = values.to(at::kDouble).abs();
  return at::where(at::isfinite(magnitude), magnitude, at::zeros_like(magnitude)).max().item<double>();
}

std::string position(const at::Tensor& shaped, int64_t flat) {
  std::string text;
  for (int64_t d = shaped.dim() - 1; d >= 0; --d) {
    int64_t size = shaped.size(d);
    text = fmt::format("{}{}{}", flat % size, text.empty() ? "" : ", ", text);
    flat /= size;
  }
  return "[" + text + "]";
}

} // namespace

std::string name_of(at::ScalarType dtype) {
  return dtype_name(dtype_of(dtype));
}

double tolerance(const Expected& expected) {
  if (expected.rounded) return 1e-37;
  double scale = std::max(largest(expected.exact), expected.scale);
  double naive = largest(expected.naive.to(at::kDouble) - expected.exact);
  double sums = expected.dtype == at::kDouble ? 0x1p-52 : 0x1p-23;
  return 4 * naive + (epsilon(expected.dtype) + (16 + std::sqrt(expected.terms)) * sums) * scale + 1e-37;
}

Comparison compare(const at::Tensor& actual, const Expected& expected) {
  if (actual.sizes() != expected.exact.sizes())
    return {1e9, fmt::format("{} has another shape than expected", expected.name)};
  if (actual.numel() == 0) return {};
  double allowed = tolerance(expected);
  auto got = actual.to(at::kDouble);
  const auto exact = expected.rounded ? expected.exact.to(expected.dtype).to(at::kDouble) : expected.exact;
  auto error = (got - exact).abs();
  // Infinite where it should be, or NaN where it should not: an error beyond all bounds.
  error = at::where(got == exact, at::zeros_like(error), error);
  error = at::nan_to_num(error, 1e300, 1e300, 1e300);
  auto flat = error.reshape({-1});
  int64_t worst = flat.argmax().item<int64_t>();
  double largest_error = flat[worst].item<double>();
  Comparison result{largest_error / allowed, ""};
  if (result.ratio > 1)
    result.failure = fmt::format("{}{} is {:.6g} and should be {:.6g} (tolerance {:.2g}; {} of {} elements are off)",
                                 expected.name, position(actual, worst), got.reshape({-1})[worst].item<double>(),
                                 exact.reshape({-1})[worst].item<double>(), allowed,
                                 (flat > allowed).sum().item<int64_t>(), flat.numel());
  return result;
}

} // namespace fvlm::check
