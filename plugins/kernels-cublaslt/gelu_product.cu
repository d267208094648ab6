// A block keeps 128 columns of the weight in shared memory and goes through tiles of 128 rows, which one warp fetches
// ahead. Two groups of four warps take tiles in turn: while one finishes its sums, the other multiplies. Each warp of
// them reads and writes its rows of a tile by itself, in boxes of 16 rows.
#include "common/cuda_boxes.h"
#include "common/cuda_gelu.cuh"
#include "common/cuda_hopper.cuh"
#include "gelu_product.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

using namespace hopper;
using std::int64_t;

constexpr int tile = 128; // rows, and columns, of results
constexpr int chunk_bytes = tile * box_row_bytes, most_chunks = 6, stages = 4;
constexpr int groups = 2, multiplying_warps = groups * group_warps, threads = (groups + 1) * group_threads;
constexpr int box_rows = 16, box_bytes = box_rows * box_row_bytes;
constexpr int quarters = 4; // of a tile: 64 rows and 64 columns

struct Problem {
  CUtensorMap left, right, before, out; // before: what gelu was or is computed of, or a residual
  const void* bias;
  float* sums;
  int row_tiles, column_tiles, chunks, width;
  bool keeps_before, adds_before;
};

struct alignas(8 * box_row_bytes) Shared {
  char right[most_chunks][chunk_bytes];
  char left[stages][chunk_bytes];
  char boxes[multiplying_warps][quarters][box_bytes];
  float bias[tile];
  Barrier right_there[most_chunks], left_there[stages], left_free[stages], boxes_there[multiplying_warps],
      turns[groups];
};

// What a warp does around its products.
template <class T>
struct Forward;
template <class T>
struct Backward;
template <class T>
struct Plain;
template <class T>
struct PlainByRows;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // no other architecture's compiler understands it

constexpr int multiplying_registers = 240, fetching_registers = 24;
constexpr int halves = 2; // of a tile's rows, and of its columns

// What a block has of the tiles: some of those of one column.
struct Share {
  int column, first, step, end;

  __device__ explicit Share(const Problem& p)
      : column(static_cast<int>(blockIdx.x) % p.column_tiles * tile),
        first(static_cast<int>(blockIdx.x) / p.column_tiles), step(static_cast<int>(gridDim.x) / p.column_tiles),
        end(p.row_tiles) {}
};

// Where the chunk lies that is the block's `count`-th.
struct Stage {
  unsigned index, parity;

  __device__ explicit Stage(unsigned count) : index(count % stages), parity(count / stages % 2) {}
};

template <bool right_by_rows>
__device__ void fetch_right(Shared& s, const Problem& p, const Share& share, int chunk) {
  s.right_there[chunk].expect(chunk_bytes);
  if constexpr (right_by_rows) {
    for (int half = 0; half < halves; ++half)
      load_box(s.right[chunk] + half * chunk_bytes / halves, p.right, share.column + half * box_width,
               chunk * box_width, s.right_there[chunk]);
  } else {
    load_box(s.right[chunk], p.right, chunk * box_width, share.column, s.right_there[chunk]);
  }
}

template <bool right_by_rows>
__device__ void fetch(Shared& s, const Problem& p, const Share& share) {
  unsigned count = 0;
  for (int row_tile = share.first; row_tile < share.end; row_tile += share.step) {
    // The blocks of a row of tiles want the same chunks: each brings some of those of the next to the L2.
    if (const int next = row_tile + share.step; next < share.end)
      for (int chunk = share.column / tile; chunk < p.chunks; chunk += p.column_tiles)
        prefetch_box(p.left, chunk * box_width, next * tile);
    for (int chunk = 0; chunk < p.chunks; ++chunk, ++count) {
      if (row_tile == share.first) fetch_right<right_by_rows>(s, p, share, chunk);
      const Stage stage(count);
      s.left_free[stage.index].wait(stage.parity ^ 1);
      s.left_there[stage.index].expect(chunk_bytes);
      load_box(s.left[stage.index], p.left, chunk * box_width, row_tile * tile, s.left_there[stage.index]);
    }
  }
}

