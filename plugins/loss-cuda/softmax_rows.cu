// softmax_rows.cu: softmax, cross-entropy and the gradient of logits in place. One block per row of logits, which is
// read once and kept in registers if the vocabulary fits. Any dtype and alignment; used where softmax_stats.cu does not
// apply.
//
// Measured on an H100 for a chunk of 512 tokens and a vocabulary of 49,152 in bf16 (bench/LOG.md, 2026-11-22): 38 us,
// 2.6 TB/s.
#include "common/cuda_math.cuh"
#include "common/cuda_packs.cuh"
#include "softcap.cuh"
#include "softmax_rows.h"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int threads = 512, warps = threads / 32;
constexpr int max_kept = 12; // packs of 16 bytes that a thread keeps: 49,152 words of 16 bits per block

// exp(x - shift). For 16-bit logits the fast exponential is accurate enough.
template <class T>
__device__ float exponential(float x, float shift) {
  if constexpr (std::is_same_v<T, float>)
    return expf(x - shift);
  else
    return exp2f(fmaf(x, log2_e, -shift * log2_e));
}

template <class T>
__device__ float bounded(const Softcap& softcap, float logit) {
  if constexpr (std::is_same_v<T, float>)
    return softcap.bound * tanhf(logit / softcap.bound);
  else
    return bound_fast(softcap, logit);
}

// A reduction over the block. The result has the same bits in every thread, independent of scheduling.
template <class Combine>
__device__ float block_reduce(float value, float* scratch, const Combine& combine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  __syncthreads(); // the previous reduction may still be read
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
#pragma unroll
  for (int i = 1; i < warps; ++i) value = combine(value, scratch[i]);
  return value;
}

// The packs of a row that belong to this thread: up to `kept` of them in registers, or read again each time if `kept`
// is 0.
template <class T, int kept, bool capped>
struct Row {
  static constexpr int width = pack_size<T>;
  using Vector = Pack<T, width>;
  T* logits;
  Softcap softcap;
  int vectors, vocab;
  Vector held[kept > 0 ? kept : 1];

  __device__ Row(T* row, const Softcap& softcap_, int64_t vocab_)
      : logits(row), softcap(softcap_), vectors(static_cast<int>((vocab_ + width - 1) / width)),
        vocab(static_cast<int>(vocab_)) {
    if constexpr (kept > 0) {
#pragma unroll
      for (int i = 0; i < kept; ++i)
        if (const int at = i * threads + static_cast<int>(threadIdx.x); at < vectors) held[i].load(logits + at * width);
    }
  }

  // Calls body(index of the pack, its values), which are bounded where there is a softcap; values past the vocabulary
  // are -infinity.
  template <class Body>
  __device__ void each(const Body& body) const {
    if constexpr (kept > 0) {
#pragma unroll
      for (int i = 0; i < kept; ++i)
        if (const int at = i * threads + static_cast<int>(threadIdx.x); at < vectors) one(at, held[i], body);
    } else {
      for (int at = static_cast<int>(threadIdx.x); at < vectors; at += threads) {
        Vector vector;
        vector.load(logits + at * width);
        one(at, vector, body);
      }
    }
  }

 private:
  template <class Body>
  __device__ void one(int at, const Vector& vector, const Body& body) const {
    float values[width];
    vector.widen(values);
    if constexpr (capped) {
#pragma unroll
      for (float& value : values) value = bounded<T>(softcap, value);
    }
    if ((at + 1) * width > vocab) {
#pragma unroll
      for (int j = 0; j < width; ++j)
        if (at * width + j >= vocab) values[j] = -INFINITY;
    }
    body(at, values);
  }
};

template <class T>
__device__ void copy_masked_hidden(const LossRows& a, int64_t row, bool has_target) {
  const T* from = static_cast<const T*>(a.hidden) + row * a.hidden_row;
  T* to = static_cast<T*>(a.masked_hidden) + row * a.masked_row;
  const bool whole = a.width % pack_size<T> == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
  if (whole) {
    for (int64_t i = threadIdx.x; i < a.width / pack_size<T>; i += threads)
      reinterpret_cast<uint4*>(to)[i] = has_target ? reinterpret_cast<const uint4*>(from)[i] : uint4{0, 0, 0, 0};
  } else {
    for (int64_t i = threadIdx.x; i < a.width; i += threads) to[i] = has_target ? from[i] : T(0.0f);
  }
}

