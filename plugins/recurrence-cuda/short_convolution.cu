// short_convolution.cu: y = silu(c), where c is a causal convolution of a few taps along the rows of each segment, and
// its gradients.
//
// A block has a tile of rows; each of its threads keeps one pack of columns, with the weights and the rows before the
// current one in registers, and walks down the tile. So rows are read about once. The rows of a segment that read its
// state, its first taps - 1, all belong to the tile that has the first of them, whose threads also replace the state:
// each number of a state is read and written by one thread alone.
#include "common/cuda_columns.cuh"
#include "common/cuda_gelu.cuh"
#include "short_convolution.h"

namespace fvlm::plugins {
namespace {

constexpr int max_threads = 256;
constexpr int batch = 4; // rows whose loads are in flight at once
static_assert(batch >= max_taps - 1, "a batch replaces all rows before it");

// The rows of a block, and the first segment that has rows in them or behind them.
struct Tile {
  int begin, end, segment;
};

// All threads of the block call this. Segments that end before the tile begins are counted by all of them together.
__device__ Tile tile_of(const ShortConvolution& p, int rows, int tile_rows) {
  const int begin = static_cast<int>(blockIdx.x) * tile_rows, threads = static_cast<int>(blockDim.x);
  Tile tile{begin, min(begin + tile_rows, rows), 0};
  for (int first = 0; first < p.segments; first += threads) {
    const int segment = first + static_cast<int>(threadIdx.x);
    const int ended = __syncthreads_count(segment < p.segments && p.cu_seqlens[segment + 1] <= begin);
    tile.segment += ended;
    if (ended < threads) break;
  }
  return tile;
}

// Calls body(segment, start, stop) for each segment that has rows in the tile, and returns the tile's first row of
// padding, or its end.
template <class Body>
__device__ int for_each_segment(const ShortConvolution& p, int rows, const Tile& tile, const Body& body) {
  const int last = min(p.cu_seqlens[p.segments], rows), end = min(last, tile.end);
  int segment = tile.segment;
  for (int start = p.cu_seqlens[segment]; start < end; ++segment) {
    const int stop = min(p.cu_seqlens[segment + 1], rows);
    if (start < stop) body(segment, start, stop);
    start = stop;
  }
  return max(tile.begin, end);
}

template <class Type, int size>
__device__ void clear_rows(const Rows& rows, int begin, int end, std::int64_t first) {
  const float zeros[size] = {};
  for (int row = begin; row < end; ++row) write(at<Type>(rows, row, first), zeros);
}

// A thread's columns of the parameters.
template <class Type, int size>
struct Columns {
  float weight[max_taps][size]; // by distance; 0 where there is no tap
  float bias[size];

  __device__ Columns(const ShortConvolution& p, std::int64_t first) : weight{}, bias{} {
    if (p.bias) read(static_cast<const Type*>(p.bias) + first, bias);
#pragma unroll
    for (int i = 0; i < size; ++i) {
      const Type* from = static_cast<const Type*>(p.weight) + (first + i) * p.taps;
      float taps[max_taps] = {};
      if (size > 1 && p.taps == max_taps) {
        read(from, taps);
#pragma unroll
        for (int distance = 0; distance < max_taps; ++distance) weight[distance][i] = taps[max_taps - 1 - distance];
      } else {
#pragma unroll
        for (int distance = 0; distance < max_taps; ++distance)
          if (distance < p.taps) weight[distance][i] = static_cast<float>(from[p.taps - 1 - distance]);
      }
    }
  }
};

// Rows of x in memory format: those before a batch, and the batch.
template <class Type, int size>
struct Window {
  Pack<Type, size> rows[max_taps - 1 + batch];

