// whole_backward.cu: two groups of four warps have tiles of queries in turn: weights and the gradients of scores, from
// which d_q comes at once. A third group adds what these give d_k and d_v, turned on their sides so that 64 dimensions
// are a product's rows and keys its columns. A fourth one prepares the tiles to come. Few segments are shared by the
// blocks of a cluster, whose sums meet.
#include "common/cuda_cluster.cuh"
#include "gradients.cuh"
#include "whole.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace hopper;

constexpr int groups = 2, whole_threads = (groups + 2) * group_threads;
constexpr int stages = 4;                      // of tiles
constexpr int most_tiles = 12, most_parts = 4; // of a block; blocks of a cluster
constexpr int sums_apart = head_dim + 4;       // floats, so that neighbouring keys do not fall on the same banks

struct BackwardProblem : WholeProblem {
  CUtensorMap d_out, out, rest;

  BackwardProblem(const Problem& p, fvlm_dtype dtype)
      : WholeProblem(p, dtype), d_out(tiles.boxes(p, dtype, p.d_out)), out(tiles.boxes(p, dtype, p.out)),
        rest(p.out_rest ? tiles.boxes_of_rests(p) : CUtensorMap{}) {}
};

struct Statistic {
  float log_sum, delta;
};

struct alignas(1024) Shared {
  char k[whole_keys_bytes], v[whole_keys_bytes];
  struct Stage {
    char q[tile_bytes], d_out[tile_bytes];
    char out[tile_bytes]; // and then d_q
    char rest[whole_tile * head_dim];
  };
  union {
    Stage stage[stages];
    float sums[2][most_whole][sums_apart]; // d_k and d_v, when all tiles are done with
  };
  struct Weights {
    char weights[tile_bytes], d_scores[tile_bytes];
  } weights[groups];
  char turns[TurnTable::bytes];
  Statistic statistics[most_tiles][whole_tile];
  std::uint64_t steps[frequencies];
  std::int32_t positions_q[most_whole], positions_kv[most_whole];
  Barrier keys_there, there[stages], ready[stages], free[stages];
  Barrier weights_there[groups], weights_free[groups];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // no other architecture's compiler understands it

// Of a thread; all together have what the kernel is started with, 128 a thread.
constexpr int multiplying_registers = 144, summing_registers = 176, preparing_registers = 48;
static_assert(groups * multiplying_registers + summing_registers + preparing_registers == (groups + 2) * 128);

constexpr unsigned step_bytes = 16 * 2, turned_step_bytes = 16 * row_bytes; // to the next 16 of what is summed

__device__ int thread_of_group() {
  return thread_index() % group_threads;
}
__device__ int warp_of_group() {
  return warp_index() % group_warps;
}

// By all threads that have written what the barrier is for, or need it no more.
__device__ void arrive(Barrier& barrier) {
  before_copies();
  barrier.arrive();
}

template <class T>
class Block {
 public:
  __device__ Block(Shared& shared, const BackwardProblem& problem, const Whole& whole)
      : s_(shared), all_(problem), p_(problem.call), whole_(whole), tiles_(whole.tiles()), turns_{shared.turns} {}

  __device__ void run() {
    begin();
    const int group = __shfl_sync(0xffffffffu, warp_index() / group_warps, 0); // one for the warp
    if (group < groups) {
      take_registers<multiplying_registers>();
      if (group < tiles_) prepare(group, 0), prepare(group, 1);
      __syncthreads();
#pragma unroll 1
      for (int i = group; i < tiles_; i += groups) multiply_tile(i, group);
      __syncthreads(); // nobody uses the tiles any more
      meet();
      finish();
    } else if (group == groups) {
      take_registers<summing_registers>();
      settle(0);
      sum();
      meet();
      finish();
    } else {
      give_registers_away<preparing_registers>();
      settle(1);
#pragma unroll 1
      for (int i = groups; i < tiles_; ++i) {
        prepare(i, 1);
        if (const int next = i + stages - groups; next >= stages && next < tiles_ && thread_of_group() == 0) {
          s_.free[next % stages].wait(static_cast<unsigned>(next / stages - 1) & 1);
          load_tile(next);
        }
      }
      __syncthreads(); // nobody uses the tiles any more
      meet();
    }
    if (whole_.parts > 1) meet_cluster(); // others still read this block's sums
  }

 private:
  static constexpr int steps = head_dim / 16;

