// Two groups of four warps take tiles of 128 tokens x 192 words in turn: while one computes exponentials, the other
// multiplies. Two blocks of a cluster have tiles of the same words, or of the same tokens, and fetch those once, half
// each.
#include "common/cuda_boxes.h"
#include "exponentials.h"
#include "turns.cuh"

namespace fvlm::plugins {
namespace {

using namespace hopper;
using std::int64_t;

constexpr int tile_rows = 128, tile_columns = 192;
constexpr int left_bytes = tile_rows * box_row_bytes, right_bytes = tile_columns * box_row_bytes;
constexpr int groups = turn_groups, multiplying_warps = groups * group_warps;
constexpr int box_rows = 16, box_bytes = box_rows * box_row_bytes; // of what a warp stores

struct Problem {
  CUtensorMap left, right, out;
  const float* shifts;
  float* parts;
  int rows, vocab, row_turns, column_turns, chunks; // turns: tiles, or pairs where two blocks have one each
  bool stores;
};

struct alignas(8 * box_row_bytes) Shared {
  char left[stages][left_bytes];
  char right[stages][right_bytes];
  char out[multiplying_warps][box_bytes];
  Turns turns;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // no other architecture's compiler understands it

constexpr int halves = 2, column_boxes = tile_columns / box_width; // of a tile
constexpr float log2_e = 1.44269504088896340736f;
using Tile = ProductOf<tile_columns>;

// What a block has of the tiles: some of those of one row of them.
template <bool same_columns>
struct Share {
  int row, part;        // its first row, and which part of the rows' sums
  int first, step, end; // turns of columns
  unsigned rank = rank_in_cluster();

  __device__ explicit Share(const Problem& p) {
    const int cluster = static_cast<int>(blockIdx.x) / together, its_rank = static_cast<int>(rank);
    const int row_turn = cluster % p.row_turns;
    first = cluster / p.row_turns, step = static_cast<int>(gridDim.x) / together / p.row_turns, end = p.column_turns;
    row = (same_columns ? row_turn * together + its_rank : row_turn) * tile_rows;
    part = same_columns ? first : first * together + its_rank;
  }
  __device__ int column(int turn) const {
    return (same_columns ? turn : turn * together + static_cast<int>(rank)) * tile_columns;
  }
};

template <bool same_columns>
__device__ void fetch(Shared& s, const Problem& p, const Share<same_columns>& share) {
  constexpr unsigned both = (1 << together) - 1;
  const int rank = static_cast<int>(share.rank);
  unsigned count = 0;
  for (int turn = share.first; turn < share.end; turn += share.step)
    for (int at = 0; at < p.chunks * box_width; at += box_width, ++count) {
      const Stage stage(count);
      char *left = s.left[stage.index], *right = s.right[stage.index];
      Barrier& there = s.turns.there[stage.index];
      s.turns.free[stage.index].wait(stage.parity ^ 1);
      there.expect(left_bytes + right_bytes);
      if constexpr (same_columns) {
        load_box(left, p.left, at, share.row, there);
        load_box(right + rank * right_bytes / together, p.right, at,
                 share.column(turn) + rank * tile_columns / together, there, both);
      } else {
        load_box(right, p.right, at, share.column(turn), there);
        load_box(left + rank * left_bytes / together, p.left, at, share.row + rank * tile_rows / together, there, both);
      }
    }
}

// The product of the group's `turn`-th tile.
__device__ void multiply_tile(Tile (&sum)[halves], Shared& s, int chunks, int group, int turn) {
  constexpr unsigned depth = 16, steps = box_width / depth; // of one product
  const std::uint64_t left = operand(s.left), right = operand(s.right);
  const unsigned first = static_cast<unsigned>((groups * turn + group) * chunks),
                 last = first + static_cast<unsigned>(chunks) - 1;
  s.turns.wait(group, turn);
  for (unsigned chunk = first; chunk <= last; ++chunk) {
    const Stage stage(chunk);
    s.turns.there[stage.index].wait(stage.parity);
    const std::uint64_t its_left = behind(left, stage.index * left_bytes),
                        its_right = behind(right, stage.index * right_bytes);
    before_products();
#pragma unroll
    for (unsigned step = 0; step < steps; ++step)
#pragma unroll
      for (unsigned half = 0; half < halves; ++half)
        multiply<BFloat16, false>(sum[half], behind(its_left, half * left_bytes / halves + step * depth * 2),
                                  behind(its_right, step * depth * 2), chunk > first || step > 0);
    end_products();
    if (chunk == last) s.turns.pass_on(group);
    if (chunk == first) continue;
    wait_for_products<1>();
    s.turns.leave(chunk - 1);
  }
  wait_for_products<0>();
  s.turns.leave(last);
}

__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What a warp does with its rows of a tile: 16 of each half.
struct Around {
  const Problem& p;
  Shared& s;
  int row; // of its thread: others are 8, and half a tile, behind
  bool leads = threadIdx.x % warp == 0;
  float shifts[halves][2], sums[halves][2] = {};

  __device__ Around(const Problem& problem, Shared& shared, int first_row)
      : p(problem), s(shared), row(first_row + warp_in_group() * box_rows + static_cast<int>(threadIdx.x) % warp / 4) {
#pragma unroll
    for (int half = 0; half < halves; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) shifts[half][i] = row_of(half, i) < p.rows ? p.shifts[row_of(half, i)] : INFINITY;
  }

