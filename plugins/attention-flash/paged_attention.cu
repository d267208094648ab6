// paged_attention.cu: attention of rows that each continue a sequence whose keys are in pages (flash-decoding). The
// blocks of a cluster share the keys of one row and key head, the warps of a block share the block's, and all query
// heads of the key head are computed together, so that keys and values are read once. What the warps and blocks found
// is combined in shared memory: one launch, whatever the lengths, of which the host knows nothing.
//
// A call that appends (a step of decoding) first brings the row's queries, its key and its value into shared memory,
// normalized, rotated and rounded; the last key is read there, and one block writes it to its page. The other keys are
// on their way before the kernel that makes these rows is done: a kernel lets the next one start when it has written to
// pages, and before it attends.
//
// Within a warp, `lanes` threads hold one key, 16 bytes each; 32 / lanes keys are read at once, `unroll` times in
// flight. Each such thread has a running maximum and sum of its own (online softmax). Few rows take a block for each
// query head, with twice the warps where a warp holds few keys; many rows take smaller blocks, of which more are on the
// device at once.
#include "common/cuda_cluster.cuh"
#include "common/cuda_dependent_launch.cuh"
#include "common/cuda_packs.cuh"
#include "common/cuda_rotary.cuh"
#include "paged_attention.h"
#include "tiles.cuh"

#include <algorithm>
#include <cstdint>

namespace fvlm::plugins {
namespace {

constexpr int max_cluster = 8;
// How a block is laid out: warps at most, keys that a thread has on the way, blocks that have to fit on a
// multiprocessor.
struct Wide {
  static constexpr int warps = 16, unroll = 4, blocks = 1;
};
struct Roomy {
  static constexpr int warps = 8, unroll = 4, blocks = 1;
};
struct Dense {
  static constexpr int warps = 3, unroll = 3, blocks = 8;
};

// The room for a head of which `lanes` threads hold 16 bytes each.
template <class T, int lanes>
inline constexpr int widest = lanes* pack_size<T> > 128 ? lanes* pack_size<T> : 128;

// Fewer keys than this are not worth another block of the cluster: where a block has several query heads, and one.
constexpr int min_keys_per_block = 128, min_keys_of_one_head = 256;

// The running softmax of one query head over the keys of one thread, warp or block: sum and values are relative to
// 2^maximum.
__device__ float reference_of(float maximum) {
  return maximum == -INFINITY ? 0 : maximum; // no key yet
}

struct Share {
  int begin, end; // keys
};

// Of the keys from `first` on.
__device__ Share share_of_block(int first, int length) {
  const int blocks = Cluster::size();
  const int even = (length - first + blocks - 1) / blocks;
  const int size = max(min_keys_per_block, (even + 31) / 32 * 32);
  const int begin = min(first + Cluster::rank() * size, length);
  return {begin, min(begin + size, length)};
}

// What a row appends, and its query heads of a tile, as they are attended with.
template <class T, int heads, int max_dim>
struct AppendedRow {
  alignas(16) T k[max_dim], v[max_dim], q[heads][max_dim];

