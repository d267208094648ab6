// frame_forward.cu: a block goes through heads of segments, of which two are in its shared memory at a time. Two groups
// of four warps take tiles of 64 queries in turn and have the scores of all keys in registers. A warp fetches what
// comes next, another one sees to the rows behind the last key, and two to what is left behind the last whole tile.
#include "frame.cuh"

#include <algorithm>
#include <cmath>

namespace fvlm::plugins {
namespace {

using hopper::Barrier, hopper::group_warps, hopper::group_threads;

constexpr int groups = 2, multiplying_warps = groups * group_warps, frame_threads = (groups + 1) * group_threads;
constexpr int stages = 2;

struct FrameProblem {
  Problem call;
  HeadBoxes q, k, v;
};

struct alignas(1024) Shared {
  struct Stage {
    char q[rows_bytes], k[rows_bytes], v[rows_bytes]; // a tile of queries may reach into the keys
  } stage[stages];
  char out[multiplying_warps][rows_of_warp * row_bytes];
  Unit units[2 * stages];                                  // one is read until the next but one is there
  Barrier there[stages], free[stages];                     // queries and keys
  Barrier v_there[stages], v_ends[stages], v_free[stages]; // values; zeros behind them
  Barrier may_multiply[groups];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // no other architecture's compiler understands it

constexpr int tile = 64; // queries
// Of a thread; all together have what the kernel was started with, 168 a thread.
constexpr int multiplying_registers = 232, other_registers = 40;
static_assert(groups * multiplying_registers + other_registers == (groups + 1) * 168);

// What a block does one after the other: which stage has it, and which turn of the stage's barriers is its own.
struct Turn {
  unsigned count = 0;

  __device__ unsigned stage() const { return count % stages; }
  __device__ unsigned parity() const { return count / stages % 2; }
  __device__ unsigned unit() const { return count % (2 * stages); }
};

__device__ inline void leave(Barrier& barrier) {
  if (lane_index() == 0) barrier.arrive();
}

// What the block's copies are of, read by the thread that tells when it is done with.
__device__ inline Unit unit_of(const Shared& s, const Turn& turn) {
  Unit unit{};
  if (lane_index() == 0) unit = s.units[turn.unit()];
  int* const words = reinterpret_cast<int*>(&unit);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof unit / sizeof *words); ++i)
    words[i] = __shfl_sync(0xffffffffu, words[i], 0);
  return unit;
}

struct HasQueries {
  __device__ bool operator()(const Unit& unit) const { return unit.rows_q > 0; }
};

__device__ inline void prefetch(const CUtensorMap& matrix) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&matrix) : "memory");
}

__device__ void fetch(Shared& s, const FrameProblem& p) {
  if (lane_index() == 0)
    for (const HeadBoxes* each : {&p.q, &p.k, &p.v}) prefetch(each->large), prefetch(each->small);
  Units units(p.call, HasQueries{});
  for (Turn turn;; ++turn.count) {
    const Unit unit = units.next();
    if (lane_index() == 0) {
      const unsigned n = turn.stage(), before = turn.parity() ^ 1;
      const int head_kv = p.call.sharing.row_of(unit.head);
      auto& stage = s.stage[n];
      s.free[n].wait(before);
      s.units[turn.unit()] = unit;
      s.there[n].expect(static_cast<unsigned>((loaded_rows(unit.rows_q) + loaded_rows(unit.rows_kv)) * row_bytes));
      if (unit.exists()) {
        load_rows(stage.q, p.q, unit.head, unit.begin_q, unit.rows_q, s.there[n]);
        load_rows(stage.k, p.k, head_kv, unit.begin_kv, unit.rows_kv, s.there[n]);
      }
      s.v_free[n].wait(before);
      s.v_there[n].expect(static_cast<unsigned>(loaded_rows(unit.rows_kv) * row_bytes));
      if (unit.exists()) load_rows(stage.v, p.v, head_kv, unit.begin_kv, unit.rows_kv, s.v_there[n]);
    }
    if (!unit.exists()) return;
  }
}

template <class T>
__device__ void end_values(Shared& s) {
  for (Turn turn;; ++turn.count) {
    const unsigned n = turn.stage();
    s.v_there[n].wait(turn.parity());
    const Unit unit = unit_of(s, turn);
    if (!unit.exists()) return;
    zero_behind<T>(s.stage[n].v, unit.rows_kv);
    leave(s.v_ends[n]);
  }
}

// Outputs behind the last segment, by one warp of each block.
template <class T>
__device__ void zero_padding(const Problem& p) {
  const int begin = p.cu_q[p.segments] * p.heads_q, end = p.tokens_q * p.heads_q, step = warp / packs;
  const Pack<T, pack> zero{};
  for (int i = begin + static_cast<int>(blockIdx.x) * step + lane_index() / packs; i < end;
       i += static_cast<int>(gridDim.x) * step)
    zero.store(at<T>(p.out, i / p.heads_q, i % p.heads_q) + lane_index() % packs * pack);
}

