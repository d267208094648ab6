// gemm_epilogues.cuh: the tiles that the fused products compute, 128 rows and 128 or 192 columns per consumer
// warpgroup, and their epilogues: bias and residual; bias and GELU; GELU's derivative with column sums. Each consumer
// warp loads and stores its own rows of a tile by TMA, in boxes of 16 rows and 64 columns. For sm_90a.
#pragma once

#include "common/cuda_gelu.cuh"
#include "common/cuda_hopper.cuh"

namespace fvlm::plugins::fused {

using namespace hopper;
using std::int64_t;

constexpr int tile_rows = 128;
constexpr int consumer_warpgroups = 2, consumer_warps = consumer_warpgroups * warpgroup_warps,
              threads = (consumer_warpgroups + 1) * warpgroup_threads;
constexpr int box_rows = 16, box_bytes = box_rows * box_row_bytes;
constexpr int halves = 2; // of a tile's rows

struct EpilogueOperands {
  CUtensorMap side, out; // side: the pre-activation that is stored or loaded, or a residual
  const void* bias;
  float* sums; // partial column sums, or NULL
  int width;
  bool stores_side, loads_side;
};

// Whether a block computes a single column of tiles, whose bias and column sums its threads keep in registers.
template <int wide>
inline constexpr bool has_one_column = wide == 2;

constexpr int boxes = 4; // of a warp

template <int wide>
struct EpilogueMemory {
  char boxes[consumer_warps][fused::boxes][box_bytes]; // aligned to 1024 bytes
  float bias[consumer_warpgroups][has_one_column<wide> ? 1 : wide * box_width];
  Barrier boxes_full[consumer_warps], others_full[consumer_warps];

  __device__ void init() {
    for (Barrier& each : boxes_full) each.init(1);
    for (Barrier& each : others_full) each.init(1);
  }
};

// The epilogues of tiles that are `wide` boxes wide. An epilogue has the constants
//   weight_mn_major, sums_columns
// and the functions
//   enter(column)     before the first tile, if the block has one column of tiles
//   prepare(tile)     before a tile's product
//   finish(sum, tile, tile_count)
//   end()
template <class T, int wide>
struct LinearEpilogue;
template <class T, int wide>
struct LinearTransposedEpilogue;
template <class T, class Form, int wide>
struct GeluForwardEpilogue;
template <class T, class Form, int wide>
struct GeluBackwardEpilogue;

// Forms of GELU for 16-bit results, in few instructions.
struct FusedExactGelu {
  template <class T>
  __device__ static float value(float x) {
    return gelu<T>(x);
  }
  __device__ static float derivative(float x) { return fast_gelu_derivative(x); }
};

// x sigmoid(linear x + cubic x^3), with tanh or, without the cubic term, quick_gelu.
template <bool with_tanh>
struct FusedSigmoidGelu {
  static constexpr float linear = with_tanh ? 1.5957691216057308f : 1.702f, cubic = with_tanh ? 0.0713548162726f : 0;