  // Brings them here, a warp each vector in turn. What does not depend on the kernel before is read before it is waited
  // for.
  __device__ void load(const PagedProblem& p, const PagedAppend& a, int row, int kv_head, int first_head, int count,
                       int position) {
    const int lane = static_cast<int>(threadIdx.x) % warp_size, half = a.rotary_dim / 2;
    constexpr int of_lane = max_dim / warp_size;
    float cosine[of_lane], sine[of_lane];
#pragma unroll
    for (int i = 0; i < of_lane; ++i) {
      const int d = lane + i * warp_size;
      cosine[i] = 1, sine[i] = 0;
      if (d >= a.rotary_dim) continue;
      const int frequency = d < half ? d : d - half;
      const std::uint64_t step = a.frequencies ? rotary_step(a.frequencies[frequency]) : a.steps[frequency];
      sincospif(rotary_angle(step, position, 1), &sine[i], &cosine[i]);
      if ((d < half) != a.inverse) sine[i] = -sine[i];
    }
    wait_for_previous_kernel();
    const int warps = static_cast<int>(blockDim.x) / warp_size;
    for (int vector = static_cast<int>(threadIdx.x) / warp_size; vector < count + 2; vector += warps) {
      const bool is_v = vector == count + 1, is_k = vector == count;
      const T* from = is_v   ? static_cast<const T*>(a.v) + row * a.v_row + kv_head * a.v_head
                      : is_k ? static_cast<const T*>(a.k) + row * a.k_row + kv_head * a.k_head
                             : static_cast<const T*>(p.q) + row * p.q_row + (first_head + vector) * p.q_head;
      T* to = is_v ? v : is_k ? k : q[vector];
      if (is_v) {
        for (int d = lane; d < p.head_dim; d += warp_size) to[d] = from[d];
        continue;
      }
      const T* weight = static_cast<const T*>(is_k ? a.k_norm : a.q_norm);
      const auto at = [&](int d) {
        const float x = static_cast<float>(from[d]);
        return weight ? x * static_cast<float>(weight[d]) : x;
      };
      float factor = 1;
      if (a.has_norm) {
        float square = 0;
        for (int d = lane; d < p.head_dim; d += warp_size)
          square = fmaf(static_cast<float>(from[d]), static_cast<float>(from[d]), square);
        factor = rsqrtf(warp_sum(square) / static_cast<float>(p.head_dim) + a.epsilon);
      }
#pragma unroll
      for (int i = 0; i < of_lane; ++i) {
        const int d = lane + i * warp_size;
        if (d >= p.head_dim) continue;
        const float x = at(d);
        to[d] = T(factor * (d < a.rotary_dim ? x * cosine[i] + at(d < half ? d + half : d - half) * sine[i] : x));
      }
    }
    __syncthreads();
  }

  // By the threads of one warp.
  __device__ void write(const PagedProblem& p, const std::int32_t* table, int kv_head, int key) const {
    const std::int64_t page = table[key >> p.page_shift];
    const int in_page = key & ((1 << p.page_shift) - 1);
    constexpr int pack = pack_size<T>;
    for (int i = static_cast<int>(threadIdx.x) % warp_size * pack; i < 2 * p.head_dim; i += warp_size * pack) {
      const bool is_v = i >= p.head_dim;
      const int d = is_v ? i - p.head_dim : i;
      T* to =
          is_v ? const_cast<T*>(static_cast<const T*>(p.v)) + page * p.v_page + in_page * p.v_row + kv_head * p.v_head
               : const_cast<T*>(static_cast<const T*>(p.k)) + page * p.k_page + in_page * p.k_row + kv_head * p.k_head;
      Pack<T, pack> numbers;
      numbers.load((is_v ? v : k) + d);
      numbers.store(to + d);
    }
  }
};

template <int warps, int heads, int max_dim>
struct PartialSums {
  float values[warps][heads][max_dim], maximum[warps][heads], sum[warps][heads];
};

template <class T, int lanes, int heads, int unroll>
struct Rows {
  static constexpr int pack = pack_size<T>, keys_at_once = warp_size / lanes, step = unroll * keys_at_once,
                       max_dim = widest<T, lanes>;
  float maximum[heads], sum[heads], values[heads][pack], q[heads][pack];
  Pack<T, pack> k[unroll], v[unroll];

  // The query heads of a tile, `stride` elements from one to the next; those past `count` repeat the last one.
  __device__ void load_queries(const PagedProblem& p, const T* queries, std::int64_t stride, int count, int piece,
                               bool has_piece) {
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      const T* from = queries + min(h, count - 1) * stride;
      maximum[h] = -INFINITY;
      sum[h] = 0;
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        values[h][i] = 0;
        q[h][i] = has_piece ? static_cast<float>(from[piece * pack + i]) * p.scale_log2 : 0;
      }
    }
  }