constexpr int depth = 16, steps = most_rows / depth; // keys of a product of weights and values
constexpr int halves = 2;                            // of the keys
using Scores = hopper::ProductOf<most_rows / halves>[halves];

// Element i of those that a thread has of a block of 8 keys.
__device__ inline float& score_at(Scores& scores, int block, int i) {
  constexpr int blocks_of_half = most_rows / halves / 8;
  return scores[block / blocks_of_half][block % blocks_of_half * 4 + i];
}

template <class T>
__device__ void multiply_keys(Scores& scores, const char* q, const char* k) {
  const std::uint64_t left = hopper::operand(q), right = hopper::operand(k);
  hopper::before_products();
#pragma unroll
  for (unsigned step = 0; step < head_dim / depth; ++step)
#pragma unroll
    for (unsigned half = 0; half < halves; ++half)
      hopper::multiply<T, false>(scores[half], hopper::behind(left, step * depth * 2),
                                 hopper::behind(right, half * rows_bytes / halves + step * depth * 2), step > 0);
  hopper::end_products();
}

// Keys behind the last one are not seen.
__device__ inline void hide_behind(Scores& scores, int keys) {
  constexpr int usual = most_rows - depth; // only what is behind these has to be looked at where they are all there
  const int last = keys - column_of(0);
  const auto hide = [&](int block) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (8 * block + i % 2 >= last) score_at(scores, block, i) = -INFINITY;
  };
  if (keys < usual) {
#pragma unroll
    for (int block = 0; block < usual / 8; ++block) hide(block);
  }
#pragma unroll
  for (int block = usual / 8; block < most_rows / 8; ++block) hide(block);
}

// Scores of a thread's two rows become weights, as a left operand. `most`: of the scores, as powers of 2 take them.
template <class T>
__device__ void weigh(Scores& scores, float scale, float (&most)[2], float (&total)[2], Fragment (&left)[steps]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest[2] = {-INFINITY, -INFINITY}; // two chains, which take half as long
#pragma unroll
    for (int block = 0; block < most_rows / 8; ++block)
#pragma unroll
      for (int i = 0; i < 2; ++i) largest[i] = fmaxf(largest[i], score_at(scores, block, 2 * h + i));
    most[h] = most_of_four(fmaxf(largest[0], largest[1]));
    most[h] = most[h] == -INFINITY ? 0 : most[h] * scale; // no key is seen
    total[h] = 0;
  }
#pragma unroll
  for (int step = 0; step < steps; ++step) {
    float x[2][4];
#pragma unroll
    for (int block = 0; block < 2; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[block][i] = power_of_2(score_at(scores, 2 * step + block, i) * scale - most[i / 2]);
#pragma unroll
    for (int h = 0; h < 2; ++h) total[h] += (x[0][2 * h] + x[0][2 * h + 1]) + (x[1][2 * h] + x[1][2 * h + 1]);
    left[step] = as_left<T>(x[0], x[1]);
  }
}

template <class T>
__device__ void multiply_values(hopper::ProductOf<64>& sum, const Fragment (&weights)[steps], const char* v) {
  const std::uint64_t right = hopper::operand(v);
  hopper::before_products();
#pragma unroll
  for (int step = 0; step < steps; ++step)
    hopper::multiply<T, true>(sum, weights[step].at,
                              hopper::behind(right, static_cast<unsigned>(step * depth * row_bytes)), step > 0);
  hopper::end_products();
}

// `first`: of the warp's sixteen queries in the segment.
template <class T>
__device__ void store_outputs(const Problem& p, const Unit& unit, int first, const hopper::ProductOf<64>& sum,
                              const float (&most)[2], const float (&total_of_thread)[2], char* memory) {
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = sum_of_four(total_of_thread[h]);
    factor[h] = total > 0 ? __fdividef(1, total) : 0;
    const int row = first + lane_index() / 4 + 8 * h;
    if (p.log_sums && part_index() == 0 && row < unit.rows_q)
      p.log_sums[(unit.begin_q + row) * p.heads_q + unit.head] = total > 0 ? most[h] + __log2f(total) : INFINITY;
  }
  store_products<T>(p.out, unit.begin_q + first, unit.rows_q - first, unit.head, sum, factor, memory);
}

// A tile of 64 queries: the `index`-th of its unit, which has this turn.
struct QueryTile {
  Turn turn;
  Unit unit{};
  int index = 0;

  __device__ int tiles() const { return (unit.rows_q + tile - 1) / tile; }
  __device__ bool is_last_of_group() const { return index + groups >= tiles(); }
  __device__ int first_row_of_warp() const { return index * tile + warp_index() % group_warps * rows_of_warp; }
};

// Those of a group, one after the other.
class GroupTiles {
 public:
  __device__ GroupTiles(Shared& s, int group) : s_(s), first_(group) { --now_.turn.count; }