  __device__ void begin() {
    // What a barrier is for is begun by the thread that begins the barrier.
    if (lane_index() == 0) {
      if (warp_index() == stages) {
        s_.keys_there.begin(1);
        for (Barrier& each : s_.ready) each.begin(2 * group_threads);
        for (Barrier& each : s_.free) each.begin(2 * group_threads);
        for (Barrier& each : s_.weights_there) each.begin(group_threads);
        for (Barrier& each : s_.weights_free) each.begin(group_threads);
        Barrier::begun();
        s_.keys_there.expect(static_cast<unsigned>(2 * loaded_rows(whole_.rows_kv) * row_bytes));
        load_rows(s_.k, all_.k, whole_.head_kv, whole_.begin_kv, whole_.rows_kv, s_.keys_there);
        load_rows(s_.v, all_.v, whole_.head_kv, whole_.begin_kv, whole_.rows_kv, s_.keys_there);
      } else if (warp_index() < stages) {
        s_.there[warp_index()].begin(1);
        Barrier::begun();
        if (warp_index() < tiles_) load_tile(warp_index());
      }
    }
    // All are on their way at once.
    const int t = thread_index();
    const bool turns_q = p_.positions_q && t < whole_.rows_q, turns_kv = p_.positions_kv && t < whole_.rows_kv;
    const std::int32_t position_q = turns_q ? p_.positions_q[whole_.begin_q + t] : 0,
                       position_kv = turns_kv ? p_.positions_kv[whole_.begin_kv + t] : 0;
    const float first = log_sum(t);
    if (t < frequencies) s_.steps[t] = p_.steps[t];
    if (turns_q) s_.positions_q[t] = position_q;
    if (turns_kv) s_.positions_kv[t] = position_kv;
    if (t < tiles_ * whole_tile) s_.statistics[t / whole_tile][t % whole_tile].log_sum = first;
#pragma unroll 1
    for (int i = t + whole_threads; i < tiles_ * whole_tile; i += whole_threads)
      s_.statistics[i / whole_tile][i % whole_tile].log_sum = log_sum(i);
    zero_behind_segments<T>(p_.d_q, p_.heads_q, whole_.end_q, p_.tokens_q);
    zero_behind_segments<T>(p_.d_k, p_.heads_kv, whole_.end_kv, p_.tokens_kv);
    zero_behind_segments<T>(p_.d_v, p_.heads_kv, whole_.end_kv, p_.tokens_kv);
    keys_as_queries_ = __syncthreads_and(t >= whole_.rows_kv || (turns_q && turns_kv && position_q == position_kv));
    if (p_.positions_q) {
#pragma unroll 1
      for (int i = t; i < whole_.rows_q * TurnTable::pairs; i += whole_threads)
        *turns_.at(i / TurnTable::pairs, i % TurnTable::pairs) =
            TurnTable::two(s_.steps + i % TurnTable::pairs * 2, s_.positions_q[i / TurnTable::pairs]);
      __syncthreads();
    }
  }

  // Of row i of those of all tiles.
  __device__ float log_sum(int i) const {
    const WarpRows rows = whole_.rows(i / whole_tile, i % whole_tile);
    return i < tiles_ * whole_tile && rows.first < rows.count
               ? p_.log_sums[rows.token(rows.first) * p_.heads_q + rows.head_of(rows.first)]
               : INFINITY; // weight 0
  }

  // Half of the keys become ready for products.
  __device__ void settle(int half) {
    s_.keys_there.wait(0);
    settle_keys<T>(whole_, s_.k, s_.v, half * group_warps + warp_of_group(), 2 * group_warps, [&](int key) {
      if (keys_as_queries_)
        turns_.turn<T>(Tile{s_.k}, key, filled_part(), key);
      else if (p_.positions_kv)
        turn_in_place<T>(Tile{s_.k}, key, filled_part(), s_.steps, s_.positions_kv[key]);
    });
    before_copies();
    __syncthreads();
  }

  __device__ void load_tile(int i) {
    Shared::Stage& stage = s_.stage[i % stages];
    Barrier& there = s_.there[i % stages];
    const int token = whole_.begin_q + (i * whole_.parts + whole_.part) * all_.tiles.tokens, head = whole_.first_head();
    there.expect(static_cast<unsigned>(all_.tiles.rows * (3 * row_bytes + (p_.out_rest ? head_dim : 0))));
    load_box(stage.q, all_.q, 0, head, token, there);
    load_box(stage.d_out, all_.d_out, 0, head, token, there);
    load_box(stage.out, all_.out, 0, head, token, there);
    if (p_.out_rest) load_box(stage.rest, all_.rest, 0, head, token, there);
  }

