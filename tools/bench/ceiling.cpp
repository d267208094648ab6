#include "bench/ceiling.h"

#include "device/runtime.h"
#include "ops/measure.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::bench {

double seconds_of_call(const std::function<void()>& call, at::Device device, bool& captured) {
  const double plain = ops::fastest(call, device);
  device::Runtime* const gpu = device::runtime();
  if (!gpu || !captured) return plain;
  const int calls = plain < 1e-3 ? 32 : 4;
  std::unique_ptr<device::CapturedGraph> graph;
  try {
    graph = gpu->capture([&] {
      for (int i = 0; i < calls; ++i) call();
    });
  } catch (const std::exception&) { // it synchronizes with the device
    captured = false;
    return plain;
  }
  return ops::fastest([&] { graph->replay(); }, device) / calls;
}

void Ceiling::raise(at::Device device, at::ScalarType type) {
  const int64_t elements = int64_t{1} << (device.is_cpu() ? 26 : 28), side = device.is_cpu() ? 1024 : 8192;
  const auto speed = [&](double work, const std::function<void()>& call) {
    bool captured = true;
    return work / seconds_of_call(call, device, captured);
  };
  {
    const at::Tensor from = at::ones({elements}, at::TensorOptions(device));
    at::Tensor to = at::empty_like(from);
    // A kernel of LibTorch: its copy is the driver's, which is slower.
    const double copied = speed(2.0 * static_cast<double>(from.nbytes()), [&] { at::neg_out(to, from); });
    bytes_a_second = std::max(bytes_a_second, copied);
  }
  const at::Tensor a = at::ones({side, side}, at::TensorOptions(device).dtype(type));
  at::Tensor c = at::empty_like(a);
  const double multiplied = speed(2 * std::pow(static_cast<double>(side), 3), [&] { at::mm_out(c, a, a); });
  flops_a_second = std::max(flops_a_second, multiplied);
}

std::string Ceiling::text() const {
  return fmt::format("copied here: {:.1f} GB/s, read and written; a large product: {:.2f} TFLOP/s",
                     bytes_a_second / 1e9, flops_a_second / 1e12);
}

nlohmann::ordered_json Ceiling::json() const {
  return {{"bytes_per_second", bytes_a_second}, {"flops_per_second", flops_a_second}};
}

} // namespace fvlm::bench
