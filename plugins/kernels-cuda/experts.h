// experts.h: a mixture of experts of few rows: its operands, with checked pointers and strides, and how its work is
// divided. What is computed of sizes alone is here, for tests on a host.
#pragma once

#include "common/cuda_rows.h"

#include <algorithm>
#include <climits>
#include <cstdint>

namespace fvlm::plugins {

namespace experts {

// Rows of an expert that share one reading of its weights, as many as mma.sync multiplies at once. An expert with more
// rows fills several slots, whose blocks run beside each other and find the weights in the L2 cache.
inline constexpr int slot_rows = 8;
// Where each expert has more rows than that on average, slots are filled, and reading x and the weights again takes
// the L2 cache longer than memory takes for the weights: then a grouped product is faster.
inline constexpr std::int64_t most_rows_of_expert = 4;
inline constexpr std::int64_t most_rows = 64;     // bits of a mask
inline constexpr std::int64_t most_experts = 512; // whose scores the threads of a warp hold
inline constexpr std::int64_t most_chosen = 32;   // one for each thread of a warp

inline bool are_few(std::int64_t rows, std::int64_t experts, std::int64_t chosen) {
  return rows <= most_rows && experts <= most_experts && chosen <= std::min(most_chosen, experts) &&
         rows * chosen <= most_rows_of_expert * experts;
}

// Upper bound of the sum over experts of rows / slot_rows, rounded up: a slot for each expert that may be chosen, and
// one for every further slot_rows pairs of a row and an expert.
inline std::int64_t most_slots(std::int64_t rows, std::int64_t experts, std::int64_t chosen) {
  const std::int64_t pairs = rows * chosen, used = std::min(pairs, experts);
  return used + (rows > slot_rows ? (pairs - used) / slot_rows : 0);
}

// A warp reads `chunk` numbers of 16 rows of a weight at once, 8 with each thread, and two chunks one behind the other.
// The warps that share the rows take such pairs of chunks in turn: where number `number` of a warp begins.
inline constexpr int chunk = 32;
__host__ __device__ inline int begin_of_chunk(int number, int part, int parts) {
  return ((number / 2 * parts + part) * 2 + number % 2) * chunk;
}

} // namespace experts

// The matrices of all experts, one behind the other: numbers, or codes with scales (fvlm/quantizer.h).
struct ExpertMatrix {
  const void* data = nullptr;
  const float* scales = nullptr;
  int group = 0; // columns that share a scale of int4
};

struct Experts {
  fvlm_dtype dtype; // 16 bits
  int rows, width, inner, experts, chosen, slots;
  Rows x, logits, y;
  const void* bias; // NULL: none
  ExpertMatrix gate_up, down;
  int weight_bits;          // 16, or 8 or 4 of codes
  bool sigmoid, normalized; // how scores become weights
  float epsilon, scale;
  bool vectorized; // x and the weights can be read 16 bytes at a time
  // In the workspace:
  int *slot_experts, *slot_pairs; // of each slot its expert, -1: none; of its rows the pairs, row * chosen + k, or -1
  float* shares;                  // [rows, chosen], weights of the sum
  void* hidden;                   // [rows, chosen, inner]
  float* outputs;                 // [rows, chosen, width]
};

void mix_experts(const Device& device, const Experts& experts);

} // namespace fvlm::plugins
