// The peak throughput of a device, measured, and the time of a call without the host's launch overhead.
#pragma once
#include "bench/op_work.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <string>

namespace fvlm::bench {

// Measured peaks: memory bandwidth of a copy, and floating-point throughput of a large matrix product.
struct Ceiling {
  double bytes_a_second = 0, flops_a_second = 0;

  // Measures both, and keeps the larger value of this and earlier measurements.
  void raise(at::Device device, at::ScalarType type);
  double seconds(const MinimalWork& work) const { return work.seconds(bytes_a_second, flops_a_second); }
  // Fraction of the peak that the work reached; above 1 is possible if its data is in a cache.
  double share(const MinimalWork& work, double taken) const { return seconds(work) / taken; }
  std::string text() const;
  nlohmann::ordered_json json() const;
};

// Seconds of a call. On a GPU, if `captured` is set, measured by replaying a CUDA graph of it; `captured` is false
// afterwards if it could not be captured.
double seconds_of_call(const std::function<void()>& call, at::Device device, bool& captured);

} // namespace fvlm::bench