  // Turns the queries of half a tile, completes their statistics and zeros the rows that are not there. By a group.
  __device__ void prepare(int i, int half) {
    Shared::Stage& stage = s_.stage[i % stages];
    const Tile q{stage.q}, d_out{stage.d_out}, out{stage.out};
    const int part = filled_part();
    s_.there[i % stages].wait(static_cast<unsigned>(i / stages) & 1);
    const int row = half * whole_tile / 2 + warp_of_group() * 8 + lane_index() % 8;
    const WarpRows rows = whole_.rows(i, row);
    const bool is_there = rows.first < rows.count;
    if (!is_there) {
      zero_packs<T>(q, row, part);
      zero_packs<T>(d_out, row, part);
    } else if (p_.positions_q) {
      turns_.turn<T>(q, row, part, rows.sharing.row_of(rows.first));
    }
    float sum = 0;
    if (is_there) {
#pragma unroll 1
      for (int n = 0; n < 2; ++n) {
        const int index = part + n * packs / 2;
        Pack<T, pack> one, other;
        one.load(d_out.at<T>(row, index));
        other.load(out.at<T>(row, index));
        sum +=
            dot<T>(one, other, p_.out_rest ? reinterpret_cast<const uint2*>(stage.rest)[row * packs + index] : uint2{});
      }
    }
    sum = sum_of_four<8>(sum);
    if (part == 0) s_.statistics[i][row].delta = sum;
    arrive(s_.ready[i % stages]);
  }

  // What a thread has two rows of in a tile of queries.
  struct Own {
    int seen[2];
    Statistic statistic[2];
  };

  __device__ void multiply_tile(int i, int group) {
    Shared::Stage& stage = s_.stage[i % stages];
    const WarpRows rows = whole_.rows(i, warp_of_group() * rows_of_warp);
    const int chunks = whole_.chunks_seen(i), seen_by_all = whole_.seen_by_all(i);
    s_.ready[i % stages].wait(static_cast<unsigned>(i / stages) & 1);
    Own own;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane_index() / 4 + 8 * h;
      own.seen[h] = whole_.seen(rows.there(rows.first + row));
      own.statistic[h] = s_.statistics[i][warp_of_group() * rows_of_warp + row];
    }
    ProductOf<64> d_q = {};
#pragma unroll 1
    for (int c = 0; c < min(chunks, whole_chunks); ++c) add<64>(d_q, stage, own, c, seen_by_all, group);
    if (chunks > whole_chunks) add<short_chunk>(d_q, stage, own, whole_chunks, seen_by_all, group);
    wait_for_products<0>();
    settled(d_q);
    auto& sum = reinterpret_cast<float(&)[blocks][4]>(d_q);
    if (p_.positions_q) {
      const int flat = rows.first + lane_index() / 4;
      turns_.turn_back(sum, {rows.sharing.row_of(rows.there(flat)), rows.sharing.row_of(rows.there(flat + 8))});
    }
    store_rows<T>(rows, p_.d_q, Tile{stage.out}.rows_from(warp_of_group() * rows_of_warp), sum, {p_.scale, p_.scale});
    arrive(s_.free[i % stages]);
  }

