// The steady clock in seconds.
#pragma once
#include <chrono>

namespace fvlm {

// Since some moment that is the same throughout a process: differences are what it is for.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace fvlm