// The product of the group's `turn`-th tile. A group begins when the other one has seen all its chunks arrive: of a
// stage's two latest chunks the parity cannot tell which has.
template <class T, bool right_by_rows>
__device__ void multiply_tile(Product (&sum)[halves], Shared& s, int chunks, int group, int turn) {
  constexpr int depth = 16, steps = box_width / depth; // of one product
  constexpr int step_bytes = right_by_rows ? depth * box_row_bytes : depth * 2;
  const std::uint64_t left = operand(s.left), right = operand(s.right, right_by_rows ? chunk_bytes / halves : 16);
  const unsigned count = static_cast<unsigned>((groups * turn + group) * chunks);
  const auto leave = [&](unsigned of) {
    if (threadIdx.x % warp == 0) s.left_free[Stage(of).index].arrive();
  };
  s.turns[group].wait(static_cast<unsigned>(turn + 1 - group) & 1);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Stage stage(count + static_cast<unsigned>(chunk));
    s.right_there[chunk].wait(0);
    s.left_there[stage.index].wait(stage.parity);
    const std::uint64_t its_left = behind(left, stage.index * chunk_bytes),
                        its_right = behind(right, static_cast<unsigned>(chunk) * chunk_bytes);
    before_products();
#pragma unroll
    for (unsigned step = 0; step < steps; ++step)
#pragma unroll
      for (unsigned half = 0; half < halves; ++half)
        multiply<T, right_by_rows>(sum[half], behind(its_left, half * chunk_bytes / halves + step * depth * 2),
                                   behind(its_right, step * step_bytes), chunk > 0 || step > 0);
    end_products();
    if (chunk == 0) continue;
    wait_for_products<1>();
    leave(count + static_cast<unsigned>(chunk) - 1);
  }
  if (threadIdx.x % warp == 0) s.turns[groups - 1 - group].arrive();
  wait_for_products<0>();
  leave(count + static_cast<unsigned>(chunks) - 1);
}

// A quarter of a tile, as a warp has it: 16 rows, and eight times eight columns.
struct Quarter {
  int rows, columns; // which half of each

  __device__ explicit Quarter(int index) : rows(index % halves), columns(index / halves) {}
  // Where its squares of columns 16 pair to 16 pair + 15 lie in a box, for a thread to load and store.
  __device__ static std::uint32_t at(const char* box, int pair) {
    const unsigned lane = threadIdx.x % warp, row = lane % box_rows, pack = lane / box_rows;
    return shared_address(box) + row * box_row_bytes + (((2 * static_cast<unsigned>(pair) + pack) ^ row % 8) << 4);
  }
  __device__ int column(const Share& share) const { return share.column + columns * box_width; }
  __device__ int row(int row_tile) const {
    const int of_group = static_cast<int>(threadIdx.x / warp % group_warps);
    return row_tile * tile + rows * tile / halves + of_group * box_rows;
  }
  // Of its values, those of these squares.
  __device__ static constexpr int first_value(int columns, int pair) { return columns * 32 + pair * 8; }
};

// The first of the two columns of a block that a thread has of a square.
__device__ inline int column_of(int columns, int pair, int square) {
  return columns * box_width + pair * 16 + square * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
}

constexpr int pairs = box_width / 16; // of squares, in a row of a box

template <class T>
__device__ void widen(const Squares& squares, float (&x)[8]) {
  Pack<T, 8> pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) pack.bits.at[i] = squares.at[i];
  pack.widen(x);
}
template <class T>
__device__ void round(const float (&x)[8], Squares& squares) {
  Pack<T, 8> pack;
  pack.round(x);
#pragma unroll
  for (int i = 0; i < 4; ++i) squares.at[i] = pack.bits.at[i];
}

// Each of them has prepare(), called before a tile, finish(), with its product, and end().
struct Around {
  const Problem& p;
  const Share& share;
  Shared& s;
  int warp_index = static_cast<int>(threadIdx.x) / warp;
  bool leads = threadIdx.x % warp == 0;

  __device__ Around(const Problem& problem, const Share& its, Shared& shared) : p(problem), share(its), s(shared) {}

