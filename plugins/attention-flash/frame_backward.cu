// frame_backward.cu: a block goes through heads of segments, all rows of one at a time in its shared memory. Two groups
// of four warps take tiles of 64 keys in turn, whose d_k and d_v stay in registers, and then tiles of 64 queries, whose
// d_q does: each computes the weights anew, from their logarithms' sums, so that the groups have nothing to tell each
// other. One more warp fetches what comes next, three others complete it.
#include "frame.cuh"
#include "rows.cuh"

#include <algorithm>
#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace hopper;

constexpr int tile = 64, whole_tiles = most_rows / tile, tiles = whole_tiles + 1; // the last one has fewer rows
constexpr int whole_rows = whole_tiles * tile, tail_rows = most_rows - whole_rows;
constexpr int groups = 2, multiplying_warps = groups * group_warps, frame_threads = (groups + 1) * group_threads;
constexpr int helpers = 3;

static_assert(tail_rows == rows_of_warp);

struct FrameProblem {
  Problem call;
  HeadBoxes q, k, v, d_out;
};

// Rows are there when the copy engine has brought them, ready when those behind the segment's last are zeros and the
// queries' statistics are complete. Queries make room for the next head's tile by tile.
struct alignas(1024) Shared {
  char k[2][rows_bytes], v[2][rows_bytes];
  char q[rows_bytes], d_out[rows_bytes];
  char results[multiplying_warps][rows_of_warp * row_bytes];
  float log_sums[most_rows], deltas[most_rows]; // infinite and 0 behind the last query: weight 0
  float3 guest_parts[2][helpers];               // see Guest; those of a unit and the next
  Unit units[2];
  Barrier keys_there[2], keys_ready[2], keys_free[2];
  Barrier queries_there[tiles], queries_ready[tiles], queries_free[tiles];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // no other architecture's compiler understands it

constexpr int multiplying_registers = 208, helping_registers = 88;
constexpr int tile_bytes = tile * row_bytes;
constexpr int guest_row = most_rows_beside_guest; // where a guest is in shared memory
constexpr int helping_threads = helpers * warp;
constexpr int users = multiplying_warps * warp + helping_threads; // threads, of what was fetched

// The block's how-manieth unit it is.
struct Turn {
  unsigned count = 0;

