// Whether something that is done again and again takes more and more memory, address space or open files.
#pragma once
#include "check/context.h"
#include "check/probe.h"

#include <algorithm>
#include <chrono>
#include <set>

namespace fvlm::check {

// How much more there is after `count` turns of something than before.
struct Growth {
  explicit Growth(int64_t turns_)
      : turns(turns_), allocated(bytes_allocated()), mapped(bytes_mapped()), descriptors(open_descriptors()) {}
  // "" where it is no more than chance.
  std::string found(bool on_device) const {
    const int64_t more = bytes_allocated() - allocated, address_space = bytes_mapped() - mapped;
    const int64_t allowed = on_device ? 4 << 20 : std::max<int64_t>(16 << 10, 12 * turns);
    if (more > allowed) return fmt::format("malloc has given out {} more bytes", more);
    if (!freed_memory_stays() && !on_device && address_space > 8 << 20)
      return fmt::format("{} more bytes are mapped", address_space);
    for (const auto& descriptor : open_descriptors())
      if (!descriptors.contains(descriptor)) return fmt::format("a file is left open: {}", descriptor);
    return "";
  }
  int64_t turns, allocated, mapped;
  std::set<std::string> descriptors;
};

// Runs `turn` so often, or as often as some seconds allow, and says what has grown. What leaks grows again in a second
// stretch; what is laid in once, by a library that the plugin uses or by this test itself, does not.
template <class Turn>
Outcome flat(Context& context, int64_t turns, const char* what, const Turn& turn) {
  const bool on_device = context.device.is_cuda();
  if (on_device) turns = std::max<int64_t>(turns / 100, 10);
  for (int64_t i = 0; i < turns / 10; ++i) turn();
  int64_t done = 0;
  std::string more;
  for (int stretch = 0; stretch == 0 || (stretch == 1 && !more.empty()); ++stretch) {
    const Growth growth(turns);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < turns && std::chrono::steady_clock::now() - start < std::chrono::seconds(8); ++i, ++done)
      turn();
    more = growth.found(on_device);
  }
  return more.empty() ? ok(fmt::format("{} {}", done, what)) : failed("after {} {} {}", done, what, more);
}

} // namespace fvlm::check
