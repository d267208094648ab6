// streamed_operands.cuh: what a block of streamed_product.cuh reads besides the weight: x, the norm's weight, scales of
// groups, and what is added to the outputs.
#pragma once

#include "common/cuda_copies.cuh"
#include "common/cuda_dependent_launch.cuh"
#include "common/cuda_mma.cuh"
#include "streamed_layout.cuh"

namespace fvlm::plugins::streamed {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

// low + 256 middle + 65536 high, each a signed byte.
struct Digits {
  std::uint32_t low, middle, high;

  // Of four numbers, which times `factor` are no larger than most_integer.
  __device__ Digits(const float (&numbers)[4], float factor) {
    constexpr std::uint32_t of_middle[] = {0x80u, 0x80u, 0x40u};
    // Adding it leaves the integer, and the bytes' middles, in the low bits of the fraction.
    constexpr float base = 8388608 + of_middle[0] + 256 * of_middle[1] + 65536 * of_middle[2];
    std::uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(fmaf(numbers[i], factor, base));
    const std::uint32_t first = __byte_perm(bits[0], bits[1], 0x5140), second = __byte_perm(bits[2], bits[3], 0x5140);
    low = __byte_perm(first, second, 0x5410) ^ 0x80808080u;
    middle = __byte_perm(first, second, 0x7632) ^ 0x80808080u;
    high = __byte_perm(__byte_perm(bits[0], bits[1], 0x0062), __byte_perm(bits[2], bits[3], 0x0062), 0x5410);
    high = (high + 0x40404040u) ^ 0x80808080u;
  }
};
// Rows without a larger number are 0.
constexpr float least_of_a_row = 1e-30f;
__device__ inline float integer_factor(float largest) {
  return largest <= least_of_a_row ? 0 : __fdividef(most_integer, largest);
}

// What is no lines: x, and the scales of groups.
template <class L>
struct SmallOperands {
  char* x;     // [rows, digits, x_bytes]
  int x_bytes; // of a digit of a row
  const float* scales;
  int column_stride = 0;

  __device__ SmallOperands(char* memory, const Problem& p, const Part<L>& part) {
    const int thread = static_cast<int>(threadIdx.x);
    x = memory;
    x_bytes = part.count * L::chunk + L::x_pad;
    memory += p.rows * digits * x_bytes;
    scales = reinterpret_cast<const float*>(memory);
    if constexpr (L::has_groups) {
      const int all = part.count * L::chunk / group;
      column_stride = all | 1; // odd, so that no two threads of a load share a bank
      for (int column = thread / warp_size; thread < consumers && column < L::columns; column += warps) {
        const int in_part = column % part.outputs, row = part.first + in_part + (column < part.outputs ? 0 : p.width);
        const bool exists = part.first + in_part < p.width;
        const float* from = p.scales + static_cast<std::int64_t>(exists ? row : 0) * p.groups;
        float* to = reinterpret_cast<float*>(memory) + column * column_stride;
        for (int i = thread % warp_size; i < all; i += warp_size)
          copy_if<4>(to + i, i < p.groups ? from + i : from, exists && i < p.groups);
      }
    }
  }
};

// Brings the block's columns of x into shared memory as integers, times the norm's weight, in the order in which
// mma.sync meets the codes of the weight.
template <class L>
class ResidentX {
 public:
  __device__ ResidentX(Shared<L>& shared, const Problem& problem, const Part<L>& part,
                       const SmallOperands<L>& parameters)
      : s(shared), p(problem), small(parameters), packs(problem.inner / 8), all_packs(part.count * L::chunk / 8) {}

  // Waits for the kernel before this one.
  __device__ void load() {
    constexpr int most = L::rows < slots ? L::rows : slots; // at once
    if (p.rows > 1 && all_packs <= slots / most * consumers)
      load_rows<most>();
    else
      load_rows<1>();
    cp_async_wait_all();
    sync_consumers();
    if (threadIdx.x < p.rows) finish_unit(threadIdx.x);
  }

 private:
  // Packs of 16 bytes, of a thread: those of one row, or of several rows in turn. A row without a norm may have twice
  // as many, where the norm's weights would be.
  static constexpr int slots = 4;