  // Row `distance` before row `i` of the batch.
  __device__ const Pack<Type, size>& back(int i, int distance) const { return rows[max_taps - 1 + i - distance]; }
  __device__ void advance() {
#pragma unroll
    for (int i = 0; i < max_taps - 1; ++i) rows[i] = rows[i + batch];
  }
  // Only taps that exist are multiplied, because what lies behind them need not be finite.
  __device__ void convolve(const Columns<Type, size>& columns, int taps, int i, float (&c)[size]) const {
#pragma unroll
    for (int k = 0; k < size; ++k) c[k] = columns.bias[k];
#pragma unroll
    for (int distance = 0; distance < max_taps; ++distance) {
      if (distance >= taps) continue;
      float x[size];
      back(i, distance).widen(x);
#pragma unroll
      for (int k = 0; k < size; ++k) c[k] = fmaf(columns.weight[distance][k], x[k], c[k]);
    }
  }
};

// Computes rows [from, to) of y. `row_before` gives the pack of a row that precedes `from`.
template <class Type, int size, class RowBefore>
__device__ void convolve_rows(const ShortConvolution& p, const Columns<Type, size>& columns, int from, int to,
                              std::int64_t first, const RowBefore& row_before) {
  Window<Type, size> window{};
#pragma unroll
  for (int distance = 1; distance < max_taps; ++distance)
    if (distance < p.taps) window.rows[max_taps - 1 - distance] = row_before(from - distance);
  for (int row = from; row < to; row += batch) {
#pragma unroll
    for (int i = 0; i < batch; ++i)
      if (row + i < to) window.rows[max_taps - 1 + i].load(at<Type>(p.x, row + i, first));
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (row + i >= to) break;
      float c[size];
      window.convolve(columns, p.taps, i, c);
#pragma unroll
      for (int k = 0; k < size; ++k) c[k] *= sigmoid<Type>(c[k]);
      write(at<Type>(p.y, row + i, first), c);
    }
    window.advance();
  }
}

template <class Type, int size>
__global__ void __launch_bounds__(max_threads)
    forward_kernel(ShortConvolution p, int rows, std::int64_t packs, int tile_rows) {
  const Tile tile = tile_of(p, rows, tile_rows);
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x, first = pack * size;
  if (pack >= packs) return;
  const Columns<Type, size> columns(p, first);
  const int padding = for_each_segment(p, rows, tile, [&](int segment, int start, int stop) {
    // Rows before `free` read the state and belong to the tile of the first one.
    const int free = p.slots ? start + p.taps - 1 : start;
    const bool is_first = start >= tile.begin;
    const int from = is_first ? start : max(tile.begin, free),
              to = min(stop, is_first ? max(tile.end, free) : tile.end);
    if (from >= to) return; // all rows here are of the first tile
    Type* const state =
        p.slots && is_first ? static_cast<Type*>(p.states.data) + p.slots[segment] * p.states.slot + first : nullptr;
    const bool continues = state && p.starts[segment] == 0;
    const auto row_before = [&](int row) {
      Pack<Type, size> values{};
      if (row >= start)
        values.load(at<Type>(p.x, row, first));
      else if (continues)
        values.load(state + (p.taps - 1 + row - start) * p.states.row);
      return values;
    };
    convolve_rows(p, columns, from, to, first, row_before);
    if (!state) return;
    Pack<Type, size> next[max_taps - 1]; // all is read before anything is replaced
#pragma unroll
    for (int distance = 1; distance < max_taps; ++distance)
      if (distance < p.taps) next[distance - 1] = row_before(stop - distance);
#pragma unroll
    for (int distance = 1; distance < max_taps; ++distance)
      if (distance < p.taps) next[distance - 1].store(state + (p.taps - 1 - distance) * p.states.row);
  });
  clear_rows<Type, size>(p.y, padding, tile.end, first);
}

// Sums of a thread's columns: of d_weight by distance, then of d_bias.
template <int size>
using Sums = float[max_taps + 1][size];

template <class Type, int size>
__device__ void add_to_sums(const Window<Type, size>& window, int i, const float (&d_c)[size], Sums<size>& sum) {
#pragma unroll
  for (int distance = 0; distance < max_taps; ++distance) {
    float x[size];
    window.back(i, distance).widen(x);
#pragma unroll
    for (int k = 0; k < size; ++k) sum[distance][k] = fmaf(d_c[k], x[k], sum[distance][k]);
  }
#pragma unroll
  for (int k = 0; k < size; ++k) sum[max_taps][k] += d_c[k];
}

// Computes rows [from, to) of d_x of the segment [start, stop), and adds these rows' part of the sums. Row r of d_x
// needs the gradients d_c of rows r to r + taps - 1, so it is written max_taps - 1 rows later.
template <class Type, int size>
__device__ void gradients_of_rows(const ShortConvolution& p, const ShortConvolutionGradients& g,
                                  const Columns<Type, size>& columns, int start, int stop, int from, int to,
                                  std::int64_t first, Sums<size>& sum) {
  constexpr int delay = max_taps - 1;
  const int needed = min(stop, to + delay);
  Window<Type, size> window{};
#pragma unroll
  for (int distance = 1; distance < max_taps; ++distance)
    if (distance < p.taps && from - distance >= start)
      window.rows[max_taps - 1 - distance].load(at<Type>(p.x, from - distance, first));
  float d_c[max_taps][size] = {}; // of rows row - delay to row
  for (int begin = from; begin < to + delay; begin += batch) {
    Pack<Type, size> d_y[batch]{};
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      if (begin + i >= needed) break;
      window.rows[max_taps - 1 + i].load(at<Type>(p.x, begin + i, first));
      d_y[i].load(at<Type>(g.d_y, begin + i, first));
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int row = begin + i, ready = row - delay;
#pragma unroll
      for (int j = 0; j < delay; ++j)
#pragma unroll
        for (int k = 0; k < size; ++k) d_c[j][k] = d_c[j + 1][k];
      float c[size], d[size];
      window.convolve(columns, p.taps, i, c);
      d_y[i].widen(d);
#pragma unroll
      for (int k = 0; k < size; ++k) {
        const float open = sigmoid<Type>(c[k]), silu = c[k] * open;
        d_c[delay][k] = row < needed ? d[k] * fmaf(silu, 1 - open, open) : 0;
      }
      if (row < to) add_to_sums(window, i, d_c[delay], sum);
      if (ready < from || ready >= to) continue;
#pragma unroll
      for (int k = 0; k < size; ++k) {
        d[k] = 0;
#pragma unroll
        for (int distance = 0; distance < max_taps; ++distance)
          d[k] = distance < p.taps ? fmaf(columns.weight[distance][k], d_c[distance][k], d[k]) : d[k];
      }
      write(at<Type>(g.d_x, ready, first), d);
    }
    window.advance();
  }
}