  __device__ unsigned stage() const { return count % 2; }
  __device__ unsigned of_keys() const { return count / 2 % 2; } // parities
  __device__ unsigned of_queries() const { return count % 2; }
};

struct HasBoth {
  __device__ bool operator()(const Unit& unit) const {
    return unit.rows_kv > 0 && (unit.rows_q > 0 || unit.guest >= 0);
  }
};

// How many of `rows` are in a tile.
__device__ int rows_in(int rows, int tile_index) {
  return min(max(rows - tile_index * tile, 0), tile);
}
__device__ int tiles_of(int rows) {
  return (rows + tile - 1) / tile;
}
__device__ int whole_tiles_of(int rows) {
  return min(tiles_of(rows), whole_tiles);
}

// By all threads that have written what the barrier is for, or need it no more.
__device__ void arrive(Barrier& barrier) {
  before_copies();
  barrier.arrive();
}

__device__ void fetch(Shared& s, const FrameProblem& p) {
  Units units(p.call, HasBoth{});
  for (Turn turn;; ++turn.count) {
    const Unit unit = units.next();
    if (lane_index() == 0) {
      const unsigned stage = turn.stage();
      s.keys_free[stage].wait(turn.of_keys() ^ 1);
      s.units[stage] = unit;
      Barrier& keys = s.keys_there[stage];
      keys.expect(static_cast<unsigned>(2 * loaded_rows(unit.rows_kv) * row_bytes));
      load_rows(s.k[stage], p.k, unit.head, unit.begin_kv, unit.rows_kv, keys);
      load_rows(s.v[stage], p.v, unit.head, unit.begin_kv, unit.rows_kv, keys);
#pragma unroll 1
      for (int t = 0; unit.exists() && t < tiles; ++t) {
        const int rows = rows_in(unit.rows_q, t), begin = unit.begin_q + t * tile;
        Barrier& queries = s.queries_there[t];
        s.queries_free[t].wait(turn.of_queries() ^ 1);
        queries.expect(static_cast<unsigned>(2 * loaded_rows(rows) * row_bytes));
        load_rows(s.q + t * tile_bytes, p.q, unit.head, begin, rows, queries);
        load_rows(s.d_out + t * tile_bytes, p.d_out, unit.head, begin, rows, queries);
      }
    }
    __syncwarp();
    if (!unit.exists()) return;
  }
}

// Zeros rows of a tile, behind the last of a segment's.
template <class T>
__device__ void zero_tile_rows(char* memory, int rows, int end) {
  const Tile of{memory};
  const Pack<T, pack> zero{};
  for (int i = rows * packs + lane_index(); i < end * packs; i += warp) zero.store(of.at<T>(i / packs, i % packs));
}

// A helper's share of a tile of queries: each time four rows, eight threads a row.
template <class T>
class QueryShare {
 public:
  // Begins to read what the statistics come from.
  __device__ void load(const Problem& p, const Unit& unit, int t, int helper) {
    const int begin = unit.begin_q + t * tile, rows = rows_in(unit.rows_q, t);
#pragma unroll
    for (int n = 0; n < times; ++n)
      if (const int row = row_of(helper, n); row < rows)
        out_[n].load(at<T>(p.out, begin + row, unit.head) + index() * pack);
    if (const int row = row_of_thread(helper); row < rows) log_sum_ = p.log_sums[(begin + row) * p.heads_q + unit.head];
  }
  // Completes the tile.
  __device__ void finish(Shared& s, const Unit& unit, int t, int helper) const {
    const int rows = rows_in(unit.rows_q, t), size = t < whole_tiles ? tile : tail_rows;
    const Tile q{s.q + t * tile_bytes}, d_out{s.d_out + t * tile_bytes};
#pragma unroll
    for (int n = 0; n < times; ++n) {
      const int row = row_of(helper, n);
      float sum = 0;
      if (row < rows) {
        Pack<T, pack> gradient;
        gradient.load(d_out.at<T>(row, index()));
        sum = dot<T>(out_[n], gradient);
      } else if (row < size) {
        const Pack<T, pack> zero{};
        zero.store(q.at<T>(row, index()));
        zero.store(d_out.at<T>(row, index()));
      }
      sum = sum_of_four(sum);
      sum += __shfl_xor_sync(0xffffffffu, sum, 4);
      if (index() == 0 && row < size) s.deltas[t * tile + row] = sum;
    }
    if (const int row = row_of_thread(helper); lane_index() < times * rows_at_once && row < size)
      s.log_sums[t * tile + row] = row < rows ? log_sum_ : INFINITY;
  }

 private:
  static constexpr int rows_at_once = warp / packs, times = (tile / rows_at_once + helpers - 1) / helpers;

  __device__ static int row_of(int helper, int n) {
    return (n * helpers + helper) * rows_at_once + lane_index() / packs;
  }
  // Each row has one thread whose it is.
  __device__ static int row_of_thread(int helper) {
    return (lane_index() / rows_at_once * helpers + helper) * rows_at_once + lane_index() % rows_at_once;
  }
  __device__ static int index() {
    return lane_index() % packs;
  }