  __device__ const QueryTile& now() const { return now_; }

  // On to the next one, when its queries and keys are there; whether there is one.
  __device__ bool next() {
    for (now_.index += groups; now_.index >= now_.tiles();) {
      ++now_.turn.count;
      const unsigned n = now_.turn.stage();
      s_.there[n].wait(now_.turn.parity());
      now_.unit = unit_of(s_, now_.turn);
      if (!now_.unit.exists()) return false;
      now_.index = first_;
      first_ = (first_ + now_.tiles()) % groups;
      if (now_.index < now_.tiles()) break;
      leave(s_.free[n]);
      s_.v_there[n].wait(now_.turn.parity()); // so that the turn before has ended
      leave(s_.v_free[n]);
    }
    return true;
  }

 private:
  Shared& s_;
  QueryTile now_;
  int first_; // of the next unit
};

// Groups take turns with the tensor cores: while one has them, for a tile's values and the next one's keys, the other
// one computes weights.
template <class T>
__device__ void multiply(Shared& s, const Problem& p, int group) {
  Fragment left[steps] = {};
  hopper::ProductOf<64> sum = {};
  float most[2] = {}, total[2] = {};
  QueryTile own;
  const auto add_values = [&] {
    const unsigned n = own.turn.stage();
    s.v_there[n].wait(own.turn.parity());
    s.v_ends[n].wait(own.turn.parity());
    multiply_values<T>(sum, left, s.stage[n].v);
    hopper::wait_for_products<0>();
    if (own.is_last_of_group()) leave(s.v_free[n]);
  };
  const auto store = [&] {
    store_outputs<T>(p, own.unit, own.first_row_of_warp(), sum, most, total, s.out[warp_index()]);
  };
  GroupTiles tiles(s, group);
  for (unsigned turn = 0; tiles.next(); ++turn) {
    const QueryTile& next = tiles.now();
    const auto& stage = s.stage[next.turn.stage()];
    s.may_multiply[group].wait((turn + 1 - static_cast<unsigned>(group)) & 1);
    if (turn > 0) add_values();
    Scores scores;
    multiply_keys<T>(scores, stage.q + next.index * tile * row_bytes, stage.k);
    store(); // nothing, the first time
    hopper::wait_for_products<0>();
    leave(s.may_multiply[groups - 1 - group]);
    if (next.is_last_of_group()) leave(s.free[next.turn.stage()]);
    hide_behind(scores, next.unit.rows_kv);
    weigh<T>(scores, p.scale * log2_e, most, total, left);
    own = next;
  }
  if (own.unit.rows_q == 0) return;
  add_values();
  store();
}

__device__ void begin(Shared& s) {
  if (thread_index() == 0) {
    for (int n = 0; n < stages; ++n) {
      s.there[n].begin(1);
      s.v_there[n].begin(1);
      s.v_ends[n].begin(1);
      s.free[n].begin(multiplying_warps);
      s.v_free[n].begin(multiplying_warps);
    }
    for (Barrier& each : s.may_multiply) each.begin(group_warps);
    Barrier::begun();
  }
  __syncthreads();
}

#endif

template <class T>
__global__ void __launch_bounds__(frame_threads, 1) frame_forward_kernel(const __grid_constant__ FrameProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  begin(s);
  const int group = __shfl_sync(0xffffffffu, thread_index() / group_threads, 0); // one for the warp
  if (group == groups) {
    hopper::give_registers_away<other_registers>();
    switch (warp_index() % group_warps) {
    case 0:
      fetch(s, p);
      break;
    case 1:
      end_values<T>(s);
      break;
    case 2:
      zero_padding<T>(p.call);
      break;
    default:
      break;
    }
  } else {
    hopper::take_registers<multiplying_registers>();
    multiply<T>(s, p.call, group);
  }
#endif
}

} // namespace

bool takes_frames(const Problem& p) {
  return p.tokens_q > 0 && p.tokens_kv > 0 && fits_boxes(p.q, p.heads_q) && fits_boxes(p.k, p.heads_kv) &&
         fits_boxes(p.v, p.heads_kv);
}

void frame_forward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem) {
  const FrameProblem p{problem, boxes_of_heads(dtype, problem.q, problem.tokens_q, problem.heads_q),
                       boxes_of_heads(dtype, problem.k, problem.tokens_kv, problem.heads_kv),
                       boxes_of_heads(dtype, problem.v, problem.tokens_kv, problem.heads_kv)};
  const int64_t units = int64_t{problem.segments} * problem.heads_q;
  const auto count = static_cast<unsigned>(std::min<int64_t>(multiprocessors, std::max<int64_t>(units, 1)));
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    const auto kernel = frame_forward_kernel<typename decltype(element)::type>;
    constexpr int bytes = sizeof(Shared) + alignof(Shared);
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
    kernel<<<count, frame_threads, bytes, sdk::stream_of(call)>>>(p);
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

} // namespace fvlm::plugins
