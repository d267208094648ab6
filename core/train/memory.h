// Memory while a run trains: how much there is in use and to be had, and whether it ran out.
#pragma once
#include "ops/out_of_memory.h"

#include <cstdint>
#include <filesystem>

namespace fvlm::train {

// Of this process, resident.
uint64_t memory_in_use();

// That the machine, and the control group that this process is in, can still give. `root`: where /proc and /sys lie.
uint64_t available_memory(const std::filesystem::path& root = "/");

// That tensors may still take: of the machine, or of the first GPU that this process sees, on which it trains. 0: there
// is none.
int64_t free_memory(bool of_gpu);

using ops::is_out_of_memory;

} // namespace fvlm::train
