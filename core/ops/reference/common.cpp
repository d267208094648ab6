#include "ops/reference/common.h"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/pow.h>

namespace fvlm::ops::reference {

namespace {

bool same(fvlm_dtype a, fvlm_dtype b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

} // namespace

OnDevice::OnDevice(const fvlm_instance_config& config) {
  const auto support = supports_number(config.device, {FVLM_FLOAT, 32, 1});
  if (support.score == 0) throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%s", support.reason);
}

sdk::Support supports_number(fvlm_device device, fvlm_dtype dtype, const char* how) {
  const bool floating = (dtype.code == FVLM_FLOAT && (dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64)) ||
                        (dtype.code == FVLM_BFLOAT && dtype.bits == 16);
  if (!floating || dtype.lanes != 1) return sdk::refuse("dtype %s not supported", dtype_name(dtype).c_str());
  if (device.type != FVLM_CPU && device.type != FVLM_CUDA)
    return sdk::refuse("device type %d not supported", device.type);
  if (device.type == FVLM_CUDA && !is_dry_run(at::kMeta) && !at::globalContext().hasCUDA())
    return sdk::refuse("LibTorch finds no CUDA device");
  return sdk::accept(1, "%s", how);
}

sdk::Support supports_numbers(fvlm_device device, fvlm_dtype dtype, fvlm_dtype gradient_dtype, const char* how) {
  if (!same(gradient_dtype, dtype) && !same(gradient_dtype, {FVLM_FLOAT, 32, 1}))
    return sdk::refuse("gradients in %s of %s are not supported", dtype_name(gradient_dtype).c_str(),
                       dtype_name(dtype).c_str());
  return supports_number(device, dtype, how);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
  if (is_on_cuda(a) && a.scalar_type() == b.scalar_type()) {
    if (a.scalar_type() == type) return at::mm(a, b);
    if (type == at::kFloat && a.element_size() < 4) return at::mm(a, b, type);
  }
  // On the CPU, ATen's 16-bit matrix products are several times slower than converting to float32, and no more
  // accurate.
  return at::mm(upcast(a), upcast(b)).to(type);
}

void store(const at::Tensor& out, const at::Tensor& value, bool accumulate) {
  if (accumulate)
    out.add_(value);
  else
    out.copy_(value);
}

void store_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  const auto type = out.scalar_type();
  const bool direct = type == a.scalar_type() && type == b.scalar_type() && (type == wide(type) || is_on_cuda(out));
  if (!direct) return store(out, product(a, b, accumulate ? wide(type) : type), accumulate);
  at::Tensor target = out;
  if (accumulate)
    at::addmm_out(target, out, a, b);
  else
    at::mm_out(target, a, b);
}

at::Tensor rotated(const at::Tensor& x, const at::Tensor& positions, int64_t rotary_dim, double theta, bool inverse) {
  const auto exponents =
      at::arange(rotary_dim / 2, x.options().dtype(at::kDouble)).mul_(-2.0 / static_cast<double>(rotary_dim));
  return rotated(x, positions, at::pow(theta, exponents), inverse);
}

at::Tensor rotated(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& frequencies, bool inverse) {
  const int64_t half = frequencies.size(0), rotary_dim = 2 * half;
  const auto angles = positions.to(x.scalar_type()).unsqueeze(1).mul(frequencies.to(x.scalar_type())).unsqueeze(1);
  const auto cosine = angles.cos();
  const auto sine = inverse ? angles.sin().neg_() : angles.sin();
  const auto first = x.narrow(2, 0, half), second = x.narrow(2, half, half);
  const auto rest = x.narrow(2, rotary_dim, x.size(2) - rotary_dim);
  return at::concat({first * cosine - second * sine, second * cosine + first * sine, rest}, 2);
}

} // namespace fvlm::ops::reference