  Pack<T, pack> out_[times];
  float log_sum_;
};

// A query of another call, whose statistics are not known. Each helper has every third 32 keys.
template <class T>
class Guest {
 public:
  // Begins to read it: a thread has a pack of q or of d_out.
  __device__ void load(const Problem& p, const Unit& unit) {
    if (lane_index() < 2 * packs)
      own_.load(at<T>(lane_index() < packs ? p.guest_q : p.guest_d_out, unit.guest, unit.head) +
                lane_index() % packs * pack);
  }
  // Its statistics, of the keys and values.
  __device__ void look(Shared& s, const Problem& p, const Unit& unit, const Turn& turn, int helper) {
    const Tile k{s.k[turn.stage()]}, v{s.v[turn.stage()]};
    float scores[times] = {}, d_weights[times] = {};
#pragma unroll 1
    for (int i = 0; i < packs; ++i) {
      float q[pack], d_out[pack];
      of_thread(i).widen(q);
      of_thread(packs + i).widen(d_out);
#pragma unroll
      for (int n = 0; n < times; ++n) {
        const int key = min(key_of(n, helper), unit.rows_kv - 1);
        add(scores[n], q, k.at<T>(key, i));
        add(d_weights[n], d_out, v.at<T>(key, i));
      }
    }
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < times; ++n) {
      scores[n] = key_of(n, helper) < unit.rows_kv ? scores[n] * p.scale * log2_e : -INFINITY;
      most = fmaxf(most, scores[n]);
    }
    for (int apart = warp / 2; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
    float total = 0, delta = 0;
#pragma unroll
    for (int n = 0; n < times; ++n) {
      if (key_of(n, helper) >= unit.rows_kv) continue;
      const float weight = power_of_2(scores[n] - most);
      total += weight;
      delta += weight * d_weights[n];
    }
    total = sum_of_warp(total);
    delta = sum_of_warp(delta);
    if (lane_index() == 0) s.guest_parts[turn.stage()][helper] = {most, total, delta};
  }
  // Behind the segment's queries, by one of the helpers when all have looked.
  __device__ void store(Shared& s, const Turn& turn, int helper) const {
    asm volatile("bar.sync 1, %0;" ::"n"(helping_threads) : "memory");
    if (helper > 0) return;
    if (lane_index() < 2 * packs)
      own_.store(Tile{lane_index() < packs ? s.q : s.d_out}.at<T>(guest_row, lane_index() % packs));
    if (lane_index() > 0) return;
    float3 all = s.guest_parts[turn.stage()][0];
#pragma unroll
    for (int i = 1; i < helpers; ++i) {
      const float3 part = s.guest_parts[turn.stage()][i];
      const float largest = fmaxf(all.x, part.x);
      const float of_all = power_of_2(all.x - largest), of_part = power_of_2(part.x - largest);
      all = {largest, all.y * of_all + part.y * of_part, all.z * of_all + part.z * of_part};
    }
    s.log_sums[guest_row] = all.x + log2f(all.y);
    s.deltas[guest_row] = all.z / all.y;
  }

 private:
  static constexpr int times = (most_rows + helpers * warp - 1) / (helpers * warp);

  __device__ static int key_of(int n, int helper) {
    return (n * helpers + helper) * warp + lane_index();
  }
  __device__ Pack<T, pack> of_thread(int thread) const {
    Pack<T, pack> other;
#pragma unroll
    for (int i = 0; i < own_.words; ++i) other.bits.at[i] = __shfl_sync(0xffffffffu, own_.bits.at[i], thread);
    return other;
  }
  __device__ static void add(float& sum, const float (&x)[pack], const T* from) {
    float y[pack];
    read(from, y);
#pragma unroll
    for (int i = 0; i < pack; ++i) sum += x[i] * y[i];
  }

  Pack<T, pack> own_;
};

template <class T>
__device__ void complete_queries(Shared& s, const Problem& p, const Unit& unit, const Turn& turn, int helper) {
  Guest<T> guest;
  if (unit.guest >= 0) {
    guest.load(p, unit);
    guest.look(s, p, unit, turn, helper);
  }
  QueryShare<T> share, next;
  next.load(p, unit, 0, helper);
#pragma unroll 1
  for (int t = 0; t < tiles; ++t) {
    share = next;
    if (t + 1 < tiles) next.load(p, unit, t + 1, helper);
    s.queries_there[t].wait(turn.of_queries());
    share.finish(s, unit, t, helper);
    if (t == whole_tiles && unit.guest >= 0) guest.store(s, turn, helper);
    arrive(s.queries_ready[t]);
  }
}

// Zeros a row of all heads, by a warp.
template <class T>
__device__ void zero_row(const Rows& rows, int row, int heads) {
  const Pack<T, pack> zero{};
  for (int i = lane_index(); i < heads * packs; i += warp) zero.store(at<T>(rows, row, i / packs) + i % packs * pack);
}

// Zeros what no unit has: rows of segments without queries or without keys, and those behind the last segment. All
// helpers of all blocks share it.
template <class T>
__device__ void zero_others(const Problem& p, int helper) {
  const int first = static_cast<int>(blockIdx.x) * helpers + helper, step = static_cast<int>(gridDim.x) * helpers;
  const auto zero = [&p](int begin_q, int end_q, int begin_kv, int end_kv, int apart) {
    for (int row = begin_q; row < end_q; row += apart) zero_row<T>(p.d_q, row, p.heads_q);
    for (int row = begin_kv; row < end_kv; row += apart) {
      zero_row<T>(p.d_k, row, p.heads_kv);
      zero_row<T>(p.d_v, row, p.heads_kv);
    }
  };
  for (int i = first; i < p.segments; i += step) {
    const int begin_q = p.cu_q[i], end_q = p.cu_q[i + 1], begin_kv = p.cu_kv[i], end_kv = p.cu_kv[i + 1];
    const bool has_guest = p.cu_guests && p.cu_guests[i] < p.cu_guests[i + 1];
    if ((begin_q == end_q && !has_guest) || begin_kv == end_kv) zero(begin_q, end_q, begin_kv, end_kv, 1);
  }
  zero(p.cu_q[p.segments] + first, p.tokens_q, p.cu_kv[p.segments] + first, p.tokens_kv, step);
}

template <class T>
__device__ void help(Shared& s, const FrameProblem& p, int helper) {
  for (Turn turn;; ++turn.count) {
    const unsigned stage = turn.stage();
    s.keys_there[stage].wait(turn.of_keys());
    const Unit unit = s.units[stage];
    if (const int end = min((unit.rows_kv + tile - 1) / tile * tile, most_rows); helper < 2)
      zero_tile_rows<T>(helper == 0 ? s.k[stage] : s.v[stage], unit.rows_kv, end);
    arrive(s.keys_ready[stage]);
    if (!unit.exists()) break;
    complete_queries<T>(s, p.call, unit, turn, helper);
    for (Barrier& each : s.queries_free) arrive(each);
    arrive(s.keys_free[stage]);
  }
  zero_others<T>(p.call, helper);
}

// One of the groups that multiply.
template <class T>
class Group {
 public:
  __device__ Group(Shared& shared, const FrameProblem& problem, int index)
      : s_(shared), p_(problem.call), index_(index), scale_(problem.call.scale * log2_e) {}

