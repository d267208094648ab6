// gemm_skinny_epilogue.cuh: what a tile of a skinny product goes through behind its sums: partial sums in shared
// memory, bias, residual, GELU, its derivative or compensation, and column sums.
#pragma once

#include "common/cuda_cluster.cuh"
#include "common/cuda_gelu.cuh"
#include "common/cuda_packs.cuh"
#include "gemm_skinny.h"

namespace fvlm::plugins {
namespace {

// A matrix that reads as zeros past its ends.
template <class T, bool vectorized>
struct Operand {
  const T* data;
  std::int64_t stride;
  int rows, columns;

  template <int count>
  __device__ Pack<T, count> load(int row, int first) const {
    Pack<T, count> part{};
    const T* from = data + row * stride + first;
    if constexpr (vectorized) {
      if (row < rows && first < columns) part.load(from);
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i)
        if (row < rows && first + i < columns)
          part.bits.at[i / 2] |= static_cast<std::uint32_t>(sdk::bit_cast<std::uint16_t>(from[i])) << 16 * (i % 2);
    }
    return part;
  }
};

struct Problem : SkinnyGemm {
  int rows, inner, width, share; // share: of the inner dimension, per block of a cluster
};

// What the epilogue does with the sums: adds bias and residual; also applies GELU; multiplies by its derivative; or
// also stores what rounding loses.
enum class Epilogue { bias_residual, gelu, gelu_derivative, compensated };

// Four neighbouring columns of a row.
template <class T, bool vectorized>
__device__ Pack<T, 4> load_quad(const Rows& from, int row, int column, int width) {
  const Operand<T, vectorized> operand{static_cast<const T*>(from.data), from.stride, from.data ? row + 1 : 0, width};
  return operand.template load<4>(row, column);
}
template <class T, bool vectorized>
__device__ void store_quad(const Rows& to, int row, int column, int width, const Pack<T, 4>& quad) {
  T* const at = static_cast<T*>(to.data) + row * to.stride + column;
  if constexpr (vectorized) {
    quad.store(at);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i < width) at[i] = sdk::bit_cast<T>(static_cast<std::uint16_t>(quad.bits.at[i / 2] >> 16 * (i % 2)));
  }
}

// Four results that a thread finishes, with the epilogue's operands.
template <class T, bool vectorized, Epilogue epilogue>
struct OutputQuad {
  int row, column;
  Pack<T, 4> bias, residual, compensation, gelu_input;

  __device__ void load(const Problem& p) {
    const auto load = [&](const Rows& from, int operand_row) {
      return load_quad<T, vectorized>(from, operand_row, column, p.width);
    };
    if constexpr (epilogue != Epilogue::gelu_derivative) bias = load({const_cast<void*>(p.bias), 0}, 0);
    if constexpr (epilogue == Epilogue::bias_residual || epilogue == Epilogue::compensated)
      residual = load(p.residual, row);
    if constexpr (epilogue == Epilogue::compensated) compensation = load(p.compensation, row);
    if constexpr (epilogue == Epilogue::gelu_derivative) gelu_input = load(p.gelu_input, row);
  }
  __device__ void store(const Problem& p, float (&values)[4]) const {
    float other[4];
    const auto add = [&](const Pack<T, 4>& quad) {
      quad.widen(other);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] += other[i];
    };
    const auto store = [&](const Rows& to, const Pack<T, 4>& quad) {
      store_quad<T, vectorized>(to, row, column, p.width, quad);
    };
    if constexpr (epilogue != Epilogue::gelu_derivative) add(bias);
    if constexpr (epilogue == Epilogue::bias_residual || epilogue == Epilogue::compensated) add(residual);
    if constexpr (epilogue == Epilogue::compensated) add(compensation);
    if constexpr (epilogue == Epilogue::gelu_derivative) {
      gelu_input.widen(other);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] *= gelu_derivative<T>(other[i]);
    }
    Pack<T, 4> rounded;
    rounded.round(values);
    if constexpr (epilogue == Epilogue::gelu) {
      if (p.sum.data) store(p.sum, rounded);
      rounded.widen(values);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = gelu<T>(values[i]);
      rounded.round(values);
    }
    store(p.y, rounded);
    if constexpr (epilogue == Epilogue::compensated) {
      Pack<T, 4> compensation;
      rounded.widen(other);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] -= other[i];
      compensation.round(values);
      store(p.y_compensation, compensation);
    }
  }
};

// The address of a warp's partial sum in shared memory.
template <bool weight_transposed, class Tile>
__device__ float* partial_address(float* parts, int part, int row, int column) {
  return parts + (part * Tile::rows + row) * Tile::template stride<weight_transposed> + column;
}

