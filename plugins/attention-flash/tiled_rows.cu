// tiled_rows.cu: what the tiled backward needs to know of each row, in a launch before it: the statistics of queries,
// queries and keys rotated, and the rotations. It also zeros the gradients of padding rows after the last segment.
#include "common/cuda_dependent_launch.cuh"
#include "softmax_gradient.cuh"
#include "tiled_backward.cuh"

#include <cmath>

namespace fvlm::plugins {
namespace {

constexpr int threads_of_row = packs / 2, rows_of_block = 16, heads_of_block = 3;
constexpr int row_threads = threads_of_row * rows_of_block * heads_of_block;

// Packs `part` and part + 4 of a row, whose columns rotate with each other.
template <class T>
struct TwoPacks {
  Pack<T, pack> low, high;

  __device__ void load(const T* row, int part) {
    low.load(row + part * pack), high.load(row + head_dim / 2 + part * pack);
  }
  // Of what is read once, so that it does not take the L2 from what the next kernel reads.
  __device__ void load_once(const T* row, int part) {
    const auto words = [](const T* from) {
      return sdk::bit_cast<typename Pack<T, pack>::Words>(__ldcs(reinterpret_cast<const uint4*>(from)));
    };
    low.bits = words(row + part * pack), high.bits = words(row + head_dim / 2 + part * pack);
  }
  __device__ void store_rotated(T* row, int part, const Rotations& rotations, int token) const {
    float a[pack], b[pack];
    low.widen(a), high.widen(b);
#pragma unroll
    for (int i = 0; i < pack; i += 2) {
      const float4 both = rotations.of_pair[Rotations::place(token, (part * pack + i) / 2)];
      Rotation{both.x, both.y}.apply(a[i], b[i]);
      Rotation{both.z, both.w}.apply(a[i + 1], b[i + 1]);
    }
    write(row + part * pack, a);
    write(row + head_dim / 2 + part * pack, b);
  }
};

template <class T>
__device__ void zero_padding(const HeadRows& rows, int heads, int end, int tokens) {
  const Pack<T, pack> zero{};
  const int64_t packs_of_row = int64_t{heads} * packs, block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x,
                threads_of_all = int64_t{gridDim.x} * gridDim.y * row_threads;
#pragma unroll 1
  for (int64_t i = end * packs_of_row + block * row_threads + threadIdx.x; i < tokens * packs_of_row;
       i += threads_of_all)
    zero.store(at<T>(rows, static_cast<int>(i / packs_of_row), static_cast<int>(i % packs_of_row / packs)) +
               i % packs * pack);
}

// A block takes some rows of four heads of queries, or where there is a rotation, of keys.
template <class T>
__global__ void __launch_bounds__(row_threads, 5) rows_kernel(const __grid_constant__ TiledProblem all) {
  __shared__ Rotations rotations[rows_of_block];
  start_next_kernel();
  const Problem& p = all.call;
  if (blockIdx.x + blockIdx.y == 0 && thread_index() < 2) all.taken[thread_index()] = 0;
  const int groups_q = (p.heads_q + heads_of_block - 1) / heads_of_block, group = static_cast<int>(blockIdx.y);
  const bool of_keys = group >= groups_q;
  const int tokens = of_keys ? p.tokens_kv : p.tokens_q, heads = of_keys ? p.heads_kv : p.heads_q,
            end = (of_keys ? p.cu_kv : p.cu_q)[p.segments];
  const int first = static_cast<int>(blockIdx.x) * rows_of_block, row = thread_index() / threads_of_row % rows_of_block,
            token = first + row, part = thread_index() % threads_of_row,
            head =
                (of_keys ? group - groups_q : group) * heads_of_block + thread_index() / threads_of_row / rows_of_block;
  // All loads are in flight at once, those of padding rows too.
  const bool exists = token < tokens && head < heads;
  TwoPacks<T> out{}, d_out{}, turned{};
  uint2 compensation[2] = {};
  float row_lse = 0;
  if (exists && !of_keys) {
    out.load_once(at<T>(p.out, token, head), part);
    d_out.load(at<T>(p.d_out, token, head), part);
    const int64_t head_row = int64_t{token} * p.heads_q + head;
    row_lse = p.lse[head_row];
    if (p.out_compensation) {
      const auto* from = reinterpret_cast<const uint2*>(p.out_compensation + head_row * head_dim);
      compensation[0] = from[part], compensation[1] = from[part + packs / 2];
    }
  }
  if (p.positions_q) {
    if (exists) turned.load(at<T>(of_keys ? p.k : p.q, token, head), part);
    const std::int32_t* positions = of_keys ? p.positions_kv : p.positions_q;
    constexpr int pairs = frequencies / 2;
    for (int i = thread_index(); i < rows_of_block * pairs && first + i / pairs < min(end, tokens); i += row_threads) {
      const int of_token = first + i / pairs, pair = i % pairs, place = Rotations::place(of_token, pair);
      const Rotation one(p.steps[2 * pair], positions[of_token]), next(p.steps[2 * pair + 1], positions[of_token]);
      const float4 both{one.cosine, one.sine, next.cosine, next.sine};
      rotations[i / pairs].of_pair[place] = both;
      if (group == 0 || group == groups_q)
        (of_keys ? all.rotations_kv : all.rotations_q)[of_token].of_pair[place] = both;
    }
    __syncthreads();
    if (exists && token < end)
      turned.store_rotated(reinterpret_cast<T*>(of_keys ? all.rotated_k : all.rotated_q) +
                               (int64_t{token} * heads + head) * head_dim,
                           part, rotations[row], token);
  }
  const float delta =
      quad_sum(dot<T>(d_out.low, out.low, compensation[0]) + dot<T>(d_out.high, out.high, compensation[1]));
  if (!of_keys && part == 0 && head < heads && token < all.statistics_rows(tokens))
    all.statistics[int64_t{head} * all.statistics_rows(tokens) + token] =
        token < end && row_lse != INFINITY ? Statistic{row_lse, delta} : Statistic{INFINITY, 0};
  if (end < tokens && !of_keys) zero_padding<T>(p.d_q, p.heads_q, end, tokens);
  if (const int end_kv = p.cu_kv[p.segments]; end_kv < p.tokens_kv) {
    zero_padding<T>(p.d_k, p.heads_kv, end_kv, p.tokens_kv);
    zero_padding<T>(p.d_v, p.heads_kv, end_kv, p.tokens_kv);
  }
}

} // namespace

void prepare_rows(const fvlm_call& call, fvlm_dtype dtype, const TiledProblem& all) {
  const Problem& p = all.call;
  const auto groups = [](int heads) { return (heads + heads_of_block - 1) / heads_of_block; };
  const int rows = std::max(TiledProblem::statistics_rows(p.tokens_q), p.tokens_kv);
  const dim3 grid(static_cast<unsigned>((rows + rows_of_block - 1) / rows_of_block),
                  static_cast<unsigned>(groups(p.heads_q) + (p.positions_q ? groups(p.heads_kv) : 0)));
  sdk::dispatch<BFloat16, Half>(dtype, [&](auto element) {
    rows_kernel<typename decltype(element)::type><<<grid, row_threads, 0, sdk::stream_of(call)>>>(all);
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

} // namespace fvlm::plugins