  __device__ void run() {
    for (;; ++turn_.count) {
      s_.keys_ready[turn_.stage()].wait(turn_.of_keys());
      unit_ = s_.units[turn_.stage()];
      if (!unit_.exists()) return;
#pragma unroll 1
      for (int t = groups - 1 - index_; t < tiles_of(unit_.rows_kv); t += groups) of_keys(t);
      leave_queries(tiles);
      left_ = 0;
#pragma unroll 1
      for (int t = 0; t < tiles_of(unit_.rows_q); ++t)
        if (is_own(t)) of_queries(t);
      arrive(s_.keys_free[turn_.stage()]);
    }
  }

 private:
  static constexpr int steps = head_dim / 16;
  static constexpr unsigned step_bytes = 16 * 2, turned_step_bytes = 16 * row_bytes; // to the next 16 of what is summed

  // Queries as columns: `size` of them from tile t on.
  template <int size>
  struct Columns {
    ProductOf<size> weights, d_weights;
  };

  // Queries' tiles are a group's by twos, so that those with which the next unit begins are left first.
  __device__ bool is_own(int t) const {
    return t / 2 % groups == index_;
  }
  // Leaves those before that one, but for the group's own, which it still needs.
  __device__ void leave_queries(int end) {
#pragma unroll 1
    for (; left_ < end; ++left_) {
      if (is_own(left_) && left_ < tiles_of(unit_.rows_q)) continue;
      s_.queries_ready[left_].wait(turn_.of_queries()); // so that the unit before has ended
      arrive(s_.queries_free[left_]);
    }
  }

