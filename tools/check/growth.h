// Detects leaks of repeated work: memory, address space, open files.
#pragma once
#include "check/context.h"
#include "check/probe.h"

#include <algorithm>
#include <chrono>
#include <set>

namespace fvlm::check {

// What a number of iterations has leaked since construction.
struct Growth {
  explicit Growth(int64_t iterations_)
      : iterations(iterations_), allocated(bytes_allocated()), mapped(bytes_mapped()), descriptors(open_descriptors()) {
  }
  // "" if it is within the noise.
  std::string describe(bool on_device) const {
    const int64_t more = bytes_allocated() - allocated, address_space = bytes_mapped() - mapped;
    const int64_t allowed = on_device ? 4 << 20 : std::max<int64_t>(16 << 10, 12 * iterations);
    if (more > allowed) return fmt::format("malloc has given out {} more bytes", more);
    if (!freed_memory_stays() && !on_device && address_space > 8 << 20)
      return fmt::format("{} more bytes are mapped", address_space);
    for (const auto& descriptor : open_descriptors())
      if (!descriptors.contains(descriptor)) return fmt::format("a file is left open: {}", descriptor);
    return "";
  }
  int64_t iterations, allocated, mapped;
  std::set<std::string> descriptors;
};

// Runs `iterate` so many times, or as often as 8 s allow, and reports what grew. Growth counts only if a second round
// shows it again: caches that a library or this test fills once do not.
template <class Turn>
Outcome expect_no_growth(Context& context, int64_t iterations, const char* what, const Turn& iterate) {
  const bool on_device = context.device.is_cuda();
  if (on_device) iterations = std::max<int64_t>(iterations / 100, 10);
  for (int64_t i = 0; i < iterations / 10; ++i) iterate();
  int64_t done = 0;
  std::string more;
  for (int round = 0; round == 0 || (round == 1 && !more.empty()); ++round) {
    const Growth growth(iterations);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < iterations && std::chrono::steady_clock::now() - start < std::chrono::seconds(8);
         ++i, ++done)
      iterate();
    more = growth.describe(on_device);
  }
  return more.empty() ? ok(fmt::format("{} {}", done, what)) : failed("after {} {} {}", done, what, more);
}

} // namespace fvlm::check
