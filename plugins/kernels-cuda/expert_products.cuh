// expert_products.cuh: a warp's part of the products of 16 rows of an expert's weight, two for each thread, with eight
// rows of x, one for each thread: of numbers in 16 bits, and of codes. Both have
//
//   Product(matrix, low_row, high_row, x, count, share)
//   multiply(sums, ready): sums of the low row, then of the high one, with the rows of x that the thread has in
//     mma.sync's result. The first weights are on the way; `ready` waits until x is there.
#pragma once

#include "common/cuda_codes.cuh"
#include "common/cuda_mma.cuh"
#include "experts.h"

namespace fvlm::plugins {

// Which of the warps that divide the summed features among them this one is.
struct Share {
  int part, parts;
};

// ---- numbers in 16 bits ----

constexpr int pack = 8; // numbers that a thread reads at once

// Eight numbers of a row, of `count`. Weights are read once.
template <class T, bool vectorized, bool is_weight>
__device__ uint4 load_pack(const T* row, int first, int count) {
  uint4 bits{};
  if (first >= count) return bits;
  if constexpr (!vectorized) {
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < pack; ++i)
      if (first + i < count)
        words[i / 2] |= static_cast<std::uint32_t>(sdk::bit_cast<std::uint16_t>(row[first + i])) << 16 * (i % 2);
    bits = {words[0], words[1], words[2], words[3]};
  } else if constexpr (is_weight) {
    bits = load_codes(reinterpret_cast<const std::uint8_t*>(row + first));
  } else {
    bits = *reinterpret_cast<const uint4*>(row + first);
  }
  return bits;
}

template <class T, bool vectorized>
class NumberProduct {
 public:
  __device__ NumberProduct(const ExpertMatrix& matrix, std::int64_t low_row, std::int64_t high_row, const T* x,
                           int count, Share share)
      : low_(static_cast<const T*>(matrix.data) + low_row * count),
        high_(static_cast<const T*>(matrix.data) + high_row * count), x_(x), count_(count), share_(share) {}

  template <class Ready>
  __device__ void multiply(float (&sums)[4], const Ready& ready) {
#pragma unroll
    for (int i = 0; i < in_flight; ++i) load_weight(i, i);
    ready();
#pragma unroll
    for (int i = 0; i < in_flight; ++i) load_x(i, i);
    float others[4] = {}; // half of the sums, as each product waits for the one before it
    for (int number = 0; begin_of(number) < count_; number += in_flight)
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        if (begin_of(number + i) >= count_) break;
        mma_16x8x16<T>(sums, {lows_[i].x, highs_[i].x, lows_[i].y, highs_[i].y}, xs_[i].x, xs_[i].y);
        mma_16x8x16<T>(others, {lows_[i].z, highs_[i].z, lows_[i].w, highs_[i].w}, xs_[i].z, xs_[i].w);
        load_weight(i, number + i + in_flight);
        load_x(i, number + i + in_flight);
      }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += others[i];
  }

 private:
  static constexpr int in_flight = 4; // chunks that a warp has on the way

  __device__ int begin_of(int number) const {
    return experts::begin_of_chunk(number, share_.part, share_.parts);
  }
  __device__ void load_weight(int i, int number) {
    const int first = begin_of(number) + in_chunk_;
    lows_[i] = load_pack<T, vectorized, true>(low_, first, count_);
    highs_[i] = load_pack<T, vectorized, true>(high_, first, count_);
  }
  __device__ void load_x(int i, int number) {
    xs_[i] = load_pack<T, vectorized, false>(x_, begin_of(number) + in_chunk_, count_);
  }

  const T *low_, *high_, *x_;
  const int count_, in_chunk_ = static_cast<int>(threadIdx.x) % 4 * pack;
  const Share share_;
  uint4 lows_[in_flight], highs_[in_flight], xs_[in_flight];
};

// ---- codes ----

template <class T, int bits, int together, bool vectorized>
class CodeProduct {
  using Lane = LaneColumns<bits, together>;
  using Element = std::conditional_t<std::is_same_v<T, sdk::BFloat16>, __nv_bfloat16, __half>;
  static constexpr int in_flight = Lane::slices < 4 ? 4 : 2; // parts of a row that a warp has on the way
  static constexpr int pairs = Codes<bits>::columns_of_word / 2;

 public:
  __device__ CodeProduct(const ExpertMatrix& matrix, std::int64_t low_row, std::int64_t high_row, const T* x, int count,
                         Share share)
      : matrix_(matrix), low_row_(low_row), high_row_(high_row), x_(x), count_(count), share_(share) {}