  // edge: columns of it, at and past which there are none.
  __device__ void finish(const Tile (&sum)[halves], int first_row, int column) {
    const int edge = p.vocab - column;
#pragma unroll
    for (int half = 0; half < halves; ++half) {
      const bool lives[2] = {shifts[half][0] != INFINITY, shifts[half][1] != INFINITY};
#pragma unroll
      for (int box = 0; box < column_boxes; ++box) {
        char* to = s.out[threadIdx.x / warp];
        if (leads) wait_until_read<0>();
        __syncwarp();
#pragma unroll
        for (int pair = 0; pair < box_width / 16; ++pair)
          finish(sum[half], half, box * box_width + pair * 16, edge, lives, place(to, pair));
        before_copies();
        __syncwarp();
        if (!leads || !p.stores) continue;
        store_box(p.out, column + box * box_width, first_row + half * tile_rows / halves + warp_in_group() * box_rows,
                  to);
        end_stores();
      }
    }
  }
  __device__ void end(int part) {
    if (leads) wait_until_read<0>();
#pragma unroll
    for (int half = 0; half < halves; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = sums[half][i];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (threadIdx.x % 4 == 0 && row_of(half, i) < p.rows)
          p.parts[static_cast<int64_t>(part) * p.rows + row_of(half, i)] = sum;
      }
  }

 private:
  __device__ static int warp_in_group() {
    return static_cast<int>(threadIdx.x) / warp % group_warps;
  }
  // Where the squares of columns 16 pair to 16 pair + 15 lie in a box.
  __device__ static std::uint32_t place(const char* box, int pair) {
    const unsigned lane = threadIdx.x % warp, box_row = lane % box_rows, pack = lane / box_rows;
    return shared_address(box) + box_row * box_row_bytes +
           (((2 * static_cast<unsigned>(pair) + pack) ^ box_row % 8) << 4);
  }
  __device__ int row_of(int half, int i) const {
    return row + half * tile_rows / halves + i * 8;
  }
  __device__ void finish(const Tile& sum, int half, int column, int edge, const bool (&lives)[2], std::uint32_t to) {
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = power_of_2(fmaf(sum[column / 2 + i], log2_e, -shifts[half][i / 2 % 2]));
    if (edge < tile_columns) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (column + i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2 >= edge) x[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[half][i / 2 % 2] += x[i];
    if (!p.stores) return;
    Pack<BFloat16, 8> pack;
    pack.round(x);
    Squares squares;
#pragma unroll
    for (int i = 0; i < 4; ++i) squares.at[i] = lives[i % 2] ? pack.bits.at[i] : 0;
    squares.store(to);
  }
};

#endif

template <bool same_columns>
__global__ void FVLM_TOGETHER __launch_bounds__(turn_threads, 1)
    exponentials_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  const Share<same_columns> share(p);
  s.turns.begin();
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / group_threads, 0); // one for the warp
  if (group == groups) {
    give_registers_away<fetching_registers>();
    if (threadIdx.x % group_threads == 0) fetch(s, p, share);
    __syncwarp();
  } else {
    take_registers<multiplying_registers>();
    Around around(p, s, share.row);
    int turn = 0;
    for (int columns = share.first + group * share.step; columns < share.end; columns += groups * share.step, ++turn) {
      Tile sum[halves];
      multiply_tile(sum, s, p.chunks, group, turn);
      around.finish(sum, share.row, share.column(columns));
    }
    around.end(share.part * groups + group);
  }
  meet_cluster(); // nobody leaves before all that others send has come
#endif
}

int divide_up(int64_t size, int64_t by) {
  return static_cast<int>((size + by - 1) / by);
}

// Tiles of the same words go together where rows of tiles come in pairs.
bool are_of_same_columns(int64_t rows) {
  return divide_up(rows, tile_rows) % together == 0;
}
int row_turns_of(int64_t rows) {
  return divide_up(rows, tile_rows) / (are_of_same_columns(rows) ? together : 1);
}
int clusters_of_a_row(int multiprocessors, int64_t rows) {
  return std::max(1, multiprocessors / together / row_turns_of(rows));
}

} // namespace

int64_t parts_of_exponentials(int multiprocessors, int64_t rows) {
  return int64_t{groups} * clusters_of_a_row(multiprocessors, rows) * (are_of_same_columns(rows) ? 1 : together);
}

int64_t most_part_sums(int multiprocessors, int64_t rows) {
  return groups * std::max<int64_t>(multiprocessors * tile_rows, together * rows);
}

void exponentials(const Device& device, const Exponentials& o) {
  const bool same_columns = are_of_same_columns(o.rows);
  const int row_part = same_columns ? 1 : together, column_part = same_columns ? together : 1;
  Problem p{};
  p.left = boxes_of(sdk::bfloat16, o.hidden.data, o.hidden.row, o.rows, o.width, tile_rows / row_part);
  p.right = boxes_of(sdk::bfloat16, o.weight.data, o.weight.row, o.vocab, o.width, tile_columns / column_part);
  p.stores = o.out.data != nullptr;
  if (p.stores) p.out = boxes_of(sdk::bfloat16, o.out.data, o.out.row, o.rows, o.vocab, box_rows);
  p.shifts = o.shifts;
  p.parts = o.parts;
  p.rows = static_cast<int>(o.rows);
  p.vocab = static_cast<int>(o.vocab);
  p.row_turns = row_turns_of(o.rows);
  p.column_turns = divide_up(o.vocab, tile_columns * row_part);
  p.chunks = divide_up(o.width, box_width);
  const auto kernel = same_columns ? exponentials_kernel<true> : exponentials_kernel<false>;
  const auto blocks = static_cast<unsigned>(clusters_of_a_row(device.multiprocessors, o.rows) * p.row_turns * together);
  constexpr int bytes = sizeof(Shared) + alignof(Shared);
  sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  kernel<<<blocks, turn_threads, bytes, device.stream>>>(p);
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
