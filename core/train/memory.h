// Memory while a run trains: how much there is in use, and whether it ran out.
#pragma once
#include <cstdint>
#include <exception>

namespace fvlm::train {

// Of this process, resident.
uint64_t memory_in_use();

bool is_out_of_memory(const std::exception& error);

} // namespace fvlm::train
