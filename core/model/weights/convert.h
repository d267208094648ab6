// Conversion between the floating element types: to nearest, ties to even, whatever the two types are.
#pragma once
#include "model/weights/dtype.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace fvlm {

// Both hold whole elements, equally many, and need no alignment. Returns how many finite numbers became infinite.
uint64_t convert(std::span<const std::byte> from, DType from_type, std::span<std::byte> to, DType to_type);
// How many of these numbers are infinite or NaN.
uint64_t count_not_finite(std::span<const std::byte> numbers, DType type);

} // namespace fvlm