  __device__ char* box(int index) const { return s.boxes[warp_index][index]; }
  __device__ Barrier& there() const { return s.boxes_there[warp_index]; }
  // What lies beside a tile, into boxes.
  __device__ void load_before(int row_tile) const {
    if (!leads) return;
    wait_until_read<0>();
    there().expect(sizeof s.boxes[0]);
    for (int i = 0; i < quarters; ++i)
      load_box(box(i), p.before, Quarter(i).column(share), Quarter(i).row(row_tile), there());
  }
  __device__ void store(const CUtensorMap& to, const Quarter& quarter, int row_tile, const char* from) const {
    store_box(to, quarter.column(share), quarter.row(row_tile), from);
  }
};

struct AddsBias : Around {
  float2 bias[halves][pairs][2]; // of its columns

  __device__ AddsBias(const Problem& problem, const Share& its, Shared& shared) : Around(problem, its, shared) {
#pragma unroll
    for (int columns = 0; columns < halves; ++columns)
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair)
#pragma unroll
        for (int square = 0; square < 2; ++square)
          bias[columns][pair][square] = *reinterpret_cast<const float2*>(&s.bias[column_of(columns, pair, square)]);
  }
  __device__ void add(const Product& sum, int columns, int pair, float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int at = Quarter::first_value(columns, pair) + i;
      x[i] = sum[at] + bias[columns][pair][i / 4].x;
      x[i + 1] = sum[at + 1] + bias[columns][pair][i / 4].y;
    }
  }
};

// And a residual, if there is one.
template <class T>
struct Plain : AddsBias {
  static constexpr bool right_by_rows = false;

  using AddsBias::AddsBias;

  __device__ void prepare(int row_tile) {
    if (p.adds_before) load_before(row_tile);
  }
  __device__ void finish(const Product (&sum)[halves], int row_tile, int turn) {
    if (p.adds_before) there().wait(static_cast<unsigned>(turn) & 1);
#pragma unroll
    for (int i = 0; i < quarters; ++i) {
      const Quarter quarter(i);
      if (!p.adds_before) {
        if (leads) wait_until_read<quarters - 1>();
        __syncwarp();
      }
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair)
        finish(sum[quarter.rows], quarter.columns, pair, Quarter::at(box(i), pair));
      before_copies();
      __syncwarp();
      if (!leads) continue;
      store(p.out, quarter, row_tile, box(i));
      end_stores();
    }
  }
  __device__ void end() {
    if (leads) wait_until_read<0>();
  }

 private:
  __device__ void finish(const Product& sum, int columns, int pair, std::uint32_t at) {
    float x[8];
    add(sum, columns, pair, x);
    Squares squares;
    if (p.adds_before) {
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
template <class T>
struct PlainByRows : Plain<T> {
  static constexpr bool right_by_rows = true;

  using Plain<T>::Plain;
};

template <class T>
struct Forward : AddsBias {
  static constexpr bool right_by_rows = false;

  using AddsBias::AddsBias;

  __device__ void prepare(int) {}
  __device__ void finish(const Product (&sum)[halves], int row_tile, int) {
#pragma unroll
    for (int i = 0; i < quarters; ++i) {
      const Quarter quarter(i);
      char *before = box(i % 2 * 2), *out = box(i % 2 * 2 + 1);
      if (leads) wait_until_read<1>();
      __syncwarp();
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair) finish(sum[quarter.rows], quarter.columns, pair, before, out);
      before_copies();
      __syncwarp();
      if (!leads) continue;
      if (p.keeps_before) store(p.before, quarter, row_tile, before);
      store(p.out, quarter, row_tile, out);
      end_stores();
    }
  }
  __device__ void end() {
    if (leads) wait_until_read<0>();
  }

 private:
  __device__ void finish(const Product& sum, int columns, int pair, const char* before, const char* out) {
    float x[8];
    add(sum, columns, pair, x);
    Squares squares;
    round<T>(x, squares);
    if (p.keeps_before) squares.store(Quarter::at(before, pair));
    widen<T>(squares, x);
#pragma unroll
    for (float& each : x) each = gelu<T>(each);
    round<T>(x, squares);
    squares.store(Quarter::at(out, pair));
  }
};

template <class T>
struct Backward : Around {
  static constexpr bool right_by_rows = true;
  float2 sums[halves][pairs][2] = {}; // of its columns

  using Around::Around;

  __device__ void prepare(int row_tile) { load_before(row_tile); }
  __device__ void finish(const Product (&sum)[halves], int row_tile, int turn) {
    there().wait(static_cast<unsigned>(turn) & 1);
#pragma unroll
    for (int i = 0; i < quarters; ++i) {
      const Quarter quarter(i);
      Squares before[pairs];
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair) before[pair].load(Quarter::at(box(i), pair));
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair)
        finish(sum[quarter.rows], quarter.columns, pair, before[pair], Quarter::at(box(i), pair));
      before_copies();
      __syncwarp();
      if (!leads) continue;
      store(p.out, quarter, row_tile, box(i));
      end_stores();
    }
  }
  __device__ void end() {
    if (leads) wait_until_read<0>();
    if (!p.sums) return;
    __syncwarp();
#pragma unroll
    for (int columns = 0; columns < halves; ++columns)
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair)
#pragma unroll
        for (int square = 0; square < 2; ++square) give(sums[columns][pair][square], column_of(columns, pair, square));
    asm volatile("bar.sync 1, %0;" ::"n"(groups * group_threads) : "memory"); // of all that multiply
    const int column = static_cast<int>(threadIdx.x);
    if (column >= tile || share.column + column >= p.width) return;
    float sum = 0;