  template <int at_once>
  __device__ void load_rows() {
    constexpr int of_a_row = slots / at_once;
    uint4 behind[of_a_row];
    if (p.norm_weight) load_packs<of_a_row>(behind, static_cast<const BFloat16*>(p.norm_weight), 0);
    wait_for_previous_kernel();
    for (int first = 0; first < p.rows; first += at_once) {
      uint4 x[at_once][of_a_row];
#pragma unroll
      for (int r = 0; r < at_once; ++r) {
        const auto* row = static_cast<const BFloat16*>(p.x) + (first + r) * p.x_stride;
        if (first + r < p.rows) load_packs<of_a_row>(x[r], row, 0);
        if (at_once == 1 && !p.norm_weight) load_packs<of_a_row>(behind, row, of_a_row);
      }
#pragma unroll
      for (int r = 0; r < at_once; ++r)
        if (first + r < p.rows) share_largest<at_once == 1>(x[r], behind, first + r);
      sync_consumers();
#pragma unroll
      for (int r = 0; r < at_once; ++r) {
        if (first + r >= p.rows) break;
        const float factor = integer_factor(__uint_as_float(s.largest[first + r]));
        store_integers<of_a_row>(x[r], 0, factor, first + r);
        if (at_once == 1 && !p.norm_weight) store_integers<of_a_row>(behind, of_a_row, factor, first + r);
      }
    }
  }

  // Of the slots from first_slot on.
  template <int count>
  __device__ void load_packs(uint4 (&to)[count], const BFloat16* row, int first_slot) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int pack = static_cast<int>(threadIdx.x) + (first_slot + i) * consumers;
      to[i] = pack < packs ? reinterpret_cast<const uint4*>(row)[pack] : uint4{};
    }
  }

  // Multiplies by the norm's weights, and shares the row's largest number and its sum of squares.
  template <bool has_packs_behind, int count>
  __device__ void share_largest(uint4 (&x)[count], const uint4 (&behind)[count], int row) {
    std::uint32_t largest = 0; // of the numbers at even and odd places. NaN is larger than infinity.
    float square = 0;
#pragma unroll
    for (int slot = 0; slot < count; ++slot) {
      if (slot * consumers >= packs) break;
      auto* pairs = reinterpret_cast<std::uint32_t*>(&x[slot]);
      const auto* others = reinterpret_cast<const std::uint32_t*>(&behind[slot]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (p.norm_weight) {
          const float low = low_of(pairs[i]), high = high_of(pairs[i]);
          square = fmaf(low, low, fmaf(high, high, square));
          pairs[i] = multiply_pairs(pairs[i], others[i], __nv_bfloat16{});
        } else if (has_packs_behind) {
          largest = __vmaxu2(largest, others[i] & 0x7fff7fffu);
        }
        largest = __vmaxu2(largest, pairs[i] & 0x7fff7fffu);
      }
    }
    const std::uint32_t of_warp = __reduce_max_sync(~0u, max(largest << 16, largest & 0xffff0000u));
    if (p.norm_weight) square = warp_sum(square);
    if (threadIdx.x % warp_size == 0) {
      atomicMax(&s.largest[row], of_warp);
      s.squares[threadIdx.x / warp_size][row] = square;
    }
  }

  template <int count>
  __device__ void store_integers(const uint4 (&x)[count], int first_slot, float factor, int row) {
    char* to = small.x + row * digits * small.x_bytes;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if ((first_slot + i) * consumers >= all_packs) break;
      const int pack = static_cast<int>(threadIdx.x) + (first_slot + i) * consumers;
      if (pack < all_packs) store(reinterpret_cast<const std::uint32_t*>(&x[i]), factor, to + pack * 8);
    }
  }
  __device__ void store(const std::uint32_t* pairs, float factor, char* to) const {
    float numbers[2][4]; // adjacent ones, or of int4 even ones and odd ones
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = low_of(pairs[i]), high = high_of(pairs[i]);
      if constexpr (L::bits == 4)
        numbers[0][i] = low, numbers[1][i] = high;
      else
        numbers[i / 2][i % 2 * 2] = low, numbers[i / 2][i % 2 * 2 + 1] = high;
    }
    const Digits first(numbers[0], factor), second(numbers[1], factor);
    *reinterpret_cast<uint2*>(to) = {first.low, second.low};
    *reinterpret_cast<uint2*>(to + small.x_bytes) = {first.middle, second.middle};
    *reinterpret_cast<uint2*>(to + 2 * small.x_bytes) = {first.high, second.high};
  }
  // What 1 in the row's products stands for. It is there when the sums are.
  __device__ void finish_unit(int row) {
    float unit = L::unit * __uint_as_float(s.largest[row]), square = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) square += s.squares[w][row];
    if (p.norm_weight) unit *= rsqrtf(square / static_cast<float>(p.inner) + p.epsilon);
    s.units[row] = unit;
  }
  static __device__ float low_of(std::uint32_t pair) {
    return __uint_as_float(pair << 16);
  }
  static __device__ float high_of(std::uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
  }

  Shared<L>& s;
  const Problem& p;
  const SmallOperands<L>& small;
  int packs, all_packs;
};

