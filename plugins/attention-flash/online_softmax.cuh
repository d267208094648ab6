// online_softmax.cuh: the softmax of 16 rows of scores that come a few keys at a time, in the accumulators of a warp.
#pragma once

#include "tiles.cuh"

#include <cmath>

namespace fvlm::plugins {

// The running maximum and sum of the thread's two rows.
struct OnlineSoftmax {
  float scale; // of scores, times log2 e: probabilities are powers of 2
  float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {};

  // Turns scores into unnormalized probabilities and rescales what was accumulated before to the new maximum.
  template <int size>
  __device__ void update(float (&scores)[size][4], float (&sum)[blocks][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float new_max = row_max[h];
#pragma unroll
      for (const auto& score : scores) new_max = fmaxf(new_max, fmaxf(score[2 * h], score[2 * h + 1]));
      new_max = quad_max(new_max);
      const float zero = new_max == -INFINITY ? 0 : new_max * scale; // all keys so far are masked
      const float rescale = exp2_approx(row_max[h] * scale - zero);
      row_max[h] = new_max;
      row_sum[h] *= rescale;
#pragma unroll
      for (auto& score : scores)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) row_sum[h] += score[i] = exp2_approx(score[i] * scale - zero);
#pragma unroll
      for (auto& block : sum) block[2 * h] *= rescale, block[2 * h + 1] *= rescale;
    }
  }

  // The same, and adds the values of these keys, as the scores weight them.
  template <class T, int size>
  __device__ void accumulate(float (&scores)[size][4], const Tile& values, float (&sum)[blocks][4]) {
    update(scores, sum);
#pragma unroll
    for (int step = 0; step < size / 2; ++step) {
      const Fragment weights = to_a_fragment<T>(scores[2 * step], scores[2 * step + 1]);
#pragma unroll
      for (int pair = 0; pair < blocks / 2; ++pair)
        mma_16x8x16<T>(sum[2 * pair], sum[2 * pair + 1], weights, load_b_transposed(values, 16 * step, pair));
    }
  }
};

} // namespace fvlm::plugins