  // `unroll` keys of this thread, of which those from `end` on repeat the last one and count nothing. Key `appended` is
  // left out, as it is not in the pages yet.
  __device__ void load_keys(const PagedProblem& p, const std::int32_t* table, int kv_head, int first, int end,
                            int piece, bool has_piece, int appended) {
    std::int64_t page[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) page[u] = table[min(first + u * keys_at_once, end - 1) >> p.page_shift];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      k[u] = v[u] = {};
      const int key = min(first + u * keys_at_once, end - 1), in_page = key & ((1 << p.page_shift) - 1);
      if (!has_piece || key == appended) continue;
      k[u].load(static_cast<const T*>(p.k) + page[u] * p.k_page + in_page * p.k_row + kv_head * p.k_head +
                piece * pack);
      v[u].load(static_cast<const T*>(p.v) + page[u] * p.v_page + in_page * p.v_row + kv_head * p.v_head +
                piece * pack);
    }
  }
  __device__ void load_appended(const AppendedRow<T, heads, max_dim>& row, int first, int end, int piece,
                                bool has_piece, int appended) {
#pragma unroll
    for (int u = 0; u < unroll; ++u)
      if (has_piece && min(first + u * keys_at_once, end - 1) == appended)
        k[u].load(row.k + piece * pack), v[u].load(row.v + piece * pack);
  }

  // To the keys that were loaded.
  __device__ void attend(int first, int end) {
    float score[heads][unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      float key[pack];
      k[u].widen(key);
#pragma unroll
      for (int h = 0; h < heads; ++h) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < pack; ++i) dot += q[h][i] * key[i];
#pragma unroll
        for (int other = lanes / 2; other > 0; other /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, other);
        score[h][u] = first + u * keys_at_once < end ? dot : -INFINITY;
      }
    }
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      float larger = maximum[h];
#pragma unroll
      for (int u = 0; u < unroll; ++u) larger = fmaxf(larger, score[h][u]);
      const float reference = reference_of(larger);
      rescale(h, exp2_approx(maximum[h] - reference));
      maximum[h] = larger;
#pragma unroll
      for (int u = 0; u < unroll; ++u) sum[h] += score[h][u] = exp2_approx(score[h][u] - reference);
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      float value[pack];
      v[u].widen(value);
#pragma unroll
      for (int h = 0; h < heads; ++h)
#pragma unroll
        for (int i = 0; i < pack; ++i) values[h][i] += score[h][u] * value[i];
    }
  }

  template <int warps>
  __device__ void store(PartialSums<warps, heads, max_dim>& sums, int piece, bool has_piece) const {
    const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      if (lane == 0) sums.maximum[warp][h] = maximum[h], sums.sum[warp][h] = sum[h];
      if (lane < lanes && has_piece)
#pragma unroll
        for (int i = 0; i < pack; ++i) sums.values[warp][h][piece * pack + i] = values[h][i];
    }
  }

  // Combines the threads of a warp that hold the same piece of different keys.
  __device__ void combine_warp() {
#pragma unroll
    for (int other = lanes; other < warp_size; other *= 2)
#pragma unroll
      for (int h = 0; h < heads; ++h) {
        const float larger = fmaxf(maximum[h], __shfl_xor_sync(0xffffffffu, maximum[h], other));
        rescale(h, exp2_approx(maximum[h] - reference_of(larger)));
        maximum[h] = larger;
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], other);
#pragma unroll
        for (int i = 0; i < pack; ++i) values[h][i] += __shfl_xor_sync(0xffffffffu, values[h][i], other);
      }
  }

 private:
  __device__ void rescale(int h, float factor) {
    sum[h] *= factor;
#pragma unroll
    for (int i = 0; i < pack; ++i) values[h][i] *= factor;
  }
};

// What a block found, as the other blocks of the cluster read it.
template <int heads, int max_dim>
struct BlockSums {
  alignas(16) float values[heads][max_dim];
  float4 maximum_and_sum[heads];
};

// Writes what the blocks of the cluster found together.
template <class T, int heads, int max_dim>
__device__ void combine_cluster(const PagedProblem& p, const BlockSums<heads, max_dim>& of_block, T* out, int count) {
  for (int index = 4 * static_cast<int>(threadIdx.x); index < count * p.head_dim;
       index += 4 * static_cast<int>(blockDim.x)) {
    const int h = index / p.head_dim, d = index % p.head_dim;
    float maximum = -INFINITY, sum = 0;
    float4 value = {};
    for (int block = 0; block < Cluster::size(); ++block) {
      const float4 found = Cluster::load(&of_block.maximum_and_sum[h].x, block);
      const float4 more = Cluster::load(&of_block.values[h][d], block);
      const float larger = fmaxf(maximum, found.x), reference = reference_of(larger);
      const float kept = exp2_approx(maximum - reference), factor = exp2_approx(found.x - reference);
      sum = sum * kept + factor * found.y;
      value = {value.x * kept + factor * more.x, value.y * kept + factor * more.y, value.z * kept + factor * more.z,
               value.w * kept + factor * more.w};
      maximum = larger;
    }
    const float factor = sum > 0 ? 1 / sum : 0;
    T* to = out + h * p.out_head + d;
    to[0] = T(value.x * factor), to[1] = T(value.y * factor), to[2] = T(value.z * factor), to[3] = T(value.w * factor);
  }
}

struct Nothing {};

