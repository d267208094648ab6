// One group of warps has tiles of d_weight, and stores them while the other multiplies, which sums a tile of d_hidden
// over words. Clusters share out the words, and all of them are at much the same ones at a time, so that exponentials
// come from memory once. A second launch adds up the parts of d_hidden.
#include "common/cuda_boxes.h"
#include "common/cuda_wide_products.cuh"
#include "gradients.h"
#include "turns.cuh"

namespace fvlm::plugins {
namespace {

using namespace hopper;
using std::int64_t;

constexpr int tile_rows = 128, tile_columns = 192, depth = 64; // of a product, and what of the inner size comes at once
constexpr int halves = 2, box_bytes = depth * box_row_bytes, right_boxes = tile_columns / box_width;
constexpr int left_bytes = halves * box_bytes, right_bytes = right_boxes * box_bytes;
constexpr int out_rows = 16, out_bytes = out_rows * box_row_bytes;
constexpr int outs = 2; // such boxes has a warp to store from
constexpr int tile_fours = tile_rows * tile_columns / 4;
constexpr int words_together = together * tile_rows; // of a cluster's two tiles of d_weight

struct Problem {
  CUtensorMap exponentials, weight, scaled_hidden, d_weight;
  float4* parts; // [part, pair of tiles, block, four of a thread, thread]
  int row_pairs, column_tiles, word_pairs, splits;
  int row_chunks; // of d_weight's sums
  bool accumulate;
};

struct alignas(8 * box_row_bytes) Shared {
  char left[stages][left_bytes];
  char right[stages][right_bytes];
  char out[group_warps][outs][out_bytes];
  Turns turns;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // no other architecture's compiler understands it

constexpr int out_columns = box_row_bytes / 4;
using Tile = ProductOf<tile_columns>;

// What a cluster has to do: in each turn two tiles of d_weight, and then some of the sums of its tiles of d_hidden. The
// last words come first: their exponentials may still be in the L2.
struct Share {
  int row_pair, column, split, splits, pairs; // pairs: of tiles of words that the split has
  int turns, row_chunks, row_pairs;
  unsigned rank = rank_in_cluster();

  __device__ explicit Share(const Problem& p) : splits(p.splits), row_chunks(p.row_chunks), row_pairs(p.row_pairs) {
    const int cluster = static_cast<int>(blockIdx.x) / together, tiles = p.row_pairs * p.column_tiles,
              tile = cluster % tiles;
    split = cluster / tiles, row_pair = tile / p.column_tiles, column = tile % p.column_tiles * tile_columns;
    pairs = (p.word_pairs - split + splits - 1) / splits;
    turns = (pairs + row_pairs - 1) / row_pairs;
  }
  __device__ int row() const { return (row_pair * together + static_cast<int>(rank)) * tile_rows; }
  // The chunks of d_hidden's sums begin with that one in the turn; the word that a chunk begins with.
  __device__ int chunk(int turn) const { return pairs * chunks_of_pair * turn / turns; }
  __device__ int word_of(int chunk) const {
    return first_word(chunk / chunks_of_pair) + chunk % chunks_of_pair * depth;
  }
  // The chunks of the turn's tiles of d_weight, if it has some; the word that the block's one begins with.
  __device__ int chunks_of_words(int turn) const { return pair(turn) < pairs ? row_chunks : 0; }
  __device__ int word(int turn) const { return first_word(pair(turn)) + static_cast<int>(rank) * tile_rows; }

 private:
  static constexpr int chunks_of_pair = words_together / depth;

  __device__ int pair(int turn) const { return turn * row_pairs + row_pair; }
  __device__ int first_word(int pair) const { return (split + (pairs - 1 - pair) * splits) * words_together; }
};

struct Fetch {
  Shared& s;
  const Share& share;
  unsigned count = 0;

