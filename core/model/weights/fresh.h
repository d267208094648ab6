// Fresh weights: what a tensor holds before any training, from (seed, name) alone.
#pragma once
#include "model/weights/layout.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace fvlm {

// The elements from `first` on of the tensor that the model directory calls `name` ("connector.q_static").
void fill_fresh(std::span<float> out, const Fill& fill, uint64_t seed, std::string_view name, uint64_t first = 0);

} // namespace fvlm
