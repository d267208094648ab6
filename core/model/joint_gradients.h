// One product for the gradient of a decoder's weight from both of its passes: the gradients of the later pass's
// activations wait until the earlier one is there.
#pragma once
#include "model/weights/towers.h"

#include <algorithm>

namespace fvlm::model {

// Whether those of so many rows, of `element` bytes each, may. What is saved is the second product's way through all
// gradients of weights, in float32; so what waits is to be no more than these are, or little.
inline bool may_wait(const DecoderConfig& decoder, int64_t rows, int64_t element) {
  constexpr int64_t little = 64 << 20, float32 = 4;
  const int64_t width = decoder.hidden_size, mlp = decoder.intermediate_size, dim = decoder.head_dim;
  const int64_t queries = decoder.num_attention_heads * dim, heads = queries + 2 * decoder.num_key_value_heads * dim;
  const int64_t weights = width * (heads + queries + 3 * mlp), columns = heads + 2 * mlp + 2 * width;
  return decoder.num_hidden_layers * columns * rows * element <=
         std::max(little, decoder.num_hidden_layers * weights * float32);
}

} // namespace fvlm::model