  // The left operand's second box is that far behind the first one.
  __device__ void one(const CUtensorMap& left, int left_column, int left_row, int to_column, int to_row,
                      const CUtensorMap& right, int right_row) {
    constexpr int rows = depth / together; // of the right operand: each block fetches as many for both
    const Stage stage(count++);
    const int first = static_cast<int>(share.rank) * rows;
    char* to_left = s.left[stage.index];
    char* to_right = s.right[stage.index] + first * box_row_bytes;
    Barrier& there = s.turns.there[stage.index];
    s.turns.free[stage.index].wait(stage.parity ^ 1);
    there.expect(left_bytes + right_bytes);
    for (int i = 0; i < halves; ++i)
      load_box(to_left + i * box_bytes, left, left_column + i * to_column, left_row + i * to_row, there);
    for (int i = 0; i < right_boxes; ++i)
      load_box(to_right + i * box_bytes, right, share.column + i * box_width, right_row + first, there,
               (1u << together) - 1);
  }
};

__device__ inline void fetch(Shared& s, const Problem& p, const Share& share) {
  Fetch fetch{s, share};
  for (int turn = 0; turn < share.turns; ++turn) {
    for (int chunk = 0; chunk < share.chunks_of_words(turn); ++chunk)
      fetch.one(p.exponentials, share.word(turn), chunk * depth, box_width, 0, p.scaled_hidden, chunk * depth);
    for (int chunk = share.chunk(turn); chunk < share.chunk(turn + 1); ++chunk)
      fetch.one(p.exponentials, share.word_of(chunk), share.row(), 0, box_width, p.weight, share.word_of(chunk));
  }
}

// The products of a group: of d_weight the first's, of d_hidden the second's.
template <int group>
struct Products {
  Shared& s;
  std::uint64_t left = operand(s.left), right = operand(s.right, box_bytes);

  // sum += the products of chunks [first, end), of which there is one at least; or = them.
  __device__ void multiply(Tile (&sum)[halves], unsigned first, unsigned end, bool adds) const {
    multiply_chunk(sum, first, adds);
    for (unsigned count = first + 1; count < end; ++count) {
      multiply_chunk(sum, count, true);
      wait_for_products<1>();
      s.turns.leave(count - 1);
    }
    s.turns.pass_on(group);
    wait_for_products<0>();
    s.turns.leave(end - 1);
  }