template <class T, int kept, bool capped>
__global__ void __launch_bounds__(threads, 2) rows_kernel(LossRows a) {
  __shared__ float scratch[warps];
  const int64_t r = blockIdx.x;
  const int64_t target = a.targets[r];
  T* logits = static_cast<T*>(a.logits) + r * a.logits_row;
  if (a.masked_hidden) copy_masked_hidden<T>(a, r, target >= 0);
  if (target < 0) {
    if (threadIdx.x == 0) {
      if (a.losses) a.losses[r] = 0;
      if (a.lse) a.lse[r] = 0;
    }
    if (a.d_losses)
      for (int64_t at = threadIdx.x; at < (a.vocab + pack_size<T> - 1) / pack_size<T>; at += threads)
        reinterpret_cast<uint4*>(logits)[at] = {0, 0, 0, 0};
    return;
  }

  const Row<T, kept, capped> row(logits, a.softcap, a.vocab);
  float row_lse;
  if (a.known_lse) {
    row_lse = a.known_lse[r];
  } else {
    // read before it is overwritten
    float label_logit = target < a.vocab ? static_cast<float>(logits[target]) : NAN;
    if constexpr (capped) label_logit = bounded<T>(a.softcap, label_logit);
    float largest = -INFINITY;
    row.each([&](int, const float(&x)[pack_size<T>]) {
#pragma unroll
      for (const float value : x) largest = fmaxf(largest, value);
    });
    largest = block_reduce(largest, scratch, [](float one, float other) { return fmaxf(one, other); });
    float sum = 0;
    row.each([&](int, const float(&x)[pack_size<T>]) {
#pragma unroll
      for (const float value : x) sum += exponential<T>(value, largest);
    });
    sum = block_reduce(sum, scratch, [](float one, float other) { return one + other; });
    row_lse = largest + logf(sum);
    if (threadIdx.x == 0) {
      if (a.losses) a.losses[r] = row_lse - label_logit;
      if (a.lse) a.lse[r] = row_lse;
    }
  }
  if (!a.d_losses) return;

  const float d_loss = a.d_losses[r];
  row.each([&](int at, const float(&x)[pack_size<T>]) {
    float d[pack_size<T>];
#pragma unroll
    for (int j = 0; j < pack_size<T>; ++j) d[j] = exponential<T>(x[j], row_lse) * d_loss;
    if (at == target / pack_size<T>) {
#pragma unroll
      for (int j = 0; j < pack_size<T>; ++j)
        if (at * pack_size<T> + j == target) d[j] -= d_loss;
    }
    if constexpr (capped) {
#pragma unroll
      for (int j = 0; j < pack_size<T>; ++j) d[j] *= fmaxf(slope_of(a.softcap, x[j]), 0); // 0 past the vocabulary
    }
    write(row.logits + at * pack_size<T>, d);
  });
}

template <class T, int kept, bool capped = false>
void launch_rows(const fvlm_call& call, const LossRows& a) {
  rows_kernel<T, kept, capped><<<static_cast<unsigned>(a.rows), threads, 0, stream_of(call)>>>(a);
  check_cuda(cudaGetLastError(), "launch");
}

template <class T>
void launch_rows(const fvlm_call& call, const LossRows& a) {
  const int64_t vectors = (a.vocab + pack_size<T> - 1) / pack_size<T>;
  // With a softcap, keeping more packs would exceed the registers.
  if (a.softcap.bound != 0)
    vectors <= 2 * threads ? launch_rows<T, 2, true>(call, a) : launch_rows<T, 0, true>(call, a);
  else if (vectors <= 2 * threads)
    launch_rows<T, 2>(call, a);
  else if (vectors <= max_kept * threads)
    launch_rows<T, max_kept>(call, a);
  else
    launch_rows<T, 0>(call, a);
}

} // namespace

void loss_rows(const fvlm_call& call, fvlm_dtype dtype, const LossRows& rows) {
  if (rows.rows <= 0) return;
  dispatch<float, BFloat16, Half>(dtype,
                                  [&](auto element) { launch_rows<typename decltype(element)::type>(call, rows); });
}

} // namespace fvlm::plugins
