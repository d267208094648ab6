// Initialization of weights, determined by (seed, name) alone.
#pragma once
#include "model/weights/layout.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace fvlm {

// Writes elements [first, first + out.size()) of the tensor named `name` in the model directory, as in
// "connector.q_static".
void initialize_weights(std::span<float> out, const Initializer& fill, uint64_t seed, std::string_view name,
                        uint64_t first = 0);

} // namespace fvlm
