// paged_append.cuh: what a step of decoding appends to pages, as paged_attention.cu attends to it: a row's queries, its
// key and its value, normalized, rotated and rounded.
#pragma once

#include "common/cuda_packs.cuh"
#include "common/cuda_rotary.cuh"
#include "paged_attention.h"

#include <cstdint>

namespace fvlm::plugins {

// The numbers at at(0), at(1) and so on.
template <bool has_whole_packs, int pack, class T, class At>
__device__ Pack<T, pack> load_numbers(const T* from, const At& at) {
  Pack<T, pack> numbers;
  if constexpr (has_whole_packs) {
    numbers.load(from + at(0));
  } else {
    T each[pack];
#pragma unroll
    for (int i = 0; i < pack; ++i) each[i] = from[at(i)];
    numbers.gather(each);
  }
  return numbers;
}

// The angles that a call rotates with, by frequency.
template <int max_dim>
struct Angles {
  float cosines[max_dim / 2], sines[max_dim / 2];

  static __device__ std::uint64_t step_of(const PagedAppend& a, int frequency) {
    return a.frequencies ? rotary_step(a.frequencies[frequency])
                         : rotary_frequency(frequency, a.rotary_dim, a.log2_theta);
  }
  // first_step: of the thread's first frequency.
  __device__ void find(const PagedAppend& a, std::uint64_t first_step, int position) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < a.rotary_dim / 2; i += static_cast<int>(blockDim.x)) {
      sincospif(rotary_angle(i == thread ? first_step : step_of(a, i), position, 1), &sines[i], &cosines[i]);
      if (a.inverse) sines[i] = -sines[i];
    }
  }
};

// A lane's numbers of a vector of the row, normalized and rotated. It reads those that rotate with its own itself.
template <class T, int lanes, int pack, int max_dim>
struct RotatedPiece {
  using Numbers = Pack<T, pack>;
  const PagedAppend& a;
  const Angles<max_dim>& angles;
  const int first;      // the lane's first number
  const bool has_piece; // otherwise what it loads is not its own, and does not count

  // weight: the norm's, or NULL for ones. A value is neither normalized nor rotated.
  template <bool has_whole_packs>
  __device__ Numbers load(const T* vector, const T* weight, bool is_value) const {
    const auto place = [&](int i) { return first + i; };
    const int half = a.rotary_dim / 2;
    const auto partner = [&](int i) {
      const int d = first + i;
      return d >= a.rotary_dim ? d : d < half ? d + half : d - half;
    };
    const Numbers loaded = load_numbers<has_whole_packs, pack>(vector, place),
                  partners = load_numbers<has_whole_packs, pack>(vector, partner);
    float cosine[pack], sine[pack], own[pack], other[pack], factor = 1;
#pragma unroll
    for (int i = 0; i < pack; ++i) { // while the vector is on its way
      const int d = first + i, frequency = d < half ? d : d - half;
      const bool rotates = d < a.rotary_dim;
      const float x = angles.cosines[rotates ? frequency : 0], y = angles.sines[rotates ? frequency : 0];
      cosine[i] = rotates ? x : 1;
      sine[i] = rotates ? (d < half ? -y : y) : 0;
    }
    loaded.widen(own);
    partners.widen(other);
    if (a.has_norm) {
      float square = 0;
#pragma unroll
      for (int i = 0; i < pack; ++i) square = fmaf(own[i], own[i], square);
      square = has_piece ? square : 0;
#pragma unroll
      for (int lane = lanes / 2; lane > 0; lane /= 2) square += __shfl_xor_sync(0xffffffffu, square, lane);
      factor = rsqrtf(square / static_cast<float>(a.head_dim) + a.epsilon);
    }
    if (weight) {
      float own_weights[pack], other_weights[pack];
      load_numbers<has_whole_packs, pack>(weight, place).widen(own_weights);
      load_numbers<has_whole_packs, pack>(weight, partner).widen(other_weights);
#pragma unroll
      for (int i = 0; i < pack; ++i) own[i] *= own_weights[i], other[i] *= other_weights[i];
    }
#pragma unroll
    for (int i = 0; i < pack; ++i) own[i] = factor * (own[i] * cosine[i] + other[i] * sine[i]);
    Numbers rotated;
    rotated.round(own);
    return is_value ? loaded : rotated;
  }
};

// The row's vectors as they are attended to: queries of a tile, the key, the value.
template <class T, int heads, int max_dim>
struct AppendedRow {
  alignas(16) T at[heads + 2][max_dim];

  // A warp loads each vector in turn. count: of queries.
  template <int lanes, int pack>
  __device__ void load(const PagedProblem& p, const PagedAppend& a, int row, int kv_head, int first_head, int count,
                       const RotatedPiece<T, lanes, pack, max_dim>& piece) {
    const int warps = static_cast<int>(blockDim.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
    for (int vector = static_cast<int>(threadIdx.x) / warp_size; vector < count + 2; vector += warps) {
      const bool is_k = vector == count, is_v = vector == count + 1;
      const T* from = is_v   ? static_cast<const T*>(a.v) + row * a.v_row + kv_head * a.v_head
                      : is_k ? static_cast<const T*>(a.k) + row * a.k_row + kv_head * a.k_head
                             : static_cast<const T*>(p.q) + row * p.q_row + (first_head + vector) * p.q_head;
      const T* weight = static_cast<const T*>(is_v ? nullptr : is_k ? a.k_norm : a.q_norm);
      const auto numbers = a.has_whole_packs ? piece.template load<true>(from, weight, is_v)
                                             : piece.template load<false>(from, weight, is_v);
      if (lane < lanes && piece.has_piece) numbers.store(at[vector] + piece.first);
    }
  }
};

// Writes a lane's piece of a key and a value to their page.
template <class T, int pack>
__device__ void write_to_page(const PagedProblem& p, std::int64_t page, int kv_head, int key, int first,
                              const Pack<T, pack>& k, const Pack<T, pack>& v) {
  const std::int64_t in_page = key & ((1 << p.page_shift) - 1);
  k.store(const_cast<T*>(static_cast<const T*>(p.k)) + page * p.k_page + in_page * p.k_row + kv_head * p.k_head +
          first);
  v.store(const_cast<T*>(static_cast<const T*>(p.v)) + page * p.v_page + in_page * p.v_row + kv_head * p.v_head +
          first);
}

} // namespace fvlm::plugins
