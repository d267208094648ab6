// loss_kernels.h: the interface of the code that is compiled once per instruction set.
//
// Logits are in units of log 2, so that exponentials are powers of two: packed hidden rows are multiplied by log2 e.
#pragma once

#include "common/level_table.h"

#include <cstdint>

namespace fvlm::plugins {

// Some rows (tokens that have a target) and the whole vocabulary, which is split into blocks.
struct LossChunk {
  const void* weight; // [vocab, width]
  int64_t weight_row;
  bool is_bfloat16; // whether the elements of hidden and weight are bfloat16 instead of float32
  int64_t width, vocab, block;
  float softcap; // in units of log 2, as the logits; 0: none
  int64_t rows;
  const int64_t* targets; // [rows]
  float* hidden;          // [rows, padded_width(width)], times log2 e
  float* hidden_panels;   // [rows, padded_width(width)] without the factor, in panels of columns; for d_weight

  float* logits;        // [blocks, rows, block], after the softcap; NULL: not kept
  float *maxima, *sums; // [blocks, rows]: maximum of a block's logits, and the sum of 2^(logit - maximum)
  float* target_logits; // [rows]
  float* log_sum_exps;  // [rows]: log2 of the sum of 2^logit

  const float* d_losses; // [rows]
  float* d_weight;       // [vocab, width] or NULL
  int64_t d_weight_row;
  bool add_d_weight; // whether to accumulate instead of overwriting
};

struct LossKernels {
  int64_t (*padded_width)(int64_t width);
  // Packs rows tokens[0 .. chunk.rows) of hidden into chunk.hidden and, where that is not NULL, chunk.hidden_panels.
  void (*pack_hidden)(const LossChunk& chunk, const void* hidden, int64_t hidden_row, const int64_t* tokens);
  // Floats of scratch for logits_block and gradient_block; `rows` is the size of the largest chunk.
  int64_t (*logits_scratch)(int64_t width, int64_t block);
  int64_t (*gradient_scratch)(int64_t width, int64_t block, int64_t rows);
  // Fills maxima, sums, target_logits and logits for one block.
  void (*logits_block)(const LossChunk& chunk, int64_t block, float* scratch);
  // Computes log_sum_exps from the maxima and sums of all blocks.
  void (*reduce_log_sum_exps)(const LossChunk& chunk);
  // Adds a block's contribution to d_hidden [rows, padded_width] (overwrites it if `first`; NULL: not required) and
  // d_weight.
  void (*gradient_block)(const LossChunk& chunk, int64_t block, float* d_hidden, bool first, float* scratch);
  // Row tokens[r] of d_hidden = sum over parts of parts[part][r]; parts are `part_size` floats apart.
  void (*finish_d_hidden)(const LossChunk& chunk, const float* parts, int64_t part_count, int64_t part_size,
                          const int64_t* tokens, int64_t first, int64_t last, void* d_hidden, int64_t d_hidden_row);
};

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(LossKernels, loss_kernels)
