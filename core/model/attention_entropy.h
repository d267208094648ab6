// How widely attention spreads over a frame.
#pragma once
#include <ATen/core/Tensor.h>

namespace fvlm::model {

// Of attention [frames, layers, heads, tokens], whose rows sum to 1: the entropy in nats of each frame, the mean over
// its layers and heads. float64 [frames].
at::Tensor attention_entropies(const at::Tensor& attention);

} // namespace fvlm::model
