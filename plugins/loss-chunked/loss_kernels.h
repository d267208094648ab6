// loss_kernels.h: what the plugin's C++ side asks of the code that is compiled for each instruction set.
//
// Logits are kept in units of log 2, so that exponentials are powers of two: hidden rows are packed times log2 e.
#pragma once

#include "common/level_table.h"

#include <cstdint>

namespace fvlm::plugins {

// Some rows (tokens that have a loss) against the whole vocabulary, which is cut into blocks.
struct LossChunk {
  const void* weight; // [vocab, width]
  int64_t weight_row;
  bool bfloat; // the elements of hidden and weight are bfloat16, else float32
  int64_t width, vocab, block;
  int64_t rows;
  const int64_t* targets; // [rows]
  float* hidden;          // [rows, padded_width(width)], times log2 e
  float* hidden_panels;   // [rows, padded_width(width)] without the factor, by panels of columns; for d_weight

  float* logits;        // [blocks, rows, block]; NULL: not kept
  float *maxima, *sums; // [blocks, rows]: of a block's logits, and of 2^(logit - maximum)
  float* target_logits; // [rows]
  float* log_sums;      // [rows]: log2 of the sum of 2^logit

  const float* d_losses; // [rows]
  float* d_weight;       // [vocab, width] or NULL
  int64_t d_weight_row;
  bool add_d_weight; // 0: overwrite
};

struct LossKernels {
  int64_t (*padded_width)(int64_t width);
  // Packs rows tokens[0 .. chunk.rows) of hidden into chunk.hidden and, where that is not NULL, chunk.hidden_panels.
  void (*pack_hidden)(const LossChunk& chunk, const void* hidden, int64_t hidden_row, const int64_t* tokens);
  // Floats of scratch for each of the two functions that follow; rows is the largest chunk's.
  int64_t (*logits_scratch)(int64_t width, int64_t block);
  int64_t (*gradient_scratch)(int64_t width, int64_t block, int64_t rows);
  // Fills maxima, sums, target_logits and logits for one block.
  void (*logits_block)(const LossChunk& chunk, int64_t block, float* scratch);
  // Fills log_sums from maxima and sums of all blocks.
  void (*combine)(const LossChunk& chunk);
  // Adds a block's part into d_hidden [rows, padded_width] (overwrites it if `first`; NULL: not wanted) and d_weight.
  void (*gradient_block)(const LossChunk& chunk, int64_t block, float* d_hidden, bool first, float* scratch);
  // Row tokens[r] of d_hidden = sum over parts of parts[part][r]; parts are `part_size` floats apart.
  void (*finish_d_hidden)(const LossChunk& chunk, const float* parts, int64_t part_count, int64_t part_size,
                          const int64_t* tokens, int64_t first, int64_t last, void* d_hidden, int64_t d_hidden_row);
};

} // namespace fvlm::plugins

FVLM_LEVEL_TABLE(LossKernels, loss_kernels)