 private:
  __device__ void multiply_chunk(Tile (&sum)[halves], unsigned count, bool adds) const {
    constexpr unsigned step = 16; // of one product
    const Stage stage(count);
    const std::uint64_t chunk_left = behind(left, stage.index * left_bytes),
                        chunk_right = behind(right, stage.index * right_bytes);
    s.turns.there[stage.index].wait(stage.parity);
    before_products();
#pragma unroll
    for (unsigned at = 0; at < depth; at += step)
#pragma unroll
      for (unsigned half = 0; half < halves; ++half) {
        const std::uint64_t its_left = behind(chunk_left, half * box_bytes),
                            its_right = behind(chunk_right, at * box_row_bytes);
        if constexpr (group == 0)
          multiply_by_rows<BFloat16, tile_columns>(sum[half], behind(its_left, at * box_row_bytes), its_right,
                                                   adds || at > 0);
        else
          hopper::multiply<BFloat16, true>(sum[half], behind(its_left, at * 2), its_right, adds || at > 0);
      }
    end_products();
  }
};

__device__ inline void sum_hidden(Shared& s, const Problem& p, const Share& share) {
  const Products<1> products{s};
  Tile sum[halves];
  unsigned count = 0;
  for (int turn = 0; turn < share.turns; ++turn) {
    count += static_cast<unsigned>(share.chunks_of_words(turn));
    const auto chunks = static_cast<unsigned>(share.chunk(turn + 1) - share.chunk(turn));
    s.turns.wait(1, turn);
    products.multiply(sum, count, count + chunks, turn > 0);
    count += chunks;
  }
  float4* to = p.parts + static_cast<int64_t>(blockIdx.x) * tile_fours + threadIdx.x % group_threads;
#pragma unroll
  for (int half = 0; half < halves; ++half)
#pragma unroll
    for (int i = 0; i < tile_columns / 2; i += 4, to += group_threads)
      *to = make_float4(sum[half][i], sum[half][i + 1], sum[half][i + 2], sum[half][i + 3]);
}

// A warp's 16 rows of either half, box by box.
__device__ inline void store(const Tile (&sum)[halves], Shared& s, const Problem& p, int column, int word) {
  constexpr int boxes = tile_columns / out_columns;
  const unsigned lane = threadIdx.x % warp, row = lane / 4, its_warp = threadIdx.x / warp % group_warps;
  const bool leads = lane == 0;
#pragma unroll
  for (int half = 0; half < halves; ++half)
#pragma unroll
    for (int box = 0; box < boxes; ++box) {
      char* out = s.out[its_warp][box % outs];
      if (leads) wait_until_read<outs - 1>();
      __syncwarp();
#pragma unroll
      for (unsigned eight = 0; eight < out_columns / 8; ++eight)
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
          const int at = box * (out_columns / 2) + static_cast<int>(eight * 4 + i * 2);
          const unsigned place = (2 * eight + lane % 4 / 2) ^ row;
          *reinterpret_cast<float2*>(out + (row + 8 * i) * box_row_bytes + place * 16 + lane % 2 * 8) =
              make_float2(sum[half][at], sum[half][at + 1]);
        }
      before_copies();
      __syncwarp();
      if (!leads) continue;
      const int out_row = word + half * box_width + static_cast<int>(its_warp) * out_rows;
      if (p.accumulate)
        add_box(p.d_weight, column + box * out_columns, out_row, out);
      else
        store_box(p.d_weight, column + box * out_columns, out_row, out);
      end_stores();
    }
}

// A tile of d_weight goes to the L2, where it will be added to. A turn earlier, and it would be gone again by then.
__device__ inline void prefetch(const Problem& p, int column, int word) {
  constexpr int in_row = tile_columns / out_columns, all = tile_rows / out_rows * in_row;
  const int box = static_cast<int>(threadIdx.x % group_threads);
  if (box < all) prefetch_box(p.d_weight, column + box % in_row * out_columns, word + box / in_row * out_rows);
}

__device__ inline void make_weight(Shared& s, const Problem& p, const Share& share) {
  const Products<0> products{s};
  unsigned count = 0;
  for (int turn = 0; turn < share.turns; ++turn) {
    Tile sum[halves];
    const auto chunks = static_cast<unsigned>(share.chunks_of_words(turn));
    s.turns.wait(0, turn);
    if (chunks > 0) {
      if (p.accumulate) prefetch(p, share.column, share.word(turn));
      products.multiply(sum, count, count + chunks, false);
      store(sum, s, p, share.column, share.word(turn));
    } else {
      s.turns.pass_on(0);
    }
    count += chunks + static_cast<unsigned>(share.chunk(turn + 1) - share.chunk(turn));
  }
  if (threadIdx.x % warp == 0) wait_until_read<0>();
}

#endif

__global__ void FVLM_TOGETHER __launch_bounds__(turn_threads, 1) gradients_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  const Share share(p);
  s.turns.begin();
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / group_threads, 0); // one for the warp
  if (group == turn_groups) {
    give_registers_away<fetching_registers>();
    if (threadIdx.x % group_threads == 0) fetch(s, p, share);
    __syncwarp();
  } else {
    take_registers<multiplying_registers>();
    if (group == 0)
      make_weight(s, p, share);
    else
      sum_hidden(s, p, share);
  }
  meet_cluster(); // nobody leaves before all that others send has come
#endif
}

struct Hidden {
  const float4* parts;
  const float* factors;
  BFloat16* d_hidden;
  int64_t row;
  int rows, width, column_tiles, tiles, splits; // tiles: of all blocks of a split
};