// Sums of distances that are no taps are computed, but not written.
template <class Type, int size>
__global__ void __launch_bounds__(max_threads, 2)
    backward_kernel(ShortConvolution p, ShortConvolutionGradients g, int rows, std::int64_t packs, int tile_rows) {
  const Tile tile = tile_of(p, rows, tile_rows);
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x, first = pack * size;
  if (pack >= packs) return;
  const Columns<Type, size> columns(p, first);
  float sum[max_taps + 1][size] = {};
  const int padding = for_each_segment(p, rows, tile, [&](int, int start, int stop) {
    gradients_of_rows(p, g, columns, start, stop, max(tile.begin, start), min(tile.end, stop), first, sum);
  });
  clear_rows<Type, size>(g.d_x, padding, tile.end, first);
  if (!g.parts) return;
  const std::int64_t width = packs * size;
  float* const part = g.parts + static_cast<std::int64_t>(blockIdx.x) * (p.taps + 1) * width + first;
#pragma unroll
  for (int distance = 0; distance < max_taps; ++distance)
    if (distance < p.taps) write(part + distance * width, sum[distance]);
  write(part + p.taps * width, sum[max_taps]);
}

// A thread adds up the parts of one number, in their order.
template <class Gradient>
__global__ void __launch_bounds__(max_threads)
    add_parts_kernel(ShortConvolutionGradients g, int parts, int taps, std::int64_t width) {
  const std::int64_t index = sdk::item_index(), distance = index / width, column = index - distance * width;
  if (distance > taps) return;
  Gradient* const weight = static_cast<Gradient*>(g.d_weight);
  Gradient* const bias = static_cast<Gradient*>(g.d_bias);
  if (!(distance < taps ? weight : bias)) return;
  Gradient* const out = distance < taps ? weight + column * taps + taps - 1 - distance : bias + column;
  float sum = g.accumulate ? static_cast<float>(*out) : 0;
#pragma unroll 8
  for (int part = 0; part < parts; ++part) sum += g.parts[part * (taps + 1) * width + index];
  *out = Gradient(sum);
}

