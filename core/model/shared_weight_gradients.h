// When the decoder's coarse and fine passes can share one matrix product for each weight gradient. The output gradients
// of the later pass are kept until those of the earlier pass are there.
#pragma once
#include "model/weights/towers.h"

#include <algorithm>

namespace fvlm::model {

// Whether the gradients of `rows` rows, of `element` bytes each, are small enough to keep. Sharing saves one pass over
// all weight gradients in float32, so the kept gradients must not be larger than those, or must be small.
inline bool can_defer_gradients(const DecoderConfig& decoder, int64_t rows, int64_t element) {
  constexpr int64_t little = 64 << 20, float32 = 4;
  const int64_t width = decoder.hidden_size, mlp = decoder.intermediate_size, dim = decoder.head_dim;
  const int64_t queries = decoder.num_attention_heads * dim,
                heads = decoder.query_rows() + 2 * decoder.num_key_value_heads * dim +
                        (decoder.head_gates ? decoder.num_attention_heads : 0);
  const int64_t up = decoder.gated_mlp ? 2 * mlp : mlp; // columns of the MLP's first product
  const int64_t convolving = decoder.convolutions(), ruled = decoder.delta_rules(),
                attending = decoder.num_hidden_layers - convolving - ruled;
  const int64_t delta = decoder.delta_rows() + decoder.delta_values() + 2 * decoder.delta_value_heads;
  const int64_t layers = decoder.num_hidden_layers, dense = layers - decoder.mixtures();
  const int64_t columns =
      attending * heads + convolving * 3 * width + ruled * delta + layers * width + dense * (up + width);
  const int64_t weights = width * (attending * (heads + queries) + convolving * 4 * width +
                                   ruled * (delta + decoder.delta_values()) + dense * (up + mlp));
  return columns * rows * element <= std::max(little, weights * float32);
}

} // namespace fvlm::model