// A thread for each four of a part: two neighbours of a row, and of the row 8 further on.
__global__ void __launch_bounds__(group_threads) add_parts(const Hidden h) {
  const int four = static_cast<int>(blockIdx.x), tile = static_cast<int>(blockIdx.y),
            thread = static_cast<int>(threadIdx.x), lane = thread % warp;
  constexpr int fours = tile_columns / 8; // of a half
  const int pair = tile / together,
            row = (pair / h.column_tiles * together + tile % together) * tile_rows +
                  four / fours * (tile_rows / halves) + thread / warp * 16 + lane / 4,
            column = pair % h.column_tiles * tile_columns + four % fours * 8 + lane % 4 * 2;
  if (row >= h.rows || column >= h.width) return;
  const float4* from = h.parts + (static_cast<int64_t>(tile) * fours * halves + four) * group_threads + thread;
  float4 sum{};
#pragma unroll 4
  for (int i = 0; i < h.splits; ++i) {
    const float4 part = __ldcg(from + static_cast<int64_t>(i) * h.tiles * tile_fours);
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }
  const float factor = h.factors[row];
  write(h.d_hidden + row * h.row + column, {sum.x * factor, sum.y * factor});
  if (row + 8 < h.rows) {
    const float next = h.factors[row + 8];
    write(h.d_hidden + (row + 8) * h.row + column, {sum.z * next, sum.w * next});
  }
}

int divide_up(int64_t size, int64_t by) {
  return static_cast<int>((size + by - 1) / by);
}

// How the work is cut.
struct Cut {
  int row_pairs, column_tiles, word_pairs, splits;

  Cut(int multiprocessors, const GradientsShape& shape)
      : row_pairs(divide_up(shape.rows, together * tile_rows)), column_tiles(divide_up(shape.width, tile_columns)),
        word_pairs(divide_up(shape.vocab, words_together)),
        splits(std::min(multiprocessors / together / clusters_of_split(), word_pairs)) {}
  int clusters_of_split() const { return row_pairs * column_tiles; }
};

} // namespace

bool fits_gradients(int multiprocessors, const GradientsShape& shape) {
  const Cut cut(multiprocessors, shape);
  return cut.splits > 0 && // and Share counts chunks times turns in 32 bits
         int64_t{cut.word_pairs} * cut.word_pairs * (words_together / depth) <= INT32_MAX;
}

int64_t gradient_parts_bytes(int multiprocessors) {
  return int64_t{multiprocessors} * tile_fours * static_cast<int64_t>(sizeof(float4));
}

void both_gradients(const Device& device, const GradientsShape& shape, const BothGradients& o, void* parts) {
  const Cut cut(device.multiprocessors, shape);
  Problem p{};
  p.exponentials = boxes_of(sdk::bfloat16, o.exponentials.data, o.exponentials.row, shape.rows, shape.vocab, depth);
  p.weight = boxes_of(sdk::bfloat16, o.weight.data, o.weight.row, shape.vocab, shape.width, depth / together);
  p.scaled_hidden =
      boxes_of(sdk::bfloat16, o.scaled_hidden.data, o.scaled_hidden.row, shape.rows, shape.width, depth / together);
  p.d_weight = boxes_of(sdk::float32, o.d_weight.data, o.d_weight.row, shape.vocab, shape.width, out_rows);
  p.parts = static_cast<float4*>(parts);
  p.row_pairs = cut.row_pairs, p.column_tiles = cut.column_tiles, p.word_pairs = cut.word_pairs, p.splits = cut.splits;
  p.row_chunks = divide_up(shape.rows, depth);
  p.accumulate = o.accumulate;
  constexpr int bytes = sizeof(Shared) + alignof(Shared);
  const int tiles = cut.clusters_of_split() * together;
  sdk::check_cuda(cudaFuncSetAttribute(gradients_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "shared memory");
  gradients_kernel<<<static_cast<unsigned>(tiles * cut.splits), turn_threads, bytes, device.stream>>>(p);
  sdk::check_cuda(cudaGetLastError(), "launch");
  const Hidden hidden{p.parts,
                      o.factors,
                      static_cast<BFloat16*>(o.d_hidden.data),
                      o.d_hidden.row,
                      static_cast<int>(shape.rows),
                      static_cast<int>(shape.width),
                      cut.column_tiles,
                      tiles,
                      cut.splits};
  const dim3 grid(tile_fours / group_threads, static_cast<unsigned>(tiles));
  add_parts<<<grid, group_threads, 0, device.stream>>>(hidden);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
