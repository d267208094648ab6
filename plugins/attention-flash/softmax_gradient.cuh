// softmax_gradient.cuh: the backward of softmax: probabilities recomputed from logsumexp, d_scores = p * (d_p - delta),
// and delta = d_out . out.
#pragma once

#include "warp_rows.cuh"

namespace fvlm::plugins {

// d_out . out of one pack. `compensation` holds one byte per element of `out`, see Problem::out_compensation.
template <class T>
__device__ float dot(const Pack<T, pack>& d_out, const Pack<T, pack>& out, uint2 compensation) {
  float a[pack], b[pack], sum = 0;
  d_out.widen(a);
  out.widen(b);
#pragma unroll
  for (int i = 0; i < pack; ++i) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      // Byte i, sign-extended, moved to bits 16 to 23.
      std::int32_t more;
      asm("prmt.b32 %0, %1, 0, %2;"
          : "=r"(more)
          : "r"(i < 4 ? compensation.x : compensation.y), "r"(0x8804 | 0x1110 * (i % 4)));
      b[i] = __int_as_float(__float_as_int(b[i]) + more);
    }
    sum += a[i] * b[i];
  }
  return sum;
}

// Turns scores into probabilities and their gradients into gradients of scaled scores. Masked elements (visible(i) is
// false) get probability 0.
template <class Visible>
__device__ void softmax_gradient(float (&scores)[4], float (&d_weights)[4], float scale, const float (&row_lse)[4],
                                 const float (&delta)[4], const Visible& visible) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scores[i] = visible(i) ? exp2_approx(scores[i] * scale - row_lse[i]) : 0;
    d_weights[i] = scores[i] * (d_weights[i] - delta[i]);
  }
}

// A warp's rows of `out` and of its compensation in registers, eight threads per row.
template <class T>
class Outputs {
 public:
  __device__ Outputs(const Problem& p, const WarpRows& own) {
#pragma unroll
    for (int n = 0; n < loads; ++n) {
      const int flat = own.clamped(own.first + n * rows_in_flight + lane_index() / packs), index = lane_index() % packs;
      out_[n].load(own.at<T>(p.out, flat) + index * pack);
      compensation_[n] = uint2{};
      if (p.out_compensation)
        compensation_[n] = reinterpret_cast<const uint2*>(
            p.out_compensation + (std::int64_t{own.token(flat)} * p.heads_q + own.head_of(flat)) * head_dim)[index];
    }
  }
  // delta of the thread's two accumulator rows.
  __device__ void deltas(const Tile& d_out, float (&delta)[2]) const {
#pragma unroll
    for (int n = 0; n < loads; ++n) {
      Pack<T, pack> one;
      one.load(d_out.at<T>(n * rows_in_flight + lane_index() / packs, lane_index() % packs));
      float sum = quad_sum(dot<T>(one, out_[n], compensation_[n]));
      sum += __shfl_xor_sync(0xffffffffu, sum, 4);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = lane_index() / 4 + 8 * h;
        const float found = __shfl_sync(0xffffffffu, sum, row % rows_in_flight * packs);
        if (row / rows_in_flight == n) delta[h] = found;
      }
    }
  }

 private:
  static constexpr int rows_in_flight = warp_size / packs, loads = rows_of_warp / rows_in_flight;
  Pack<T, pack> out_[loads];
  uint2 compensation_[loads];
};

} // namespace fvlm::plugins