  template <class T>
  __device__ static float value(float x) {
    return x * opening(x);
  }
  __device__ static float derivative(float x) {
    constexpr float far = 100; // beyond it the sigmoid is 0 or 1, and powers of x could overflow
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(far));
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-far));
    const float open = opening(x), slope = with_tanh ? fmaf(3 * cubic * x, x, linear) : linear;
    return fmaf(x * slope, fmaf(-open, open, open), open);
  }

 private:
  __device__ static float opening(float x) {
    const float exponent = with_tanh ? x * fmaf(-log2_e * cubic * x, x, -log2_e * linear) : x * (-log2_e * linear);
    return reciprocal_approx(1 + exp2_approx(exponent));
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

constexpr int consumer_registers = 240, producer_registers = 24;
constexpr int pairs = box_width / 16; // of 8 x 8 matrices, per row of a box

template <int wide>
using TileSum = float[halves][wide * box_width / 2];
// A thread's columns of a box.
using BoxColumns = float2[pairs][2];

// The first row and column of a tile.
struct Tile {
  int row, column;
};

// A part of a tile, of 64 rows and 64 columns, of which a warp holds 16 rows and eight times eight columns.
struct TilePart {
  int rows, columns; // which half of the rows, and which box of the columns

  __device__ explicit TilePart(int index) : rows(index % halves), columns(index / halves) {}
  // The address that this lane passes to ldmatrix or stmatrix for columns 16 pair to 16 pair + 15 of a box.
  __device__ static std::uint32_t at(const char* box, int pair) {
    const unsigned lane = threadIdx.x % warp_size, row = lane % box_rows, pack = lane / box_rows;
    return shared_address(box) + row * box_row_bytes + (((2 * static_cast<unsigned>(pair) + pack) ^ row % 8) << 4);
  }
  __device__ int column(const Tile& of) const { return of.column + columns * box_width; }
  __device__ int row(const Tile& of) const {
    const int of_group = static_cast<int>(threadIdx.x / warp_size % warpgroup_warps);
    return of.row + rows * tile_rows / halves + of_group * box_rows;
  }
  // Index of the accumulator values that belong to such a part.
  __device__ static constexpr int first_value(int columns, int pair) { return columns * 32 + pair * 8; }
};

// The first of the two columns that a thread holds of an 8 x 8 matrix of a box.
__device__ inline int column_of(int pair, int square) {
  return pair * 16 + square * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
}

template <class T>
__device__ void widen(const Matrix8x8x4& squares, float (&x)[8]) {
  Pack<T, 8> pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) pack.bits.at[i] = squares.at[i];
  pack.widen(x);
}
template <class T>
__device__ void round(const float (&x)[8], Matrix8x8x4& squares) {
  Pack<T, 8> pack;
  pack.round(x);
#pragma unroll
  for (int i = 0; i < 4; ++i) squares.at[i] = pack.bits.at[i];
}

template <int wide>
struct TileEpilogue {
  static constexpr bool weight_mn_major = false, sums_columns = false;
  static constexpr int parts = halves * wide;
  using Sum = TileSum<wide>;
  const EpilogueOperands& p;
  EpilogueMemory<wide>& s;
  int warp_index = static_cast<int>(threadIdx.x) / warp_size;
  bool is_leader = threadIdx.x % warp_size == 0;

  __device__ TileEpilogue(const EpilogueOperands& operands, EpilogueMemory<wide>& memory) : p(operands), s(memory) {}

  __device__ char* box(int index) const { return s.boxes[warp_index][index % boxes]; }
  __device__ Barrier& boxes_full() const { return s.boxes_full[warp_index]; }
  // Starts loading the first parts of the tile's side operand into this warp's boxes.
  __device__ void load_side(const Tile& of) const {
    if (!is_leader) return;
    tma_store_wait_read<0>();
    load_parts(of, 0, boxes, boxes_full());
    for (int i = boxes; i < parts; ++i) tma_prefetch(p.side, TilePart(i).column(of), TilePart(i).row(of));
  }
  // Called by the leader with each part that it has stored: loads the other parts into the boxes of the first ones.
  __device__ void load_others(const Tile& of, int stored) const {
    if (parts == boxes || stored != parts - boxes) return;
    tma_store_wait_read<1>();
    load_parts(of, boxes, parts, s.others_full[warp_index]);
  }
  // Waits for the boxes that are loaded with a part.
  __device__ void wait_for_side(int part, int tile_count) const {
    if (part == 0) boxes_full().wait(static_cast<unsigned>(tile_count) & 1);
    if (part == boxes) s.others_full[warp_index].wait(static_cast<unsigned>(tile_count) & 1);
  }
  __device__ static void store(const CUtensorMap& to, const TilePart& part, const Tile& of, const char* from) {
    tma_store(to, part.column(of), part.row(of), from);
  }
  __device__ void end() {
    if (is_leader) tma_store_wait_read<0>();
  }

 private:
  __device__ void load_parts(const Tile& of, int first, int end, Barrier& full) const {
    full.arrive_and_expect_tx(static_cast<unsigned>(end - first) * box_bytes);
    for (int i = first; i < end; ++i) tma_load(box(i), p.side, TilePart(i).column(of), TilePart(i).row(of), full);
  }
};

// The bias of a tile's columns.
template <class T, int wide>
struct BiasEpilogue : TileEpilogue<wide> {
  using Base = TileEpilogue<wide>;
  using Base::p, Base::s;
  BoxColumns kept[has_one_column<wide> ? wide : 1];

  using Base::Base;