#pragma unroll
    for (int each = 0; each < multiplying_warps; ++each) sum += sums_of(each)[column];
    p.sums[static_cast<int64_t>(share.first) * p.width + share.column + column] = sum;
  }

 private:
  __device__ void finish(const Product& sum, int columns, int pair, Squares squares, std::uint32_t to) {
    float x[8];
    widen<T>(squares, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = sum[Quarter::first_value(columns, pair) + i] * quick_gelu_slope(x[i]);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      sums[columns][pair][i / 4].x += x[i];
      sums[columns][pair][i / 4].y += x[i + 1];
    }
    round<T>(x, squares);
    squares.store(to);
  }

  // Where boxes were, sums of a warp lie in the end.
  __device__ float* sums_of(int of_warp) const {
    return reinterpret_cast<float*>(s.boxes[of_warp]);
  }
  __device__ void give(float2 sum, int column) const {
#pragma unroll
    for (int apart = 4; apart < warp; apart *= 2) {
      sum.x += __shfl_xor_sync(0xffffffffu, sum.x, apart);
      sum.y += __shfl_xor_sync(0xffffffffu, sum.y, apart);
    }
    if (threadIdx.x % warp < 4) *reinterpret_cast<float2*>(&sums_of(warp_index)[column]) = sum;
  }
};

template <class T>
__device__ void begin(Shared& s, const Problem& p, const Share& share) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < tile) {
    const int column = share.column + thread;
    s.bias[thread] = p.bias && column < p.width ? static_cast<float>(static_cast<const T*>(p.bias)[column]) : 0;
  }
  if (thread == 0) {
    for (Barrier& each : s.right_there) each.begin(1);
    for (Barrier& each : s.left_there) each.begin(1);
    for (Barrier& each : s.left_free) each.begin(group_warps);
    for (Barrier& each : s.boxes_there) each.begin(1);
    for (Barrier& each : s.turns) each.begin(group_warps);
    Barrier::begun();
  }
  __syncthreads();
}

#endif

template <class T, template <class> class Pass>
__global__ void __launch_bounds__(threads, 1) gelu_product(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  const Share share(p);
  begin<T>(s, p, share);
  constexpr bool right_by_rows = Pass<T>::right_by_rows;
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / group_threads, 0); // one for the warp
  if (group == groups) {
    give_registers_away<fetching_registers>();
    if (threadIdx.x % group_threads == 0) fetch<right_by_rows>(s, p, share);
  } else {
    take_registers<multiplying_registers>();
    Pass<T> around(p, share, s);
    int turn = 0;
    for (int row_tile = share.first + group * share.step; row_tile < share.end;
         row_tile += groups * share.step, ++turn) {
      Product sum[halves];
      around.prepare(row_tile);
      multiply_tile<T, right_by_rows>(sum, s, p.chunks, group, turn);
      around.finish(sum, row_tile, turn);
    }
    around.end();
  }
