#include "ops/host_memory.h"

#include <limits>
#include <malloc.h>

namespace fvlm::ops {

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

} // namespace fvlm::ops
