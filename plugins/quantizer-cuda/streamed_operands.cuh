// streamed_operands.cuh: what a block of streamed_product.cuh reads besides the weight: x, the norm's weight, scales of
// groups, and what is added to the outputs.
#pragma once

#include "common/cuda_copies.cuh"
#include "common/cuda_dependent_launch.cuh"
#include "common/cuda_mma.cuh"
#include "streamed_layout.cuh"

namespace fvlm::plugins::streamed {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// Numbers of x that a lane multiplies in a step: for each of the two 16 byte pieces of a line.
template <class L>
struct Factors {
  std::uint32_t pairs[2][L::words];

  // row: of x, from the step's first number on, in the order of the weight.
  __device__ void load(const char* row, bool has_row) {
#pragma unroll
    for (int piece = 0; piece < 2; ++piece)
      if (has_row)
        load_words(row + (piece * 16 + static_cast<int>(threadIdx.x) % 4 * 4) * L::words, pairs[piece]);
      else
#pragma unroll
        for (int i = 0; i < L::words; ++i) pairs[piece][i] = 0;
  }
};

// What is no lines, for the block's part: x, and the scales of groups.
template <class L>
struct SmallOperands {
  char* x;
  int x_row_bytes;
  float* offsets; // [steps, L::rows]: what a step's sum with a row of x begins with, to make up for the codes' offset
  const float* scales;
  int column_stride = 0;

  __device__ SmallOperands(char* memory, const Problem& p, const Part<L>& part) {
    const int count = part.inner_count(p), thread = static_cast<int>(threadIdx.x);
    x = memory;
    x_row_bytes = part.count() * L::chunk * 2 + L::x_pad;
    memory += p.rows * x_row_bytes;
    offsets = reinterpret_cast<float*>(memory);
    if constexpr (L::keeps_offset) memory += 4 * L::rows * part.count() * L::steps;
    scales = reinterpret_cast<const float*>(memory);
    if constexpr (L::Weight::has_groups) {
      const int first = part.inner_begin() >> p.group_shift,
                groups = (count + (1 << p.group_shift) - 1) >> p.group_shift;
      const int all = (part.count() * L::chunk) >> p.group_shift;
      column_stride = all | 1; // odd, so that no two threads of a load share a bank
      for (int column = thread / warp_size; thread < consumers && column < L::columns; column += warps) {
        const int in_part = column % part.outputs, row = part.first + in_part + (column < part.outputs ? 0 : p.width);
        const bool exists = part.first + in_part < p.width;
        const float* from = p.scales + static_cast<std::int64_t>(exists ? row : 0) * p.groups + first;
        float* to = reinterpret_cast<float*>(memory) + column * column_stride;
        for (int group = thread % warp_size; group < all; group += warp_size)
          copy_if<4>(to + group, group < groups ? from + group : from, exists && group < groups);
      }
    }
  }
};

// Brings the block's columns of x into shared memory, times the norm's weight, in the order of the weight's numbers.
template <class L>
class ResidentX {
 public:
  __device__ ResidentX(Shared<L>& shared, const Problem& problem, const Part<L>& part,
                       const SmallOperands<L>& parameters)
      : s(shared), p(problem), small(parameters), packs(part.inner_count(p) / 8),
        all_packs(part.count() * L::chunk / 8), begin(part.inner_begin()) {
    while (1 << row_shift < min(p.rows, slots)) ++row_shift;
  }

  // Waits for the kernel before this one.
  __device__ void load() {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (L::normed) load_norm_weights(thread); // while that kernel runs
    wait_for_previous_kernel();
    for (first_row = 0; first_row < p.rows; first_row += 1 << row_shift) {
#pragma unroll
      for (float& each : squares) each = 0;
      for (int first = thread; first < all_packs; first += (slots >> row_shift) * consumers) {
        if (L::normed && (first != thread || first_row > 0)) load_norm_weights(first);
        load_packs(first);
      }
      if constexpr (L::normed) store_squares(thread);
    }
    cp_async_wait_all();
    sync_consumers();
  }

 private:
  // Of 16 bytes each: as many rows as there are, of one column or, where there are fewer rows, of several.
  static constexpr int slots = 4;
  __device__ int row_of(int slot) const {
    return first_row + (slot & ((1 << row_shift) - 1));
  }
  __device__ int pack_of(int first, int slot) const {
    return first + (slot >> row_shift) * consumers;
  }
  __device__ const uint4* rows_of_x() const {
    return reinterpret_cast<const uint4*>(static_cast<const BFloat16*>(p.x) + begin);
  }