#endif
}

int64_t tiles_in(int64_t size) {
  return (size + tile - 1) / tile;
}

int64_t chunks_in(int64_t inner) {
  return (inner + box_width - 1) / box_width;
}

CUtensorMap map_of(fvlm_dtype dtype, const Matrix& matrix, int64_t rows, int64_t columns, int rows_of_box) {
  return boxes_of(dtype, matrix.data, matrix.row, rows, columns, rows_of_box);
}

template <template <class> class Pass>
void launch(const Device& device, const GeluProductShape& shape, Problem& p) {
  p.row_tiles = static_cast<int>(tiles_in(shape.rows));
  p.column_tiles = static_cast<int>(tiles_in(shape.width));
  p.chunks = static_cast<int>(chunks_in(shape.inner));
  p.width = static_cast<int>(shape.width);
  const auto blocks = static_cast<unsigned>(p.column_tiles * parts_of_sums(device.multiprocessors, shape));
  sdk::dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    const auto kernel = gelu_product<typename decltype(element)::type, Pass>;
    constexpr int bytes = sizeof(Shared) + alignof(Shared);
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
    kernel<<<blocks, threads, bytes, device.stream>>>(p);
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

} // namespace

bool has_gelu_products(fvlm_device device) {
  return is_hopper(device);
}

bool fits_gelu_product(const GeluProductShape& shape) {
  return sdk::is_one_of<BFloat16, Half>(shape.dtype) && chunks_in(shape.inner) <= most_chunks;
}

bool copy_engine_takes(fvlm_dtype dtype, std::initializer_list<Matrix> matrices) {
  return sdk::bytes_of(dtype) == 2 && std::all_of(matrices.begin(), matrices.end(), [](const Matrix& each) {
           return plugins::copy_engine_takes(each.data, each.row);
         });
}

int64_t parts_of_sums(int multiprocessors, const GeluProductShape& shape) {
  return std::clamp<int64_t>(multiprocessors / tiles_in(shape.width), 1, tiles_in(shape.rows));
}

void plain_product(const Device& device, const GeluProductShape& shape, const PlainProduct& o) {
  Problem p{};
  p.left = map_of(shape.dtype, o.x, shape.rows, shape.inner, tile);
  p.out = map_of(shape.dtype, o.y, shape.rows, shape.width, box_rows);
  p.adds_before = o.residual.data != nullptr;
  if (p.adds_before) p.before = map_of(shape.dtype, o.residual, shape.rows, shape.width, box_rows);
  p.bias = o.bias;
  if (o.by_rows) {
    p.right = map_of(shape.dtype, o.weight, shape.inner, shape.width, box_width);
    launch<PlainByRows>(device, shape, p);
  } else {
    p.right = map_of(shape.dtype, o.weight, shape.width, shape.inner, tile);
    launch<Plain>(device, shape, p);
  }
}

void gelu_forward(const Device& device, const GeluProductShape& shape, const GeluForward& o) {
  Problem p{};
  p.left = map_of(shape.dtype, o.x, shape.rows, shape.inner, tile);
  p.right = map_of(shape.dtype, o.weight, shape.width, shape.inner, tile);
  p.out = map_of(shape.dtype, o.y, shape.rows, shape.width, box_rows);
  p.keeps_before = o.sum.data != o.y.data;
  if (p.keeps_before) p.before = map_of(shape.dtype, o.sum, shape.rows, shape.width, box_rows);
  p.bias = o.bias;
  launch<Forward>(device, shape, p);
}

void gelu_backward(const Device& device, const GeluProductShape& shape, const GeluBackward& o) {
  Problem p{};
  p.left = map_of(shape.dtype, o.d_y, shape.rows, shape.inner, tile);
  p.right = map_of(shape.dtype, o.weight, shape.inner, shape.width, box_width);
  p.before = map_of(shape.dtype, o.x, shape.rows, shape.width, box_rows);
  p.out = map_of(shape.dtype, o.d_x, shape.rows, shape.width, box_rows);
  p.sums = o.sums;
  launch<Backward>(device, shape, p);
}

} // namespace fvlm::plugins