  __device__ void enter(int column) {
#pragma unroll
    for (int columns = 0; columns < (has_one_column<wide> ? wide : 0); ++columns)
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair)
#pragma unroll
        for (int square = 0; square < 2; ++square) {
          const int at = column + columns * box_width + column_of(pair, square);
          kept[columns][pair][square] = make_float2(load(at), load(at + 1));
        }
  }
  // The threads of a warpgroup read the bias of their tile into shared memory.
  __device__ void prepare(const Tile& of) {
    if constexpr (!has_one_column<wide>) {
      sync_group(); // all have done with the bias of the tile before
      for (int i = static_cast<int>(threadIdx.x) % warpgroup_threads; i < wide * box_width; i += warpgroup_threads)
        s.bias[group()][i] = load(of.column + i);
    }
  }
  __device__ void wait_for_bias() const {
    if constexpr (!has_one_column<wide>) sync_group();
  }
  // Called for each part, the parts of a box after each other.
  __device__ const BoxColumns& bias_of(const TilePart& part) {
    if constexpr (has_one_column<wide>) return kept[part.columns];
    if (part.rows == 0)
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair)
#pragma unroll
        for (int square = 0; square < 2; ++square)
          kept[0][pair][square] =
              *reinterpret_cast<const float2*>(&s.bias[group()][part.columns * box_width + column_of(pair, square)]);
    return kept[0];
  }
  __device__ static void add(const typename Base::Sum& sum, const TilePart& part, int pair, const BoxColumns& bias,
                             float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int at = TilePart::first_value(part.columns, pair) + i;
      x[i] = sum[part.rows][at] + bias[pair][i / 4].x;
      x[i + 1] = sum[part.rows][at + 1] + bias[pair][i / 4].y;
    }
  }

 private:
  __device__ int group() const {
    return this->warp_index / warpgroup_warps;
  }
  __device__ void sync_group() const {
    asm volatile("bar.sync %0, %1;" ::"r"(2 + group()), "n"(warpgroup_threads) : "memory");
  }
  __device__ float load(int column) const {
    return p.bias && column < p.width ? static_cast<float>(static_cast<const T*>(p.bias)[column]) : 0.0f;
  }
};

// Adds a bias, and a residual if there is one.
template <class T, int wide>
struct LinearEpilogue : BiasEpilogue<T, wide> {
  using Base = BiasEpilogue<T, wide>;
  using Base::p, Base::box, Base::is_leader, Base::parts;
  static_assert(parts == boxes);

  using Base::Base;

  __device__ void prepare(const Tile& of) {
    Base::prepare(of);
    if (p.loads_side) this->load_side(of);
  }
  __device__ void finish(const typename Base::Sum& sum, const Tile& of, int tile_count) {
    if (p.loads_side) this->wait_for_side(0, tile_count);
    this->wait_for_bias();
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      const TilePart part(i);
      const BoxColumns& bias = this->bias_of(part);
      if (!p.loads_side) {
        if (is_leader) tma_store_wait_read<parts - 1>();
        __syncwarp();
      }
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair) finish(sum, part, pair, bias, TilePart::at(box(i), pair));
      fence_proxy_async();
      __syncwarp();
      if (!is_leader) continue;
      this->store(p.out, part, of, box(i));
      tma_store_commit();
    }
  }

 private:
  __device__ void finish(const typename Base::Sum& sum, const TilePart& part, int pair, const BoxColumns& bias,
                         std::uint32_t at) {
    float x[8];
    Base::add(sum, part, pair, bias, x);
    Matrix8x8x4 squares;
    if (p.loads_side) {
      float residual[8];
      squares.load(at);
      widen<T>(squares, residual);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] += residual[i];
    }
    round<T>(x, squares);
    squares.store(at);
  }
};
template <class T, int wide>
struct LinearTransposedEpilogue : LinearEpilogue<T, wide> {
  static constexpr bool weight_mn_major = true;

  using LinearEpilogue<T, wide>::LinearEpilogue;
};

template <class T, class Form, int wide>
struct GeluForwardEpilogue : BiasEpilogue<T, wide> {
  using Base = BiasEpilogue<T, wide>;
  using Base::p, Base::box, Base::is_leader, Base::parts;

  using Base::Base;