  __device__ void load_packs(int first) {
    uint4 x[slots];
#pragma unroll
    for (int slot = 0; slot < slots; ++slot) {
      const int pack = pack_of(first, slot);
      x[slot] = row_of(slot) < p.rows && pack < packs ? rows_of_x()[row_of(slot) * (p.x_stride / 8) + pack] : uint4{};
    }
#pragma unroll
    for (int slot = 0; slot < slots; ++slot)
      if (row_of(slot) < p.rows && pack_of(first, slot) < all_packs) store(x[slot], first, slot);
  }
  __device__ void load_norm_weights(int first) {
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const BFloat16*>(p.norm_weight) + begin);
#pragma unroll
    for (int slot = 0; slot < slots; ++slot)
      norm_weights[slot] = pack_of(first, slot) < packs ? __ldg(from + pack_of(first, slot)) : uint4{};
  }
  __device__ void store(const uint4& x, int first, int slot) {
    std::uint32_t pairs[4] = {x.x, x.y, x.z, x.w}, ordered[4];
    if constexpr (L::normed) {
      const uint4& own = norm_weights[slot];
      const std::uint32_t weights[4] = {own.x, own.y, own.z, own.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = __uint_as_float(pairs[i] << 16), high = __uint_as_float(pairs[i] & 0xffff0000u);
        squares[slot] = fmaf(low, low, fmaf(high, high, squares[slot]));
        pairs[i] = multiply_pairs(pairs[i], weights[i], __nv_bfloat16{});
      }
    }
    if constexpr (L::keeps_offset) store_offset(pairs, row_of(slot), pack_of(first, slot));
    L::Weight::order(pairs, ordered);
    *reinterpret_cast<uint4*>(small.x + row_of(slot) * small.x_row_bytes +
                              pack_of(first, slot) * 16) = {ordered[0], ordered[1], ordered[2], ordered[3]};
  }
  // By the eight adjacent threads that have the numbers of a step.
  __device__ void store_offset(const std::uint32_t (&pairs)[4], int row, int pack) {
    float sum = 0;
#pragma unroll
    for (const std::uint32_t pair : pairs) sum += __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
#pragma unroll
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (pack % 8 == 0) small.offsets[pack / 8 * L::rows + row] = -L::Weight::offset * sum;
  }
  __device__ void store_squares(int thread) {
    for (int row = first_row; row < min(p.rows, first_row + (1 << row_shift)); ++row) {
      float square = 0;
#pragma unroll
      for (int slot = 0; slot < slots; ++slot) square += row_of(slot) == row ? squares[slot] : 0;
      square = warp_sum(square);
      if (thread % warp_size == 0) s.squares[thread / warp_size][row] = square;
    }
  }

  Shared<L>& s;
  const Problem& p;
  const SmallOperands<L>& small;
  int packs, all_packs, begin, first_row = 0, row_shift = 0;
  uint4 norm_weights[L::normed ? slots : 1];
  float squares[slots];
};

// What an output gets besides its product, by the thread that writes it: of its first outputs, read ahead. What is read
// at the end comes behind the weights of the next kernel.
template <class L>
struct Extras {
  static constexpr int count = L::rows * L::columns / consumers > 0 ? L::rows* L::columns / consumers : 1;
  static constexpr bool has_scales = !L::Weight::has_groups;
  float residual[count] = {}, scales[has_scales ? count : 1][2] = {}; // of the column, and with a gate of up's

  // Whether scales are read while the kernel before this one runs. A few rows are slower with that.
  __device__ static bool reads_scales_early(const Problem& p) { return has_scales && p.rows == 1; }
  __device__ void load_scales(const Problem& p, const Part<L>& part) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int index = (i * part.split + part.rank) * consumers + static_cast<int>(threadIdx.x),
                column = part.first + index % part.outputs;
      if (index >= p.rows * part.outputs || column >= p.width) continue;
      scales[i][0] = __ldg(p.scales + column);
      if (p.is_gated) scales[i][1] = __ldg(p.scales + p.width + column);
    }
  }

  __device__ void load(const Problem& p, const Part<L>& part) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int index = (i * part.split + part.rank) * consumers + static_cast<int>(threadIdx.x),
                row = index / part.outputs, column = part.first + index % part.outputs;
      if (p.residual && row < p.rows && column < p.width)
        residual[i] = static_cast<float>(static_cast<const BFloat16*>(p.residual)[row * p.residual_stride + column]);
    }
  }
};

#endif

} // namespace fvlm::plugins::streamed