  template <class Ready>
  __device__ void multiply(float (&sums)[4], const Ready& ready) {
#pragma unroll
    for (int i = 0; i < in_flight; ++i) load(i, i);
    ready();
    float of_group[4] = {};
    for (int number = 0; begin_of(number) < count_; number += in_flight)
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        const int begin = begin_of(number + i);
        if (begin >= count_) break;
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          add_word(word_of(lows_[i], word), word_of(highs_[i], word), begin + Lane::column(lane_, word),
                   bits == 4 ? of_group : sums);
          if (bits == 4 && word % together == together - 1) {
            add_scaled(sums, of_group, low_scales_[i][word / together], high_scales_[i][word / together]);
            for (float& sum : of_group) sum = 0;
          }
        }
        load(i, number + i + in_flight);
      }
    if constexpr (bits == 8) {
      float scaled[4] = {};
      add_scaled(scaled, sums, matrix_.scales[low_row_], matrix_.scales[high_row_]);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = scaled[i];
    }
  }

 private:
  __device__ int begin_of(int number) const {
    return (number * share_.parts + share_.part) * Lane::width;
  }

  __device__ static void add_scaled(float (&to)[4], const float (&of)[4], float low, float high) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = fmaf(i < 2 ? low : high, of[i], to[i]);
  }

  // Codes of a part of both rows, and of int4 the scales of their groups.
  __device__ void load(int i, int number) {
    const int begin = begin_of(number);
    lows_[i] = codes_of(low_row_, begin);
    highs_[i] = codes_of(high_row_, begin);
    if constexpr (bits == 4) {
      const int groups = count_ / matrix_.group;
#pragma unroll
      for (int slice = 0; slice < Lane::slices; ++slice) {
        const int column = begin + slice * Lane::slice_width, group = column / matrix_.group;
        const bool is_there = column < count_;
        low_scales_[i][slice] = is_there ? __ldg(matrix_.scales + low_row_ * groups + group) : 0;
        high_scales_[i][slice] = is_there ? __ldg(matrix_.scales + high_row_ * groups + group) : 0;
      }
    }
  }

  __device__ uint4 codes_of(std::int64_t row, int begin) const {
    const std::uint8_t* const codes =
        static_cast<const std::uint8_t*>(matrix_.data) + row * (static_cast<std::int64_t>(count_) * bits / 8);
    if constexpr (vectorized) {
      return Lane::load(codes, begin, lane_, count_);
    } else {
      std::uint32_t words[4] = {};
#pragma unroll
      for (int word = 0; word < 4; ++word)
        if (const int column = begin + Lane::column(lane_, word); column < count_)
#pragma unroll
          for (int byte = 0; byte < 4; ++byte)
            words[word] |= static_cast<std::uint32_t>(codes[column * bits / 8 + byte]) << 8 * byte;
      return {words[0], words[1], words[2], words[3]};
    }
  }

  // All threads take part in a product, those behind the row's end with numbers of x that are 0.
  __device__ void add_word(std::uint32_t low, std::uint32_t high, int column, float (&sums)[4]) const {
    std::uint32_t a[pairs], b[pairs], x[pairs];
    Codes<bits>::template widen<Element>(low, a);
    Codes<bits>::template widen<Element>(high, b);
    load_x(column, x);
    if constexpr (bits == 4) {
      std::uint32_t ordered[4];
      Codes<4>::order(x, ordered);
      mma_16x8x16<T>(sums, {a[0], b[0], a[1], b[1]}, ordered[0], ordered[1]);
      mma_16x8x16<T>(sums, {a[2], b[2], a[3], b[3]}, ordered[2], ordered[3]);
    } else {
      mma_16x8x16<T>(sums, {a[0], b[0], a[1], b[1]}, x[0], x[1]);
    }
  }

  __device__ void load_x(int column, std::uint32_t (&x)[pairs]) const {
#pragma unroll
    for (int i = 0; i < pairs; ++i) x[i] = 0;
    if (column >= count_) return;
    if constexpr (!vectorized) {
#pragma unroll
      for (int i = 0; i < 2 * pairs; ++i)
        x[i / 2] |= static_cast<std::uint32_t>(sdk::bit_cast<std::uint16_t>(x_[column + i])) << 16 * (i % 2);
    } else {
      using Words = std::conditional_t<pairs == 4, uint4, uint2>;
      const Words words = *reinterpret_cast<const Words*>(x_ + column);
#pragma unroll
      for (int i = 0; i < pairs; ++i) x[i] = reinterpret_cast<const std::uint32_t*>(&words)[i];
    }
  }

  const ExpertMatrix matrix_;
  const std::int64_t low_row_, high_row_;
  const T* const x_;
  const int count_, lane_ = static_cast<int>(threadIdx.x) % 4;
  const Share share_;
  uint4 lows_[in_flight], highs_[in_flight];
  float low_scales_[in_flight][Lane::slices], high_scales_[in_flight][Lane::slices]; // of int4
};

} // namespace fvlm::plugins