template <bool weight_transposed, class Tile, int widths, class SumAt>
__device__ void store_partial(const SumAt& sum_at, float* parts, int part, int first_row, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 8 * half + lane / 4;
    if constexpr (weight_transposed) {
      float* const at = partial_address<weight_transposed, Tile>(parts, part, row, lane % 4 * 2 * widths);
#pragma unroll
      for (int i = 0; i < 2 * widths; i += 4) {
        const auto sum = [&](int of) { return sum_at(of % widths, 2 * half + of / widths); };
        *reinterpret_cast<float4*>(at + i) = {sum(i), sum(i + 1), sum(i + 2), sum(i + 3)};
      }
    } else {
      float* const at = partial_address<weight_transposed, Tile>(parts, part, row, lane % 4 * 2);
#pragma unroll
      for (int w = 0; w < widths; ++w)
        *reinterpret_cast<float2*>(at + 8 * w) = {sum_at(w, 2 * half), sum_at(w, 2 * half + 1)};
    }
  }
}

// The epilogue: adds up partial sums. Each block of a cluster finishes its share of the tile.
template <class T, bool vectorized, bool weight_transposed, Epilogue epilogue, class Tile>
struct RunEpilogue {
  static constexpr bool may_sum_rows = epilogue == Epilogue::gelu_derivative && Tile::finishes_all_rows();
  static constexpr int blocks = Tile::blocks, each = Tile::groups / blocks,
                       of_thread = (each + Tile::threads - 1) / Tile::threads;
  const Problem& p;
  float4* const shared; // first [blocks][each] sums of the cluster, then this block's partial sums
  const int first_column, thread = static_cast<int>(threadIdx.x);
  OutputQuad<T, vectorized, epilogue> quads[of_thread];

  __device__ static int rank() { return blocks > 1 ? static_cast<int>(blockIdx.x) % blocks : 0; }
  __device__ float* parts() const { return reinterpret_cast<float*>(shared + (blocks > 1 ? blocks * each : 0)); }
  template <class Body>
  __device__ void for_each_own(const Body& body) {
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
      const int own = thread + i * Tile::threads;
      if (own < each && quads[i].row < p.rows && quads[i].column < p.width) body(quads[i], own);
    }
  }
  // Loads the epilogue's operands ahead of the product.
  __device__ RunEpilogue(const Problem& problem, float4* memory, int first_row, int first)
      : p(problem), shared(memory), first_column(first) {
#pragma unroll
    for (int i = 0; i < of_thread; ++i) {
      const int group = rank() * each + thread + i * Tile::threads;
      quads[i].row = first_row + group / (Tile::columns / 4);
      quads[i].column = first_column + group % (Tile::columns / 4) * 4;
    }
    for_each_own([&](auto& quad, int) { quad.load(p); });
  }
  __device__ float4* group_address(int part, int group) const {
    return reinterpret_cast<float4*>(partial_address<weight_transposed, Tile>(
        parts(), part, group / (Tile::columns / 4), group % (Tile::columns / 4) * 4));
  }
  __device__ float4 sum_partials(int group) const {
    float4 sum{};
#pragma unroll
    for (int i = 0; i < Tile::parts; ++i) add(sum, *group_address(i, group));
    return sum;
  }
  // Column sums of the finished values, which replaced the first partial sums. All rows of the product are in this
  // tile.
  __device__ void sum_rows_of_tile() const {
    __syncthreads();
    const int column = first_column + thread;
    if (thread >= Tile::columns || column >= p.width) return;
    float sum = 0;
#pragma unroll 16
    for (int row = 0; row < Tile::rows; ++row)
      sum += *partial_address<weight_transposed, Tile>(parts(), 0, row, thread);
    const auto store_sum = [&](auto* to) {
      if (p.sums.accumulate) sum += static_cast<float>(to[column]);
      to[column] = std::remove_pointer_t<decltype(to)>(sum);
    };
    if (p.sums.type.bits == 32)
      store_sum(static_cast<float*>(p.sums.out[0]));
    else
      store_sum(static_cast<T*>(p.sums.out[0]));
  }
  // Called after the warps have stored their partial sums.
  __device__ void operator()() {
    __syncthreads();
    if constexpr (blocks > 1) {
      Cluster::wait(); // until all blocks have started
#pragma unroll
      for (int group = thread; group < Tile::groups; group += Tile::threads)
        Cluster::store(reinterpret_cast<float*>(shared + rank() * each + group % each), group / each,
                       sum_partials(group));
      Cluster::arrive();
      Cluster::wait();
    }
    for_each_own([&](const auto& quad, int own) {
      float4 sum{};
      if constexpr (blocks > 1) {
#pragma unroll
        for (int i = 0; i < blocks; ++i) add(sum, shared[i * each + own]);
      } else {
        sum = sum_partials(own);
      }
      float values[4] = {sum.x, sum.y, sum.z, sum.w};
      quad.store(p, values);
      if constexpr (may_sum_rows) {
        if (p.sums.out[0]) *group_address(0, own) = {values[0], values[1], values[2], values[3]};
      }
    });
    if constexpr (may_sum_rows) {
      if (p.sums.out[0]) sum_rows_of_tile();
    }
  }
};

} // namespace
} // namespace fvlm::plugins