template <class T, int lanes, int heads, bool appends, class Size>
__global__ void __launch_bounds__(Size::warps* warp_size, Size::blocks)
    paged_attention_kernel(const __grid_constant__ PagedProblem p,
                           const __grid_constant__ std::conditional_t<appends, PagedAppend, Nothing> a) {
  constexpr int max_dim = widest<T, lanes>;
  __shared__ std::conditional_t<appends, AppendedRow<T, heads, max_dim>, Nothing> appended;
  __shared__ PartialSums<Size::warps, heads, max_dim> of_warps;
  __shared__ BlockSums<heads, max_dim> of_block;
  if constexpr (!appends) start_next_kernel();
  // Heads of a row side by side, as their keys are in memory.
  const int row = static_cast<int>(blockIdx.z), tile = static_cast<int>(blockIdx.y);
  const int kv_head = tile / p.tiles, head_in_group = tile % p.tiles * heads;
  const int first_head = kv_head * p.group + head_in_group, count = min(heads, p.group - head_in_group);
  const int warps = static_cast<int>(blockDim.x) / warp_size, warp = static_cast<int>(threadIdx.x) / warp_size,
            lane = static_cast<int>(threadIdx.x) % warp_size;
  const int length = p.lengths[row], last = appends ? length - 1 : -1;
  const Share share = share_of_block(p.window > 0 ? max(length - p.window, 0) : 0, length);

  using Own = Rows<T, lanes, heads, Size::unroll>;
  const int piece = lane % lanes, first_key = share.begin + warp * Own::step + lane / lanes;
  const bool has_piece = piece * Own::pack < p.head_dim;
  const bool block_writes = appends && share.end == length && head_in_group == 0;
  if (share.begin >= share.end) {
    wait_for_previous_kernel();
    if constexpr (appends) start_next_kernel();
  } else {
    Own own;
    const std::int32_t* table = p.table + static_cast<std::int64_t>(p.sequences[row]) * p.max_pages;
    if constexpr (appends) {
      own.load_keys(p, table, kv_head, first_key, share.end, piece, has_piece, last);
      appended.load(p, a, row, kv_head, first_head, count, last);
      if (block_writes && warp == warps - 1) {
        appended.write(p, table, kv_head, last);
        __threadfence();
        __syncwarp();
      }
      if (!block_writes || warp == warps - 1) start_next_kernel(); // one thread speaks for its block
      own.load_queries(p, appended.q[0], max_dim, count, piece, has_piece);
    } else {
      wait_for_previous_kernel();
      own.load_queries(p, static_cast<const T*>(p.q) + row * p.q_row + first_head * p.q_head, p.q_head, count, piece,
                       has_piece);
    }
    for (int first = first_key; first - lane / lanes < share.end; first += warps * Own::step) {
      if (!appends || first != first_key) own.load_keys(p, table, kv_head, first, share.end, piece, has_piece, last);
      if constexpr (appends) own.load_appended(appended, first, share.end, piece, has_piece, last);
      own.attend(first, share.end);
    }
    own.combine_warp();
    own.store(of_warps, piece, has_piece);
  }
  __syncthreads();

  // A warp writes 32 numbers of a head; its lane i has the factor of what warp i found.
  const bool is_alone = Cluster::size() == 1;
  T* out = static_cast<T*>(p.out) + row * p.out_row + first_head * p.out_head;
  const int found = share.begin < share.end ? warps : 0, pieces = (p.head_dim + warp_size - 1) / warp_size;
  for (int index = warp; index < count * pieces; index += warps) {
    const int h = index / pieces, d = index % pieces * warp_size + lane;
    const float own = lane < found ? of_warps.maximum[lane][h] : -INFINITY, maximum = warp_max(own),
                factor = exp2_approx(own - reference_of(maximum)),
                sum = warp_sum(lane < found ? factor * of_warps.sum[lane][h] : 0);
    float value = 0;
    for (int w = 0; w < found; ++w) value += __shfl_sync(0xffffffffu, factor, w) * of_warps.values[w][h][d];
    if (d >= p.head_dim) continue;
    if (is_alone) {
      out[h * p.out_head + d] = T(sum > 0 ? value / sum : 0);
    } else {
      of_block.values[h][d] = value;
      if (d == 0) of_block.maximum_and_sum[h] = {maximum, sum, 0, 0};
    }
  }
  if (is_alone) return;
  Cluster::arrive();
  Cluster::wait();
  if (Cluster::rank() == 0) combine_cluster(p, of_block, out, count);
  // Shared memory stays until it has been read.
  Cluster::arrive();
  Cluster::wait();
}

