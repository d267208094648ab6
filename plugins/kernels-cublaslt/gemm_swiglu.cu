// gemm_swiglu.cu: SwiGLU and its derivative as epilogues of the streamed product (gemm_streamed.cuh).
//
// The forward's tile has 96 columns of the gate and the same 96 of up, which each block of a cluster loads for both, so
// that a thread holds both factors of its results. Warps load and store by TMA in boxes of 1,024 bytes, which are 16
// rows of 32 columns or 8 of 64: the fewer rows, the less time the copy engine takes.
#include "common/cuda_gelu.cuh"
#include "gemm_streamed.cuh"
#include "gemm_swiglu.h"

namespace fvlm::plugins {
namespace {

using namespace fused;

// Boxes of the forward, and of the backward.
constexpr int group_columns = 32, group_row_bytes = group_columns * 2, group_bytes = box_rows * group_row_bytes;
constexpr int octet_rows = 8;
static_assert(octet_rows * box_row_bytes == group_bytes);

// What sums of e4m3 are multiplied by: one for each row, and one for each row of the weight.
struct Scales {
  const float *of_rows, *of_columns;
  int rows, width;
};
struct ForwardOperands {
  CUtensorMap gate, up, y;
  Scales scales;
};
struct BackwardOperands {
  CUtensorMap gate, up, d_gate, d_up, y; // y: of SwiGLU, with `gives_output`
  Scales scales;
};

// Of each warp: boxes, two of which are a slot, and the barriers of what is loaded into slots. Of each warpgroup: the
// scales of its tile's columns.
struct Memory {
  static constexpr int slots = 4;
  char boxes[consumer_warps][slots * 2][group_bytes];
  float of_columns[consumer_warpgroups][tile_columns];
  Barrier full[consumer_warps][slots];

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __device__ void init() {
    for (auto& warp : full)
      for (Barrier& each : warp) each.init(1);
  }
#endif
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

constexpr int gated_columns = tile_columns / blocks; // of a tile of the forward

using Sum = TileSum<wide>;

// What a warp of an epilogue has.
struct WarpEpilogue {
  Memory& s;
  int warp_index = static_cast<int>(threadIdx.x) / warp_size;
  bool is_leader = threadIdx.x % warp_size == 0;

  __device__ char* slot(int index) const { return s.boxes[warp_index][2 * index]; }
  // The first row of the warp in a half of a tile.
  __device__ static int row(const Tile& of, int half) { return TilePart(half).row(of); }
  // As TilePart::at, in a box with rows of 64 bytes and their swizzle.
  __device__ static std::uint32_t at(const char* box, int pair) {
    const unsigned lane = threadIdx.x % warp_size, row = lane % box_rows, pack = lane / box_rows;
    return shared_address(box) + row * group_row_bytes +
           (((2 * static_cast<unsigned>(pair) + pack) ^ row / 2 % 4) << 4);
  }
  __device__ void end() const {
    if (is_leader) tma_store_wait_read<0>();
  }
};

constexpr int group_pairs = group_columns / 16;

// The scales of the sums that a thread holds, which are those of two rows in each half of a tile.
template <bool scaled>
class TileScales {
 public:
  __device__ explicit TileScales(Memory& memory) : of_columns_(memory.of_columns[threadIdx.x / warpgroup_threads]) {}

