// Shared by the tests of this room: the reference as a backend, and comparisons that report numbers.
#pragma once
#include "base/error.h"
#include "ops/backend.h"
#include "ops/reference.h"
#include "ops/reference_manifest.h"
#include "plugin/guard.h"
#include "plugin/host.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

namespace fvlm::ops {

template <class Table>
Backend<Table> reference_backend(const char* kind) {
  const fvlm_host* host = host_for("reference");
  const auto* table = static_cast<const Table*>(reference_entry(host)->table(kind));
  return Backend<Table>("reference", *table, host, at::kCPU);
}

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const at::Tensor a = actual.detach().to(at::kDouble), e = expected.detach().to(at::kDouble);
  const at::Tensor off = (a - e).abs().div_(e.abs().clamp_min(1)).reshape({-1});
  ASSERT_FALSE(off.isnan().any().item<bool>()) << what << ": NaN in " << a;
  const double worst = off.max().item<double>();
  const int64_t at = off.argmax().item<int64_t>();
  EXPECT_LE(worst, tolerance) << what << ": at element " << at << " is " << a.reshape({-1})[at].item<double>()
                              << ", expected " << e.reshape({-1})[at].item<double>();
}

inline void expect_same_bits(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(at::equal(actual, expected)) << what << ": " << actual << " is not " << expected;
}

inline at::Tensor random(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kDouble) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kDouble).to(type);
}

// A strided copy, with NaN in the gaps between rows.
inline at::Tensor spread(const at::Tensor& tensor) {
  auto shape = tensor.sizes().vec();
  shape.back() += 3;
  at::Tensor whole = at::full(shape, std::nan(""), tensor.options());
  at::Tensor view = whole.narrow(-1, 0, tensor.size(-1));
  view.copy_(tensor);
  return view;
}

inline at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).clone().set_requires_grad(true);
}

struct DebugMode {
  DebugMode() { set_plugin_debug(true); }
  ~DebugMode() { set_plugin_debug(false); }
};

// A derivative of `loss` (-> double) at one element, by central differences; float64 only.
template <class Loss>
double difference(const at::Tensor& tensor, int64_t element, Loss&& loss) {
  constexpr double step = 1e-5;
  double* value = tensor.data_ptr<double>() + element;
  const double kept = *value;
  *value = kept + step;
  const double above = loss();
  *value = kept - step;
  const double below = loss();
  *value = kept;
  return (above - below) / (2 * step);
}

} // namespace fvlm::ops
