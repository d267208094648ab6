// Normalizes pixels for the vision tower, and back.
#pragma once
#include <array>
#include <cstdint>
#include <span>

namespace fvlm {

// The normalized value of each byte: [channel][value].
using NormalizationTable = std::array<std::array<float, 256>, 3>;

// (value / 255 - mean) / std with ImageNet's mean and std of each channel, in float32 arithmetic.
const NormalizationTable& imagenet_normalization();

// [height, width, 3] bytes to [3, height, width] floats. Throws Error(internal) where the sizes differ.
void normalise(std::span<const uint8_t> hwc, std::span<float> chw,
               const NormalizationTable& table = imagenet_normalization());

// The inverse: returns exactly the bytes that were normalized, and clamps other values.
void denormalise(std::span<const float> chw, std::span<uint8_t> hwc,
                 const NormalizationTable& table = imagenet_normalization());

} // namespace fvlm