  // What a chunk of keys gives the tile's d_q, and the other group.
  template <int keys>
  __device__ void add(ProductOf<64>& d_q, const Shared::Stage& stage, const Own& own, int c, int seen_by_all,
                      int group) {
    const std::uint64_t q = operand(stage.q), d_out = operand(stage.d_out), k = operand(s_.k + c * tile_bytes),
                        v = operand(s_.v + c * tile_bytes);
    ProductOf<keys> weights, d_scores;
    before_products();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      multiply<T, false>(weights, behind(q, step * step_bytes), behind(k, step * step_bytes), step > 0);
    end_products();
    before_products();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      multiply<T, false>(d_scores, behind(d_out, step * step_bytes), behind(v, step * step_bytes), step > 0);
    end_products();

    const float scale = p_.scale * log2_e;
    Shared::Weights& given = s_.weights[group];
    Left by_weights, by_scores[keys / 16];
    wait_for_products<1>();
    settled(weights);
#pragma unroll
    for (int n = 0; n < keys / 2; ++n) weights[n] = power_of_2(weights[n] * scale - own.statistic[n / 2 % 2].log_sum);
    if (c * whole_tile + keys > seen_by_all) {
#pragma unroll
      for (int n = 0; n < keys / 2; ++n)
        if (c * whole_tile + n / 4 * 8 + column_of(n) >= own.seen[n / 2 % 2]) weights[n] = 0;
    }
    s_.weights_free[group].wait((count_ & 1) ^ 1);
    ++count_;
    const std::uint32_t to_weights = squares_at(given.weights + warp_of_group() * rows_of_warp * row_bytes),
                        to_scores = squares_at(given.d_scores + warp_of_group() * rows_of_warp * row_bytes);
#pragma unroll
    for (unsigned step = 0; step < keys / 16; ++step) {
      round_to<T>(by_weights, weights + 8 * step);
      Squares{{by_weights[0], by_weights[1], by_weights[2], by_weights[3]}}.store(to_weights ^ step << 5);
    }
    wait_for_products<0>();
    settled(d_scores);
#pragma unroll
    for (int n = 0; n < keys / 2; ++n) d_scores[n] = weights[n] * (d_scores[n] - own.statistic[n / 2 % 2].delta);
#pragma unroll
    for (unsigned step = 0; step < keys / 16; ++step) {
      round_to<T>(by_scores[step], d_scores + 8 * step);
      Squares{{by_scores[step][0], by_scores[step][1], by_scores[step][2], by_scores[step][3]}}.store(to_scores ^
                                                                                                      step << 5);
    }
    arrive(s_.weights_there[group]);
    before_products();
#pragma unroll
    for (int step = 0; step < keys / 16; ++step)
      multiply<T, true>(d_q, by_scores[step], behind(k, step * turned_step_bytes), true);
    end_products();
  }

  // The third group's work.
  __device__ void sum() {
    ProductOf<64> d_k[whole_chunks] = {}, d_v[whole_chunks] = {};
    ProductOf<short_chunk> d_k_of_short = {}, d_v_of_short = {};
    unsigned counts[groups] = {};
#pragma unroll 1
    for (int i = 0; i < tiles_; ++i) {
      if (i + groups < tiles_) prepare(i + groups, 0);
      const Shared::Stage& stage = s_.stage[i % stages];
      const int chunks = whole_.chunks_seen(i), group = i % groups;
      unsigned count = group == 0 ? counts[0] : counts[1];
#pragma unroll
      for (int c = 0; c < whole_chunks; ++c)
        if (c < chunks) add_up(d_k[c], d_v[c], stage, group, count++);
      if (chunks > whole_chunks) add_up(d_k_of_short, d_v_of_short, stage, group, count++);
      (group == 0 ? counts[0] : counts[1]) = count;
      arrive(s_.free[i % stages]);
    }
    __syncthreads(); // nobody uses the tiles any more
#pragma unroll
    for (int c = 0; c < whole_chunks; ++c) {
      put(s_.sums[0], c, d_k[c]);
      put(s_.sums[1], c, d_v[c]);
    }
    put(s_.sums[0], whole_chunks, d_k_of_short);
    put(s_.sums[1], whole_chunks, d_v_of_short);
  }

  template <int size>
  __device__ void add_up(float (&d_k)[size], float (&d_v)[size], const Shared::Stage& stage, int group,
                         unsigned count) {
    const Shared::Weights& given = s_.weights[group];
    s_.weights_there[group].wait(count & 1);
    const std::uint64_t q = operand(stage.q), d_out = operand(stage.d_out), weights = operand(given.weights),
                        d_scores = operand(given.d_scores);
    before_products();
#pragma unroll
    for (int step = 0; step < whole_tile / 16; ++step) {
      const unsigned bytes = step * turned_step_bytes;
      multiply<T, true, true>(d_v, behind(d_out, bytes), behind(weights, bytes), true);
      multiply<T, true, true>(d_k, behind(q, bytes), behind(d_scores, bytes), true);
    }
    end_products();
    wait_for_products<0>();
    settled(d_v);
    settled(d_k);
    arrive(s_.weights_free[group]);
  }
  template <int size>
  __device__ void put(float (&sums)[most_whole][sums_apart], int chunk, const float (&x)[size]) {
    const int dimension = warp_of_group() * rows_of_warp + lane_index() / 4;
#pragma unroll
    for (int n = 0; n < size; ++n)
      sums[chunk * whole_tile + n / 4 * 8 + column_of(n)][dimension + n / 2 % 2 * 8] = x[n];
  }