template <class T, int lanes, int heads, class Size>
void enqueue(const fvlm_call& call, const PagedLaunch& launch, PagedProblem p, const PagedAppend* append) {
  p.tiles = (p.group + heads - 1) / heads;
  cudaLaunchConfig_t config{};
  config.gridDim = {static_cast<unsigned>(launch.blocks), static_cast<unsigned>(launch.heads_kv * p.tiles),
                    static_cast<unsigned>(launch.rows)};
  config.blockDim = {static_cast<unsigned>(launch.warps * warp_size), 1, 1};
  config.stream = sdk::stream_of(call);
  cudaLaunchAttribute attributes[2]{};
  config.attrs = attributes;
  if (launch.blocks > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(launch.blocks), 1, 1};
  }
  if (launch.starts_early) attributes[config.numAttrs++] = may_start_early();
  if (append)
    sdk::check_cuda(cudaLaunchKernelEx(&config, paged_attention_kernel<T, lanes, heads, true, Size>, p, *append),
                    "launch");
  else
    sdk::check_cuda(cudaLaunchKernelEx(&config, paged_attention_kernel<T, lanes, heads, false, Size>, p, Nothing{}),
                    "launch");
}

template <class T, int lanes>
void enqueue_heads(const fvlm_call& call, const PagedLaunch& launch, const PagedProblem& p, const PagedAppend* append) {
  if constexpr (sizeof(T) == 2)
    if (launch.is_dense) return enqueue<T, lanes, 1, Dense>(call, launch, p, append);
  if constexpr (lanes == 16)
    if (launch.warps > Roomy::warps) return enqueue<T, lanes, 1, Wide>(call, launch, p, append);
  if (p.group == 1 || launch.has_heads_apart) return enqueue<T, lanes, 1, Roomy>(call, launch, p, append);
  if (p.group % 4 == 0) return enqueue<T, lanes, 4, Roomy>(call, launch, p, append);
  enqueue<T, lanes, 3, Roomy>(call, launch, p, append);
}

} // namespace

PagedLaunch paged_launch(const fvlm_paged_attention_query& query, int window, int multiprocessors, bool has_clusters) {
  PagedLaunch launch{};
  launch.rows = query.rows;
  launch.heads_kv = query.heads_kv;
  const std::int64_t pairs = query.rows * query.heads_kv, capacity = query.max_pages * query.page_rows,
                     keys = window > 0 ? std::min<std::int64_t>(window, capacity) : capacity;
  launch.has_heads_apart = query.rows * query.heads_q <= multiprocessors;
  const std::int64_t tiles = launch.has_heads_apart ? query.rows * query.heads_q : pairs,
                     keys_of_block = launch.has_heads_apart ? min_keys_of_one_head : min_keys_per_block;
  launch.blocks = 1;
  while (has_clusters && launch.blocks < max_cluster && tiles * launch.blocks < multiprocessors &&
         keys > launch.blocks * keys_of_block)
    launch.blocks *= 2;
  launch.starts_early = has_clusters;
  launch.warps = pairs * launch.blocks > 2 * multiprocessors ? Roomy::warps / 2 : Roomy::warps;
  const int pieces = query.head_dim / (128 / query.dtype.bits);
  if (launch.has_heads_apart && pieces > 8 && pieces <= 16 && keys > 64) launch.warps = Wide::warps;
  // Chosen by measurement (bench/LOG.md, 2026-11-27 and 28): fewer registers and keys on the way make a block slower,
  // which pays where blocks would have to wait for others.
  launch.is_dense = query.heads_q == query.heads_kv && query.dtype != sdk::float32 && pairs > 4 * multiprocessors;
  if (launch.is_dense) launch.warps = Dense::warps;
  return launch;
}

void paged_attention(const fvlm_call& call, fvlm_dtype dtype, const PagedLaunch& launch, const PagedProblem& p,
                     const PagedAppend* append) {
  sdk::dispatch<BFloat16, Half, float>(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    const int pieces = p.head_dim / pack_size<T>;
    if (pieces <= 8) return enqueue_heads<T, 8>(call, launch, p, append);
    if (pieces <= 16) return enqueue_heads<T, 16>(call, launch, p, append);
    enqueue_heads<T, 32>(call, launch, p, append);
  });
}

} // namespace fvlm::plugins