  // Before a tile's product: reads those of its columns, of which a gated one has the columns of gate and those of up.
  template <bool gated>
  __device__ void prepare(const Scales& p, const Tile& of) {
    if constexpr (scaled) {
      sync(); // all have done with the tile before
      for (int i = static_cast<int>(threadIdx.x) % warpgroup_threads; i < tile_columns; i += warpgroup_threads) {
        const int column = of.column + (gated ? i % gated_columns : i);
        of_columns_[i] = column < p.width ? p.of_columns[column + (gated ? i / gated_columns * p.width : 0)] : 0;
      }
    }
  }
  // Behind it: reads those of its rows, for which there were no registers.
  __device__ void begin(const Scales& p, const Tile& of) {
    if constexpr (scaled) {
#pragma unroll
      for (int i = 0; i < halves * 2; ++i) {
        const int row = TilePart(i / 2).row(of) + i % 2 * octet_rows + static_cast<int>(threadIdx.x) % warp_size / 4;
        of_rows_[i / 2][i % 2] = row < p.rows ? p.of_rows[row] : 0;
      }
      sync();
    }
  }
  // Two sums of a row of the half: those of its octet, from the tile's column `column` for the first lanes.
  __device__ float2 scale(int half, int octet, int column, float left, float right) const {
    float2 two = make_float2(left, right);
    if constexpr (scaled) {
      const float2 of = *reinterpret_cast<const float2*>(of_columns_ + column + threadIdx.x % 4 * 2);
      const float row = of_rows_[half][octet];
      two.x *= row * of.x;
      two.y *= row * of.y;
    }
    return two;
  }

 private:
  __device__ static void sync() {
    asm volatile("bar.sync %0, %1;" ::"r"(2 + threadIdx.x / warpgroup_threads), "n"(warpgroup_threads) : "memory");
  }

  float* of_columns_;
  float of_rows_[halves][2];
};

template <class T, bool scaled>
struct SwigluForward : WarpEpilogue {
  static constexpr bool weight_mn_major = false;
  const ForwardOperands& p;
  TileScales<scaled> scales;

  __device__ SwigluForward(const ForwardOperands& operands, Memory& memory)
      : WarpEpilogue{memory}, p(operands), scales(memory) {}

  __device__ void prepare(const Tile& of) { scales.template prepare<true>(p.scales, of); }
  // A step takes two slots, of which the second one's first box is y's.
  __device__ void finish(const Sum& sum, const Tile& of, int) {
    constexpr int groups = gated_columns / group_columns;
    scales.begin(p.scales, of);
#pragma unroll
    for (int i = 0; i < halves * groups; ++i) {
      const int half = i / groups, group = i % groups, column = of.column + group * group_columns;
      char *const gate = slot(2 * i % Memory::slots), *const up = gate + group_bytes, *const y = up + group_bytes;
      if (is_leader) tma_store_wait_read<1>();
      __syncwarp();
#pragma unroll
      for (int pair = 0; pair < group_pairs; ++pair) {
        const int first = group * group_columns + pair * 16;
        float x[8], of_up[8];
        read_sums(x, sum[half], half, first);
        store_rounded(x, at(gate, pair));
        read_sums(of_up, sum[half], half, first + gated_columns);
        store_rounded(of_up, at(up, pair));
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = of_up[i] * (x[i] * sigmoid<T>(x[i]));
        store_rounded(x, at(y, pair));
      }
      fence_proxy_async();
      __syncwarp();
      if (!is_leader) continue;
      tma_store(p.gate, column, row(of, half), gate);
      tma_store(p.up, column, row(of, half), up);
      tma_store(p.y, column, row(of, half), y);
      tma_store_commit();
    }
  }

 private:
  // Of 16 rows and 16 columns, from column `first` of the tile.
  __device__ void read_sums(float (&x)[8], const float (&sum)[wide * box_width / 2], int half, int first) const {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float2 two = scales.scale(half, i / 2 % 2, first + i / 4 * 8, sum[first / 2 + i], sum[first / 2 + i + 1]);
      x[i] = two.x;
      x[i + 1] = two.y;
    }
  }
  __device__ static void store_rounded(float (&x)[8], std::uint32_t to) {
    Matrix8x8x4 squares;
    round<T>(x, squares);
    squares.store(to);
    widen<T>(squares, x);
  }
};

// A step is 64 columns of eight of a warp's rows. Its slot holds the boxes of gate and up, and gradients take the place
// of what they are of. The slot's next step is loaded as soon as they are stored, three steps ahead. With
// `gives_output` the boxes of the last slot are for SwiGLU's output, of one step and the next in turn, and loads are
// two steps ahead.
template <class T, bool scaled, bool gives_output>
struct SwigluBackward : WarpEpilogue {
  static constexpr bool weight_mn_major = !scaled; // a rounded weight is transposed
  static constexpr int octets = box_rows / octet_rows, steps = halves * wide * octets,
                       slots = Memory::slots - gives_output;
  static_assert(steps % slots == 0);
  const BackwardOperands& p;
  TileScales<scaled> scales;

