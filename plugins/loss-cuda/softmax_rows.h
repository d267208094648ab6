// softmax_rows.h: softmax and cross-entropy of a chunk of logits in global memory, which are overwritten with their
// gradients. Used where the fused kernel (softmax_stats.h) does not apply.
#pragma once
#include "softcap.h"

#include <fvlm/cuda.hpp>

namespace fvlm::plugins {

// The rows of a chunk. logits: [rows, vocab] with a row stride of logits_row elements, a multiple of 16 bytes.
struct LossRows {
  void* logits = nullptr;
  std::int64_t logits_row = 0, rows = 0, vocab = 0, width = 0;
  Softcap softcap{};
  const std::int64_t* targets = nullptr;
  const void* hidden = nullptr;
  std::int64_t hidden_row = 0;

  float* losses = nullptr;          // output; NULL: not required
  float* lse = nullptr;             // output; NULL: not required
  const float* known_lse = nullptr; // logsumexp from the forward, which is then not computed again

  const float* d_losses = nullptr; // if not NULL, logits are overwritten with their gradients
  void* masked_hidden = nullptr;   // output: hidden with zeros in rows without a target, [rows, masked_row]
  std::int64_t masked_row = 0;
};

void loss_rows(const fvlm_call& call, fvlm_dtype dtype, const LossRows& rows);

} // namespace fvlm::plugins