// What a lane multiplies in a step besides codes: integers of x, and of int4 the scales of its two columns in each
// tile.
template <class L>
struct Factors {
  std::uint32_t pairs[L::row_tiles][L::loads][L::products][2];
  float scales[L::has_groups ? L::column_tiles : 1][2];

  // inner: where the step begins. column: the warp's first.
  __device__ void load(const SmallOperands<L>& small, const Problem& p, int inner, [[maybe_unused]] int column) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size, digit = lane / 4 % 4;
#pragma unroll
    for (int t = 0; t < L::row_tiles; ++t) {
      const int row = t * tile_rows + lane / 16;
      const char* from = small.x + (row * digits + digit) * small.x_bytes + inner + lane % 4 * 4 * L::products;
#pragma unroll
      for (int piece = 0; piece < 2 * L::loads; ++piece) {
        uint2 words{};
        if (digit < digits && row < p.rows) {
          if constexpr (L::products == 1)
            words.x = *reinterpret_cast<const std::uint32_t*>(from + piece * 16);
          else
            words = *reinterpret_cast<const uint2*>(from + piece * 32);
        }
        pairs[t][piece / 2][0][piece % 2] = words.x;
        if constexpr (L::products == 2) pairs[t][piece / 2][1][piece % 2] = words.y;
      }
    }
    if constexpr (L::has_groups) {
      const float* of_group = small.scales + (column + lane / 4) * small.column_stride + inner / group;
#pragma unroll
      for (int m = 0; m < L::column_tiles; ++m) {
        scales[m][0] = of_group[m * tile_columns * small.column_stride];
        scales[m][1] = of_group[(m * tile_columns + 8) * small.column_stride];
      }
    }
  }
};

// What an output gets besides its product, and where it goes, by the thread that writes it. All of it is read before
// the products: at the end it would come behind the weights of the next kernel.
template <class L>
struct Output {
  static constexpr bool has_scales = !L::has_groups;
  const float* sums; // of warp 0, of the column and with a gate of up's behind it
  const BFloat16* residual = nullptr;
  BFloat16* y = nullptr;
  float added = 0, scales[2] = {1, 1}, biases[2] = {};

  // index: among the block's outputs. Reads what no kernel writes.
  __device__ void place(const Problem& p, const Part<L>& part, const float* all_sums, int index) {
    const int row = p.is_gated ? index / (L::columns / 2) : index / L::columns, in_block = index - row * part.outputs,
              column = part.first + in_block;
    sums = all_sums + row * L::sum_stride + in_block;
    if (row >= p.rows || column >= p.width) return;
    y = static_cast<BFloat16*>(p.y) + row * p.y_stride + column;
    if (p.residual) residual = static_cast<const BFloat16*>(p.residual) + row * p.residual_stride + column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half == 1 && !p.is_gated) break;
      if constexpr (has_scales) scales[half] = __ldg(p.scales + column + half * p.width);
      if (p.bias) biases[half] = static_cast<float>(static_cast<const BFloat16*>(p.bias)[column + half * p.width]);
    }
  }
  // What kernels before this one have written.
  __device__ void load() {
    if (residual) added = static_cast<float>(*residual);
  }
  __device__ float product(int offset, int half) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < L::step_warps; ++w) sum += sums[w * L::rows * L::sum_stride + offset];
    return fmaf(sum, scales[half], biases[half]);
  }
  __device__ void store(bool is_gated) const {
    if (!y) return;
    float value = product(0, 0);
    if (is_gated) value = __fdividef(value, 1 + __expf(-value)) * product(L::columns / 2, 1);
    *y = BFloat16(value + added);
  }
};

#endif

} // namespace fvlm::plugins::streamed