  // Begins the products of a tile of keys with those queries.
  template <int size>
  __device__ void begin(Columns<size>& x, std::uint64_t k, std::uint64_t v, int t) {
    const std::uint64_t q = operand(s_.q + t * tile_bytes), d_out = operand(s_.d_out + t * tile_bytes);
    s_.queries_ready[t].wait(turn_.of_queries());
    before_products();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      multiply<T, false>(x.weights, behind(k, step * step_bytes), behind(q, step * step_bytes), step > 0);
    end_products();
    before_products();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      multiply<T, false>(x.d_weights, behind(v, step * step_bytes), behind(d_out, step * step_bytes), step > 0);
    end_products();
  }
  // last: the group has no more tiles of keys.
  template <int size>
  __device__ void add(std::uint64_t k, std::uint64_t v, ProductOf<64>& d_k, ProductOf<64>& d_v, int t, bool last) {
    Columns<size> x;
    begin(x, k, v, t);
    const float *const log_sums = s_.log_sums + t * tile + column_of(0), *const deltas =
                                                                             s_.deltas + t * tile + column_of(0);
    Left by_weights[size / 16], by_scores[size / 16];
    wait_for_products<1>();
    if (last) leave_queries(t);
    settled(x.weights);
#pragma unroll
    for (int b = 0; b < size / 8; ++b) {
      const float2 log_sum = *reinterpret_cast<const float2*>(log_sums + 8 * b);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& weight = x.weights[4 * b + i];
        weight = power_of_2(weight * scale_ - (i % 2 == 0 ? log_sum.x : log_sum.y));
      }
    }
#pragma unroll
    for (int step = 0; step < size / 16; ++step) round_to<T>(by_weights[step], x.weights + 8 * step);
    wait_for_products<0>();
    settled(x.d_weights);
#pragma unroll
    for (int b = 0; b < size / 8; ++b) {
      const float2 delta = *reinterpret_cast<const float2*>(deltas + 8 * b);
#pragma unroll
      for (int i = 0; i < 4; ++i) x.weights[4 * b + i] *= x.d_weights[4 * b + i] - (i % 2 == 0 ? delta.x : delta.y);
    }
#pragma unroll
    for (int step = 0; step < size / 16; ++step) round_to<T>(by_scores[step], x.weights + 8 * step);
    const std::uint64_t q = operand(s_.q + t * tile_bytes), d_out = operand(s_.d_out + t * tile_bytes);
    before_products();
#pragma unroll
    for (int step = 0; step < size / 16; ++step) {
      multiply<T, true>(d_v, by_weights[step], behind(d_out, step * turned_step_bytes), true);
      multiply<T, true>(d_k, by_scores[step], behind(q, step * turned_step_bytes), true);
    }
    end_products();
  }

  __device__ void of_keys(int t) {
    const std::uint64_t k = operand(s_.k[turn_.stage()] + t * tile_bytes),
                        v = operand(s_.v[turn_.stage()] + t * tile_bytes);
    const int end = whole_tiles_of(unit_.rows_q);
    const bool last = t + groups >= tiles_of(unit_.rows_kv);
    ProductOf<64> d_k = {}, d_v = {};
#pragma unroll 1
    for (int of = 0; of < end; ++of) add<tile>(k, v, d_k, d_v, of, last);
    if (unit_.rows_q > whole_rows || unit_.guest >= 0) add<tail_rows>(k, v, d_k, d_v, whole_tiles, last);
    wait_for_products<0>();
    settled(d_k);
    settled(d_v);
    store(p_.d_v, d_v, t, unit_.begin_kv, unit_.rows_kv, 1);
    store(p_.d_k, d_k, t, unit_.begin_kv, unit_.rows_kv, p_.scale);
  }

  // A tile of queries as left operands, and what a thread's two rows have.
  struct Queries {
    Left q[steps], d_out[steps];
    float log_sum[2], delta[2];
  };

  template <int size>
  __device__ void begin(Columns<size>& x, const Queries& own, int t) {
    const std::uint64_t k = operand(s_.k[turn_.stage()] + t * tile_bytes),
                        v = operand(s_.v[turn_.stage()] + t * tile_bytes);
    before_products();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      multiply<T, false>(x.weights, own.q[step], behind(k, step * step_bytes), step > 0);
    end_products();
    before_products();
#pragma unroll
    for (int step = 0; step < steps; ++step)
      multiply<T, false>(x.d_weights, own.d_out[step], behind(v, step * step_bytes), step > 0);
    end_products();
  }
  template <int size>
  __device__ void add(const Queries& own, ProductOf<64>& d_q, int t) {
    Columns<size> x;
    begin(x, own, t);
    const int there = unit_.rows_kv - t * tile;
    Left by_scores[size / 16];
    wait_for_products<1>();
    settled(x.weights);
#pragma unroll
    for (int i = 0; i < size / 2; ++i) x.weights[i] = power_of_2(x.weights[i] * scale_ - own.log_sum[i / 2 % 2]);
    if (there < size) {
#pragma unroll
      for (int i = 0; i < size / 2; ++i)
        if (i / 4 * 8 + column_of(i) >= there) x.weights[i] = 0;
    }
    wait_for_products<0>();
    settled(x.d_weights);
#pragma unroll
    for (int i = 0; i < size / 2; ++i) x.weights[i] *= x.d_weights[i] - own.delta[i / 2 % 2];
#pragma unroll
    for (int step = 0; step < size / 16; ++step) round_to<T>(by_scores[step], x.weights + 8 * step);
    const std::uint64_t k = operand(s_.k[turn_.stage()] + t * tile_bytes);
    before_products();
#pragma unroll
    for (int step = 0; step < size / 16; ++step)
      multiply<T, true>(d_q, by_scores[step], behind(k, step * turned_step_bytes), true);
    end_products();
  }