  __device__ SwigluBackward(const BackwardOperands& operands, Memory& memory)
      : WarpEpilogue{memory}, p(operands), scales(memory) {}

  __device__ void prepare(const Tile& of) {
    scales.template prepare<false>(p.scales, of);
    if (!is_leader) return;
    tma_store_wait_read<0>();
    for (int i = 0; i < slots; ++i) load(i, of);
  }
  __device__ void finish(const Sum& sum, const Tile& of, int tile_count) {
    scales.begin(p.scales, of);
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      char *const gate = slot(i % slots), *const up = gate + group_bytes, *const y = slot(slots) + i % 2 * group_bytes;
      if constexpr (gives_output) { // the box of y is free when the step before the last one is stored
        if (is_leader) tma_store_wait_read<1>();
        __syncwarp();
      }
      full(i).wait(static_cast<unsigned>(tile_count * (steps / slots) + i / slots) & 1);
#pragma unroll
      for (int column_half = 0; column_half < 2; ++column_half) {
        float d_y[8];
        const int half = i / octets / wide, octet = i % octets, first = box(i) * box_width + column_half * 32;
#pragma unroll
        for (int square = 0; square < 4; ++square) {
          const int at = first / 2 + square * 4 + octet * 2;
          const float2 two = scales.scale(half, octet, first + square * 8, sum[half][at], sum[half][at + 1]);
          d_y[square * 2] = two.x;
          d_y[square * 2 + 1] = two.y;
        }
        finish(d_y, at(gate, column_half), at(up, column_half), at(y, column_half));
      }
      fence_proxy_async();
      __syncwarp();
      if (!is_leader) continue;
      tma_store(p.d_gate, column(of, i), row(of, i), gate);
      tma_store(p.d_up, column(of, i), row(of, i), up);
      if constexpr (gives_output) tma_store(p.y, column(of, i), row(of, i), y);
      tma_store_commit();
      if (i == 0 || i + slots - 1 >= steps) continue;
      tma_store_wait_read<1>(); // of the step before, whose slot is free
      load(i + slots - 1, of);
    }
  }

