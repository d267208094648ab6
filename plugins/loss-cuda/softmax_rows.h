// softmax_rows.h: what happens between the products: a chunk's logits become losses and, in place, their own gradients.
#pragma once
#include <fvlm/cuda.hpp>

namespace fvlm::plugins {

// A chunk's rows. logits: [rows, vocab] at a distance of logits_row elements, a multiple of 16 bytes that holds vocab.
struct LossRows {
  void* logits = nullptr;
  std::int64_t logits_row = 0, rows = 0, vocab = 0, width = 0;
  const std::int64_t* targets = nullptr;
  const void* hidden = nullptr;
  std::int64_t hidden_row = 0;

  float* losses = nullptr;          // out, where not NULL; then the statistics are computed
  float* lse = nullptr;             // out, where not NULL
  const float* known_lse = nullptr; // in, in place of statistics

  const float* d_losses = nullptr; // where not NULL, logits become gradients
  void* masked_hidden = nullptr;   // out: hidden with zeros in rows without a target, [rows, clean_row]
  std::int64_t masked_row = 0;
};

void loss_rows(const fvlm_call& call, fvlm_dtype dtype, const LossRows& rows);

} // namespace fvlm::plugins
