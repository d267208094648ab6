// Latents as they would travel to another machine: rounded to fewer bits and back.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>

namespace fvlm::model {

// `latents` [frames * rows, width] as whoever receives them in this mode of the connector has them: "fp16", or "int8",
// "int6" and "int4" in groups of 32 values of a frame, each with a scale in fp16. Other modes change nothing.
at::Tensor over_wire(const at::Tensor& latents, int64_t frames, std::string_view mode);

} // namespace fvlm::model