 private:
  __device__ Barrier& full(int step) const {
    return s.full[warp_index][step % slots];
  }
  __device__ static int box(int step) {
    return step / octets % wide;
  }
  __device__ static int column(const Tile& of, int step) {
    return of.column + box(step) * box_width;
  }
  __device__ static int row(const Tile& of, int step) {
    return WarpEpilogue::row(of, step / octets / wide) + step % octets * octet_rows;
  }
  // The address that this lane passes to ldmatrix or stmatrix for four matrices of a box.
  __device__ static std::uint32_t at(const char* box, int column_half) {
    const unsigned lane = threadIdx.x % warp_size, row = lane % octet_rows, pack = lane / octet_rows;
    return shared_address(box) + row * box_row_bytes + (((4 * static_cast<unsigned>(column_half) + pack) ^ row) << 4);
  }
  __device__ void load(int step, const Tile& of) const {
    Barrier& barrier = full(step);
    barrier.arrive_and_expect_tx(2 * group_bytes);
    tma_load(slot(step % slots), p.gate, column(of, step), row(of, step), barrier);
    tma_load(slot(step % slots) + group_bytes, p.up, column(of, step), row(of, step), barrier);
  }
  __device__ static void finish(const float (&d_y)[8], std::uint32_t gate_at, std::uint32_t up_at, std::uint32_t y_at) {
    float gate[8], up[8];
    [[maybe_unused]] float y[8];
    Matrix8x8x4 squares;
    squares.load(gate_at);
    widen<T>(squares, gate);
    squares.load(up_at);
    widen<T>(squares, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float open = sigmoid<T>(gate[i]), silu = gate[i] * open;
      if constexpr (gives_output) y[i] = up[i] * silu;
      gate[i] = d_y[i] * up[i] * fmaf(silu, 1 - open, open);
      up[i] = d_y[i] * silu;
    }
    round<T>(gate, squares);
    squares.store(gate_at);
    round<T>(up, squares);
    squares.store(up_at);
    if constexpr (!gives_output) return;
    round<T>(y, squares);
    squares.store(y_at);
  }
};

#else

template <class T, bool scaled>
struct SwigluForward;
template <class T, bool scaled, bool gives_output>
struct SwigluBackward;

#endif

// Columns of a matrix, in boxes of a step of the forward.
CUtensorMap map_of_columns(const Matrix& matrix, std::int64_t first, const SwigluGemmShape& shape) {
  return TensorMapShape{CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                        2,
                        {static_cast<cuuint64_t>(shape.width), static_cast<cuuint64_t>(shape.rows)},
                        {static_cast<cuuint64_t>(matrix.row_stride) * 2},
                        {group_columns, box_rows},
                        CU_TENSOR_MAP_SWIZZLE_64B}
      .encode(static_cast<BFloat16*>(matrix.data) + first);
}
// The same in those of the backward.
CUtensorMap map_of_octets(const Matrix& matrix, std::int64_t first, const SwigluGemmShape& shape) {
  return map_of(sdk::bfloat16, {static_cast<BFloat16*>(matrix.data) + first, matrix.row_stride}, shape.rows,
                shape.width, octet_rows);
}

Scales scales_of(const SwigluGemmScales& scales, const SwigluGemmShape& shape) {
  return {scales.of_rows, scales.of_columns, static_cast<int>(shape.rows), static_cast<int>(shape.width)};
}

} // namespace

bool swiglu_gemm_supports(const SwigluGemmShape& shape) {
  return shape.width % 8 == 0 && shape.inner % 8 == 0;
}

void swiglu_gemm_forward(const Device& device, const SwigluGemmShape& shape, const SwigluGemmForward& o) {
  const bool scaled = o.scales.of_rows != nullptr;
  auto p = streamed_problem<ForwardOperands>(
      {scaled ? e4m3 : sdk::bfloat16, shape.rows, shape.inner, 2 * shape.width, {}}, o.x, o.weight, false, true);
  p.epilogue = {map_of_columns(o.gate_up, 0, shape), map_of_columns(o.gate_up, shape.width, shape),
                map_of_columns(o.y, 0, shape), scales_of(o.scales, shape)};
  if (scaled)
    launch_streamed<hopper::E4m3, SwigluForward<BFloat16, true>, Memory>(device, p);
  else
    launch_streamed<BFloat16, SwigluForward<BFloat16, false>, Memory>(device, p);
}

void swiglu_gemm_backward(const Device& device, const SwigluGemmShape& shape, const SwigluGemmBackward& o) {
  const bool scaled = o.scales.of_rows != nullptr;
  auto p = streamed_problem<BackwardOperands>({scaled ? e4m3 : sdk::bfloat16, shape.rows, shape.inner, shape.width, {}},
                                              o.d_y, o.weight, !scaled);
  p.epilogue = {map_of_octets(o.gate_up, 0, shape),
                map_of_octets(o.gate_up, shape.width, shape),
                map_of_octets(o.d_gate_up, 0, shape),
                map_of_octets(o.d_gate_up, shape.width, shape),
                o.y.data ? map_of_octets(o.y, 0, shape) : CUtensorMap{},
                scales_of(o.scales, shape)};
  if (scaled && o.y.data) return launch_streamed<hopper::E4m3, SwigluBackward<BFloat16, true, true>, Memory>(device, p);
  if (scaled) return launch_streamed<hopper::E4m3, SwigluBackward<BFloat16, true, false>, Memory>(device, p);
  if (o.y.data) return launch_streamed<BFloat16, SwigluBackward<BFloat16, false, true>, Memory>(device, p);
  launch_streamed<BFloat16, SwigluBackward<BFloat16, false, false>, Memory>(device, p);
}

} // namespace fvlm::plugins