  __device__ void finish(const typename Base::Sum& sum, const Tile& of, int) {
    this->wait_for_bias();
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      const TilePart part(i);
      const BoxColumns& bias = this->bias_of(part);
      char *side = box(i % 2 * 2), *out = box(i % 2 * 2 + 1);
      if (is_leader) tma_store_wait_read<1>();
      __syncwarp();
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair) finish(sum, part, pair, bias, side, out);
      fence_proxy_async();
      __syncwarp();
      if (!is_leader) continue;
      if (p.stores_side) this->store(p.side, part, of, side);
      this->store(p.out, part, of, out);
      tma_store_commit();
    }
  }

 private:
  __device__ void finish(const typename Base::Sum& sum, const TilePart& part, int pair, const BoxColumns& bias,
                         const char* side, const char* out) {
    float x[8];
    Base::add(sum, part, pair, bias, x);
    Matrix8x8x4 squares;
    round<T>(x, squares);
    if (p.stores_side) squares.store(TilePart::at(side, pair));
    widen<T>(squares, x);
#pragma unroll
    for (float& each : x) each = Form::template value<T>(each);
    round<T>(x, squares);
    squares.store(TilePart::at(out, pair));
  }
};

// Writes a warp's column sums of a box.
__device__ inline void write_sums(const BoxColumns& sums, float* to, int columns_inside) {
#pragma unroll
  for (int pair = 0; pair < pairs; ++pair)
#pragma unroll
    for (int square = 0; square < 2; ++square) {
      float2 sum = sums[pair][square];
      const int column = column_of(pair, square);
#pragma unroll
      for (int lane_mask = 4; lane_mask < warp_size; lane_mask *= 2) {
        sum.x += __shfl_xor_sync(0xffffffffu, sum.x, lane_mask);
        sum.y += __shfl_xor_sync(0xffffffffu, sum.y, lane_mask);
      }
      if (threadIdx.x % warp_size < 4 && column < columns_inside) *reinterpret_cast<float2*>(to + column) = sum;
    }
}

// The column sums of a block's column of tiles stay in registers; those of other tiles are written tile by tile, a row
// of partial sums per warp and tile.
template <class T, class Form, int wide>
struct GeluBackwardEpilogue : TileEpilogue<wide> {
  using Base = TileEpilogue<wide>;
  using Base::p, Base::box, Base::is_leader, Base::parts;
  static constexpr bool weight_mn_major = true, sums_columns = true, keeps_sums = has_one_column<wide>;
  BoxColumns sums[keeps_sums ? wide : 1] = {};

  using Base::Base;

  __device__ void enter(int) {}
  __device__ void prepare(const Tile& of) { this->load_side(of); }
  __device__ void finish(const typename Base::Sum& sum, const Tile& of, int tile_count) {
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      const TilePart part(i);
      this->wait_for_side(i, tile_count);
      BoxColumns& box_sums = sums[keeps_sums ? part.columns : 0];
      Matrix8x8x4 side[pairs];
      // All at once, but where the accumulators leave no registers for them.
      const bool loads_together = has_one_column<wide> || i > 1;
#pragma unroll
      for (int pair = 0; pair < (loads_together ? pairs : 0); ++pair) side[pair].load(TilePart::at(box(i), pair));
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair) {
        if (!loads_together) side[pair].load(TilePart::at(box(i), pair));
        finish(sum, part, pair, side[pair], TilePart::at(box(i), pair), box_sums[pair]);
      }
      fence_proxy_async();
      __syncwarp();
      if (is_leader) {
        this->store(p.out, part, of, box(i));
        tma_store_commit();
        this->load_others(of, i);
      }
      if (!keeps_sums && part.rows == halves - 1) write_box(box_sums, part, of);
    }
  }

 private:
  __device__ static void finish(const typename Base::Sum& sum, const TilePart& part, int pair, Matrix8x8x4 squares,
                                std::uint32_t to, float2 (&pair_sums)[2]) {
    float x[8];
    widen<T>(squares, x);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      x[i] = sum[part.rows][TilePart::first_value(part.columns, pair) + i] * Form::derivative(x[i]);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      pair_sums[i / 4].x += x[i];
      pair_sums[i / 4].y += x[i + 1];
    }
    round<T>(x, squares);
    squares.store(to);
  }
  __device__ void write_box(BoxColumns& box_sums, const TilePart& part, const Tile& of) {
    const int row = of.row / tile_rows * warpgroup_warps + this->warp_index % warpgroup_warps, column = part.column(of);
    if (p.sums) write_sums(box_sums, p.sums + static_cast<int64_t>(row) * p.width + column, p.width - column);
#pragma unroll
    for (auto& pair : box_sums) pair[0] = pair[1] = {};
  }
};

#endif

} // namespace fvlm::plugins::fused
