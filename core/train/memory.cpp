#include "train/memory.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <new>
#include <string_view>
#include <unistd.h>

namespace fvlm::train {

uint64_t memory_in_use() {
  unsigned long long all = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%llu %llu", &all, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) || dynamic_cast<const std::bad_alloc*>(&error)) return true;
  // LibTorch's CPU allocator throws a plain Error.
  return dynamic_cast<const c10::Error*>(&error) &&
         std::string_view(error.what()).find("can't allocate memory") != std::string_view::npos;
}

} // namespace fvlm::train