  // Until all sums are there.
  __device__ void meet() const {
    if (whole_.parts > 1)
      meet_cluster();
    else
      __syncthreads();
  }

  // Gradients of the block's share of the keys, from all blocks' sums, by the first three groups. A warp has two keys
  // at a time, a thread four columns, so that what comes from other blocks comes in whole rows.
  __device__ void finish() {
    constexpr int columns = 4, threads_of_row = head_dim / columns;
    const int share = (whole_.rows_kv + whole_.parts - 1) / whole_.parts, first = whole_.part * share,
              end = min(first + share, whole_.rows_kv), column = lane_index() % threads_of_row * columns;
    const bool is_low = column < head_dim / 2;
    const int pairs = max(end - first + 1, 0) / 2;
#pragma unroll 2
    for (int n = warp_index(); n < 2 * pairs; n += (groups + 1) * group_warps) {
      const int side = n < pairs ? 0 : 1, wanted = first + (n - side * pairs) * 2 + lane_index() / threads_of_row,
                key = min(wanted, end - 1);
      float4 all = taken(&s_.sums[side][key][column]);
      float own[columns] = {all.x, all.y, all.z, all.w};
      if (side == 0) {
        float turned[columns];
#pragma unroll
        for (int i = 0; i < columns; ++i) turned[i] = __shfl_xor_sync(0xffffffffu, own[i], threads_of_row / 2);
        if (p_.positions_kv) {
#pragma unroll
          for (int i = 0; i < columns; i += 2) {
            const int frequency = column % (head_dim / 2) + i;
            const float4 both = keys_as_queries_ ? *turns_.at(key, frequency / 2)
                                                 : TurnTable::two(s_.steps + frequency, s_.positions_kv[key]);
            own[i] = own[i] * both.x + (is_low ? turned[i] : -turned[i]) * both.y;
            own[i + 1] = own[i + 1] * both.z + (is_low ? turned[i + 1] : -turned[i + 1]) * both.w;
          }
        }
#pragma unroll
        for (float& each : own) each *= p_.scale;
      }
      if (wanted < end) write(at<T>(side == 0 ? p_.d_k : p_.d_v, whole_.begin_kv + key, whole_.head_kv) + column, own);
    }
  }
  // The sum of all blocks', in their order.
  __device__ float4 taken(const float* from) const {
    if (whole_.parts == 1) return *reinterpret_cast<const float4*>(from);
    float4 of[most_parts] = {};
#pragma unroll
    for (int rank = 0; rank < most_parts; ++rank)
      if (rank < whole_.parts) of[rank] = Cluster::read(from, rank);
#pragma unroll
    for (int rank = 1; rank < most_parts; ++rank) plugins::add(of[0], of[rank]);
    return of[0];
  }

  Shared& s_;
  const BackwardProblem& all_;
  const Problem& p_;
  const Whole& whole_;
  const int tiles_;
  const TurnTable turns_;
  bool keys_as_queries_; // whether the table turns keys, too
  unsigned count_ = 0;   // chunks that the group has given
};

#endif

template <class T>
__global__ void __launch_bounds__(whole_threads, 1)
    whole_backward_kernel(const __grid_constant__ BackwardProblem p, int parts) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run_block<Block<T>, Shared>(p, parts);
#endif
}

} // namespace

// Few and short segments have less to gain than it costs to begin.
bool takes_whole_backward(const Problem& p, int multiprocessors, int longest_q, int longest_kv) {
  return takes_whole(p, longest_q, longest_kv) && (longest_q > whole_tile || units_of(p) >= multiprocessors) &&
         fits_boxes(p.out, p.heads_q) && fits_boxes(p.d_out, p.heads_q);
}

void whole_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& p, int longest_q) {
  // Blocks that share a segment: enough to hold all tiles, and more where there are few segments.
  const WholeTiles tiles(p);
  int parts = 1;
  while (parts * most_tiles * tiles.tokens < longest_q ||
         (parts < most_parts && units_of(p) * parts * 2 <= multiprocessors))
    parts *= 2;
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    enqueue_whole<Shared>(call, whole_backward_kernel<typename decltype(element)::type>, whole_threads,
                          BackwardProblem(p, dtype), parts, parts);
  });
}

} // namespace fvlm::plugins
