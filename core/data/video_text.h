// What SmolVLM2 reads around the frames of a video: how many and how long, and before each when it is shown.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace fvlm {

// The text in place of <video>, with an <image> for each frame. `times`: when each is shown, in seconds of a video that
// is `seconds` long. The words of transformers' SmolVLMProcessor.
std::string video_text(std::span<const double> times, double seconds);

// "sixty-four", as the Python package num2words writes it; numbers of a million and more in digits.
std::string in_words(int64_t number);

} // namespace fvlm