  __device__ void of_queries(int t) {
    const int first = t < whole_tiles ? warp_index() % group_warps * rows_of_warp : 0; // as far as there are rows
    const Tile q{s_.q + t * tile_bytes}, d_out{s_.d_out + t * tile_bytes};
    Queries own;
    s_.queries_ready[t].wait(turn_.of_queries());
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const Fragment of_q = left(q, first, step), of_d_out = left(d_out, first, step);
#pragma unroll
      for (int i = 0; i < 4; ++i) own.q[step][i] = of_q.at[i], own.d_out[step][i] = of_d_out.at[i];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = t * tile + first + lane_index() / 4 + 8 * h;
      own.log_sum[h] = s_.log_sums[row], own.delta[h] = s_.deltas[row];
    }
    arrive(s_.queries_free[t]);

    const int end = whole_tiles_of(unit_.rows_kv);
    ProductOf<64> d_q = {};
#pragma unroll 1
    for (int of = 0; of < end; ++of) add<tile>(own, d_q, of);
    if (unit_.rows_kv > whole_rows) add<tail_rows>(own, d_q, whole_tiles);
    wait_for_products<0>();
    settled(d_q);
    store(p_.d_q, d_q, t, unit_.begin_q, unit_.rows_q, p_.scale);
  }

  __device__ void store(const Rows& to, const ProductOf<64>& sum, int t, int begin, int rows, float factor) {
    const WarpRows own{{}, begin, t * tile + warp_index() % group_warps * rows_of_warp, rows, unit_.head};
    store_rows<T>(own, to, {s_.results[warp_index()]}, reinterpret_cast<const float(&)[blocks][4]>(sum),
                  {factor, factor});
  }

  Shared& s_;
  const Problem& p_;
  const int index_;
  const float scale_;
  Turn turn_;
  Unit unit_;
  int left_ = 0; // tiles of the unit's queries
};

__device__ void begin_barriers(Shared& s) {
  if (thread_index() == 0) {
    for (Barrier& each : s.keys_there) each.begin(1);
    for (Barrier& each : s.keys_ready) each.begin(helping_threads);
    for (Barrier& each : s.keys_free) each.begin(users);
    for (Barrier& each : s.queries_there) each.begin(1);
    for (Barrier& each : s.queries_ready) each.begin(helping_threads);
    for (Barrier& each : s.queries_free) each.begin(users);
    Barrier::begun();
  }
  __syncthreads();
}

#endif

template <class T>
__global__ void __launch_bounds__(frame_threads, 1) frame_backward_kernel(const __grid_constant__ FrameProblem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  begin_barriers(s);
  const int group = __shfl_sync(0xffffffffu, warp_index() / group_warps, 0); // one for the warp
  if (group == groups) {
    give_registers_away<helping_registers>();
    if (warp_index() == multiplying_warps)
      fetch(s, p);
    else
      help<T>(s, p, warp_index() - multiplying_warps - 1);
  } else {
    take_registers<multiplying_registers>();
    Group<T>(s, p, group).run();
  }
#endif
}

} // namespace

bool takes_frames_backward(const Problem& p) {
  return takes_frames(p) && fits_boxes(p.d_out, p.heads_q);
}

void frame_backward(const fvlm_call& call, int multiprocessors, fvlm_dtype dtype, const Problem& problem) {
  const auto boxes = [&](const Rows& rows, int tokens) { return boxes_of_heads(dtype, rows, tokens, problem.heads_q); };
  const FrameProblem p{problem, boxes(problem.q, problem.tokens_q), boxes(problem.k, problem.tokens_kv),
                       boxes(problem.v, problem.tokens_kv), boxes(problem.d_out, problem.tokens_q)};
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    const auto kernel = frame_backward_kernel<typename decltype(element)::type>;
    constexpr int bytes = sizeof(Shared) + alignof(Shared);
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
    kernel<<<static_cast<unsigned>(multiprocessors), frame_threads, bytes, sdk::stream_of(call)>>>(p);
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

} // namespace fvlm::plugins
