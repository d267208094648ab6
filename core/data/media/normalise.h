// Normalizes pixels for the vision tower, and back.
#pragma once
#include <cstdint>
#include <span>

namespace fvlm {

// [height, width, 3] bytes to [3, height, width] floats: (value / 255 - mean) / std with ImageNet's mean and std of
// each channel, in float32 arithmetic. Throws Error(internal) where the sizes differ.
void normalise(std::span<const uint8_t> hwc, std::span<float> chw);

// The inverse: returns exactly the bytes that were normalized, and clamps other values.
void denormalise(std::span<const float> chw, std::span<uint8_t> hwc);

} // namespace fvlm
