// What a device does at most, and how long its work takes without the host's part.
#pragma once
#include "bench/op_work.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <string>

namespace fvlm::bench {

// Bytes read and written by a copy, and one large product of matrices.
struct Ceiling {
  double bytes_a_second = 0, flops_a_second = 0;

  // Measures both, and keeps what is more.
  void raise(at::Device device, at::ScalarType type);
  double seconds(const LeastWork& work) const { return work.seconds(bytes_a_second, flops_a_second); }
  // What of the device's most the work comes to; in a cache it may be above 1.
  double share(const LeastWork& work, double taken) const { return seconds(work) / taken; }
  std::string text() const;
  nlohmann::ordered_json json() const;
};

// On a GPU from a recording where `recorded` asks for it and it can be made, else `recorded` is false afterwards.
double seconds_of_call(const std::function<void()>& call, at::Device device, bool& recorded);

} // namespace fvlm::bench