// Blocks of threads side by side over the columns, and of tiles of rows.
struct Grid {
  dim3 blocks;
  unsigned threads;
  int tile_rows;
};

Grid grid_of(std::int64_t rows, std::int64_t packs, std::int64_t tile_rows) {
  const std::int64_t across = (packs + max_threads - 1) / max_threads, threads = (packs + across - 1) / across;
  return {dim3(static_cast<unsigned>((rows + tile_rows - 1) / tile_rows), static_cast<unsigned>(across)),
          static_cast<unsigned>((threads + warp_size - 1) / warp_size * warp_size), static_cast<int>(tile_rows)};
}

// How many tiles of at least 16 rows occupy all multiprocessors in backward; no more for narrower packs, which take
// more threads side by side.
constexpr int gradient_pack = 4;
std::int64_t gradient_tiles(const Device& device, std::int64_t rows, std::int64_t packs) {
  constexpr std::int64_t min_rows = 16;
  const std::int64_t across = std::max<std::int64_t>(1, (packs + max_threads - 1) / max_threads);
  return std::min((rows + min_rows - 1) / min_rows,
                  std::max<std::int64_t>(1, max_summing_blocks(device.multiprocessors) / across));
}

void add_parts(const Device& device, const ShortConvolutionGradients& gradients, std::int64_t parts, int taps,
               std::int64_t width) {
  sdk::dispatch<float, BFloat16, Half>(gradients.type, [&](auto gradient) {
    const std::int64_t blocks = ((taps + 1) * width + max_threads - 1) / max_threads;
    add_parts_kernel<typename decltype(gradient)::type>
        <<<static_cast<unsigned>(blocks), max_threads, 0, device.stream>>>(gradients, static_cast<int>(parts), taps,
                                                                           width);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace

std::int64_t max_convolution_parts(const Device& device, std::int64_t rows, std::int64_t width) {
  return gradient_tiles(device, rows, (width + gradient_pack - 1) / gradient_pack);
}

void short_convolution_forward(const Device& device, const Shape& shape, const ShortConvolution& convolution) {
  if (shape.rows == 0 || shape.width == 0) return;
  with_packs(shape, [&](auto element, auto pack) {
    constexpr int size = decltype(pack)::value;
    const std::int64_t packs = shape.width / size, across = (packs + max_threads - 1) / max_threads;
    // With few rows, tiles of one row spread the work over all multiprocessors.
    const std::int64_t tile_rows = shape.rows * across / (4 * static_cast<std::int64_t>(device.multiprocessors));
    const Grid grid = grid_of(shape.rows, packs, std::clamp<std::int64_t>(tile_rows, 1, 32));
    forward_kernel<typename decltype(element)::type, size><<<grid.blocks, grid.threads, 0, device.stream>>>(
        convolution, static_cast<int>(shape.rows), packs, grid.tile_rows);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

void short_convolution_backward(const Device& device, const Shape& shape, const ShortConvolution& convolution,
                                const ShortConvolutionGradients& gradients) {
  if (shape.width == 0) return;
  std::int64_t parts = 0;
  if (shape.rows > 0)
    with_packs(shape, [&](auto element, auto pack) {
      // Larger packs of 16-bit numbers would leave too few registers.
      constexpr int size = std::min<int>(gradient_pack, decltype(pack)::value);
      const std::int64_t packs = shape.width / size, tiles = gradient_tiles(device, shape.rows, packs);
      const Grid grid = grid_of(shape.rows, packs, (shape.rows + tiles - 1) / tiles);
      parts = grid.blocks.x;
      backward_kernel<typename decltype(element)::type, size><<<grid.blocks, grid.threads, 0, device.stream>>>(
          convolution, gradients, static_cast<int>(shape.rows), packs, grid.tile_rows);
      sdk::check_cuda(cudaGetLastError(), "launch");
    });
  if (gradients.d_weight || gradients.d_bias) add_parts(device, gradients, parts, convolution.taps, shape.width);
}

} // namespace fvlm::plugins
