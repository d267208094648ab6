// Stands in for the SDK's cuda.hpp where there is no GPU: kernels become functions that launch() calls for one thread
// after another, the threads past `count` included. So a template's numbers can be checked on any machine.
#pragma once
#include <fvlm/fvlm.hpp>

#include <cmath>

#define __global__
#define __device__

namespace fvlm::sdk {

inline thread_local std::int64_t current_item = 0;
inline std::int64_t item_index() {
  return current_item;
}

inline Support check_device(fvlm_device device, int, int) {
  return device.type == FVLM_CPU ? accept(1, "host") : refuse("compiled for the host");
}

template <class... Parameters, class... Arguments>
void launch(const fvlm_call&, std::int64_t count, void (*kernel)(Parameters...), const Arguments&... arguments) {
  const std::int64_t threads = 128, all = (count + threads - 1) / threads * threads;
  for (current_item = 0; current_item < all; ++current_item) kernel(arguments...);
}

} // namespace fvlm::sdk
