// delta_rule.cuh: what the kernels of the gated delta rule share: where a row's operands are, and its factors.
#pragma once

#include "common/cuda_packs.cuh"
#include "delta_rule.h"

namespace fvlm::plugins {

inline constexpr float delta_rule_length_epsilon = 1e-6f;

// Rows of a segment.
struct SegmentRows {
  int first, end; // end: of the last row, plus 1
  int first_chunk;
};

// Segment `segments` is what follows all others: padding.
__device__ inline SegmentRows segment_rows(const DeltaRule& rule, int segment) {
  const int rows = static_cast<int>(rule.rows), first = min(rule.cu_seqlens[segment], rows);
  const int end = segment < rule.segments ? min(rule.cu_seqlens[segment + 1], rows) : rows;
  return {first, end, first / delta_rule_chunk + segment};
}

template <class Element>
__device__ const Element* query_row(const DeltaRule& rule, int row, int key_head) {
  return static_cast<const Element*>(rule.qkv.data) + row * rule.qkv.stride + key_head * delta_rule_dim;
}
template <class Element>
__device__ const Element* key_row(const DeltaRule& rule, int row, int key_head) {
  return query_row<Element>(rule, row, rule.key_heads + key_head);
}

// What a row and a head make of their gates.
struct RowGates {
  float step, log_decay; // step: a + step_bias; log_decay: g
  float rate;            // beta
};

// The decay's factor of a head: -exp(log_decay).
template <class Element>
__device__ float decay_factor(const DeltaRule& rule, int head) {
  return -expf(static_cast<float>(static_cast<const Element*>(rule.log_decay)[head]));
}

template <class Element>
__device__ RowGates row_gates(const DeltaRule& rule, int row, int head, float factor) {
  const Element* const gates = static_cast<const Element*>(rule.gates.data) + row * rule.gates.stride;
  const float a = static_cast<float>(gates[rule.heads + head]), b = static_cast<float>(gates[head]);
  const float step = a + static_cast<float>(static_cast<const Element*>(rule.step_bias)[head]);
  const float softplus = step > 20 ? step : log1pf(expf(step));
  return {step, factor * softplus, 1 / (1 + expf(-b))};
}

// A row of 128 that a warp reads: thread i has elements i, i + 32, i + 64 and i + 96.
struct WarpRow {
  float at[4];
  template <class Element>
  __device__ void load(const Element* row) {
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] = static_cast<float>(row[threadIdx.x % warp_size + warp_size * i]);
  }
  __device__ float dot(const WarpRow& other) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum = fmaf(at[i], other.at[i], sum);
    return warp_sum(sum);
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] *= factor;
  }
  // Divides by the length. Returns the factor.
  __device__ float normalize() {
    const float factor = rsqrtf(dot(*this) + delta_rule_length_epsilon);
    scale(factor);
    return factor;
  }
  template <class Element>
  __device__ void store(Element* row) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) row[threadIdx.x % warp_size + warp_size * i] = Element(at[i]);
  }
};

// 1 / the root of key_dim, which queries are multiplied by.
__device__ inline float query_scale() {
  return rsqrtf(static_cast<float>(delta_rule_dim));
}

} // namespace fvlm::plugins
