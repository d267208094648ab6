#include "check/formulas.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <random>

namespace fvlm::check {

std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                                  const std::vector<at::Tensor>& d_outputs) {
  std::vector<at::Tensor> followed, d_followed;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].requires_grad()) {
      followed.push_back(outputs[i]);
      d_followed.push_back(d_outputs[i].to(outputs[i].scalar_type()));
    }
  std::vector<at::Tensor> result(inputs.size());
  if (!followed.empty())
    result = torch::autograd::grad(followed, inputs, d_followed, std::nullopt, false, /*allow_unused=*/true);
  for (size_t i = 0; i < inputs.size(); ++i)
    result[i] = result[i].defined() ? result[i].detach() : at::zeros_like(inputs[i].detach());
  return result;
}

at::Tensor leaf(const at::Tensor& content, at::ScalarType dtype) {
  return content.detach().to(dtype, /*non_blocking=*/false, /*copy=*/true).set_requires_grad(true);
}

namespace {

// Of large tensors the numbers repeat after so many: a prime, so that no stride of powers of two meets itself.
constexpr int64_t period = 4194319;

void draw(double* numbers, int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15 + 1);
  // Box and Muller's transform rather than std::normal_distribution, whose numbers are each library's own.
  auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  for (int64_t i = 0; i < count; ++i)
    numbers[i] = std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
}

// The first numbers of a seed. Trials are run many times with the same numbers, of which they take more or fewer: what
// was drawn is kept, up to 256 MiB.
at::Tensor drawn(int64_t count, uint64_t seed) {
  static std::mutex mutex;
  static auto& known = *new std::map<uint64_t, at::Tensor>;
  static int64_t held = 0;
  std::lock_guard lock(mutex);
  at::Tensor& values = known[seed];
  const int64_t before = values.defined() ? values.numel() : -1;
  if (before < count) {
    held += count - before;
    values = at::empty({count}, at::kDouble);
    draw(values.data_ptr<double>(), count, seed);
  }
  const at::Tensor result = values.narrow(0, 0, count);
  if (held > 1 << 25) known.clear(), held = 0;
  return result;
}

} // namespace

at::Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype, double scale) {
  const int64_t count = c10::multiply_integers(shape);
  at::Tensor values = drawn(std::min(count, period), seed);
  if (count > period) values = values.repeat({(count + period - 1) / period}).narrow(0, 0, count);
  return (values * scale).view(shape).to(dtype);
}

double root_mean_square(const at::Tensor& values) {
  if (values.numel() == 0) return 0;
  return std::sqrt(at::nan_to_num(values.to(at::kDouble)).square().mean().item<double>());
}

at::Tensor random_integers(at::IntArrayRef shape, uint64_t seed, int64_t limit, at::ScalarType dtype) {
  auto values = at::empty(shape, at::kLong);
  std::mt19937_64 random(seed + 77);
  auto* data = values.data_ptr<int64_t>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
  return values.to(dtype);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, int64_t rotary_dim, double theta, bool inverse) {
  if (rotary_dim == 0) return x;
  return rotate(x, positions,
                at::pow(at::scalar_tensor(theta, at::kDouble),
                        at::arange(rotary_dim / 2, at::kDouble) * (-2.0 / static_cast<double>(rotary_dim))),
                inverse);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& frequencies, bool inverse) {
  const auto work = at_least_float(x.scalar_type());
  const int64_t half = frequencies.size(0), rotary_dim = 2 * half;
  auto angle = (positions.to(work).unsqueeze(1) * frequencies.to(work)).unsqueeze(1); // [rows, 1, half]
  auto cosine = at::cos(angle), sine = inverse ? -at::sin(angle) : at::sin(angle);
  auto first = x.narrow(2, 0, half).to(work), second = x.narrow(2, half, half).to(work);
  auto rest = x.narrow(2, rotary_dim, x.size(2) - rotary_dim);
  return at::concat({(first * cosine - second * sine).to(x.scalar_type()),
                     (second * cosine + first * sine).to(x.scalar_type()), rest},
                    2);
}

} // namespace fvlm::check
