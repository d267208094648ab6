// paged_attention.cu: attention of rows that each continue a sequence whose keys are in pages (flash-decoding). The
// blocks of a cluster share the keys of one row and key head, the warps of a block share the block's, and all query
// heads of the key head are computed together, so that keys and values are read once. What the warps and blocks found
// is combined in shared memory: one launch, whatever the lengths, of which the host knows nothing.
//
// A call that appends (a step of decoding) first brings the row's queries, its key and its value into shared memory,
// normalized, rotated and rounded. The warp that has the last key reads it there and writes it to its page. The other
// keys are on their way before the kernel that makes these rows is done.
//
// Within a warp, `lanes` threads hold one key, `pack` numbers each, which are 16 bytes, or 32 of the widest heads; 32 /
// lanes keys are read at once, `unroll` times in flight. Each such thread has a running maximum and sum of its own
// (online softmax). Few rows take a block for each query head, whose threads have twice the keys on the way; many rows
// take smaller blocks, of which more are on the device at once.
#include "common/cuda_cluster.cuh"
#include "common/cuda_dependent_launch.cuh"
#include "paged_append.cuh"
#include "tiles.cuh"

#include <algorithm>
#include <cstdint>

namespace fvlm::plugins {
namespace {

constexpr int max_cluster = 8;
// How a block is laid out: warps at most, keys of a thread that are attended to at once, such batches that are on the
// way, blocks that have to fit on a multiprocessor.
struct Quick { // few rows: a block has one query head
  static constexpr int warps = 8, unroll = 4, batches = 2, blocks = 1;
};
struct Roomy { // more rows: a block has the query heads of a key head, or some of them
  static constexpr int warps = 8, unroll = 4, batches = 1, blocks = 1;
};
struct Middle { // more rows, where a key head has one query head
  static constexpr int warps = 8, unroll = 4, batches = 1, blocks = 2;
};
struct Dense { // many such rows
  static constexpr int warps = 3, unroll = 2, batches = 1, blocks = 8;
};
struct Wide { // heads whose threads hold 32 bytes of a key, two heads a block
  static constexpr int warps = 8, unroll = 2, batches = 1, blocks = 1;
};

// The room for a head of which `lanes` threads hold `pack` numbers each.
template <int lanes, int pack>
inline constexpr int widest = lanes* pack > 128 ? lanes* pack : 128;

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

template <int warps, int heads, int max_dim>
struct PartialSums {
  float values[warps][heads][max_dim];
  float2 maximum_and_sum[warps][heads];

  // Number d of a head, by the sums of the warps that `found` something.
  __device__ float combine(int h, int d, int found, float& maximum, float& sum) const {
    float2 of_warp[warps];
    float value[warps];
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      of_warp[w] = w < found ? maximum_and_sum[w][h] : float2{-INFINITY, 0};
      value[w] = w < found ? values[w][h][d] : 0;
    }
    maximum = -INFINITY;
#pragma unroll
    for (int w = 0; w < warps; ++w) maximum = fmaxf(maximum, of_warp[w].x);
    const float reference = reference_of(maximum);
    float combined = 0;
    sum = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      const float factor = exp2_approx(of_warp[w].x - reference);
      sum = fmaf(factor, of_warp[w].y, sum);
      combined = fmaf(factor, value[w], combined);
    }
    return combined;
  }
};

// Keys and values of a thread on their way.
template <class T, int pack, int unroll>
struct Batch {
  Pack<T, pack> k[unroll], v[unroll];
};

template <class T, int lanes, int pack, int heads, int unroll>
struct Rows {
  static constexpr int keys_at_once = warp_size / lanes, step = unroll * keys_at_once, max_dim = widest<lanes, pack>;
  using Numbers = Pack<T, pack>;
  using Keys = Batch<T, pack, unroll>;
  float maximum[heads], sum[heads], values[heads][pack], q[heads][pack];

  // query: this lane's piece.
  __device__ void start(int h, const T* query, float scale_log2, bool has_piece) {
    maximum[h] = -INFINITY;
    sum[h] = 0;
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      values[h][i] = 0;
      q[h][i] = has_piece ? static_cast<float>(query[i]) * scale_log2 : 0;
    }
  }

  // Those from `end` on repeat the last one and count nothing. All are loaded without a condition: behind a branch,
  // each would wait for the one before it. offset: of the lane's piece, or of any other if it has none.
  template <int batches>
  static __device__ void load_keys(Keys (&keys)[batches], const PagedProblem& p, const std::int32_t* table, int kv_head,
                                   int first, int stride, int end, int offset) {
    std::int64_t page[batches][unroll];
    const auto key = [&](int i, int u) { return min(first + i * stride + u * keys_at_once, end - 1); };
#pragma unroll
    for (int i = 0; i < batches; ++i)
#pragma unroll
      for (int u = 0; u < unroll; ++u) page[i][u] = table[key(i, u) >> p.page_shift];
#pragma unroll
    for (int i = 0; i < batches; ++i)
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        const std::int64_t in_page = key(i, u) & ((1 << p.page_shift) - 1);
        keys[i].k[u].load(static_cast<const T*>(p.k) + page[i][u] * p.k_page + in_page * p.k_row + kv_head * p.k_head +
                          offset);
        keys[i].v[u].load(static_cast<const T*>(p.v) + page[i][u] * p.v_page + in_page * p.v_row + kv_head * p.v_head +
                          offset);
      }
  }
  // The last key, where its page had anything.
  static __device__ void place_appended(Keys& keys, const Numbers& new_k, const Numbers& new_v, int first, int end) {
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const bool is_last = first + u * keys_at_once >= end - 1;
#pragma unroll
      for (int i = 0; i < Numbers::words; ++i) {
        keys.k[u].bits.at[i] = is_last ? new_k.bits.at[i] : keys.k[u].bits.at[i];
        keys.v[u].bits.at[i] = is_last ? new_v.bits.at[i] : keys.v[u].bits.at[i];
      }
    }
  }

  __device__ void attend(const Keys& keys, int first, int end) {
    float score[heads][unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      float key[pack];
      keys.k[u].widen(key);
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
      keys.v[u].widen(value);
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
      if (lane == 0) sums.maximum_and_sum[warp][h] = {maximum[h], sum[h]};
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

// Combines what the `found` warps of a block have: the output, or for others of a cluster of_block.
template <class T, int warps, int heads, int max_dim>
__device__ void combine_block(const PagedProblem& p, const PartialSums<warps, heads, max_dim>& of_warps, int found,
                              BlockSums<heads, max_dim>& of_block, T* out, int count) {
  for (int index = static_cast<int>(threadIdx.x); index < heads * max_dim; index += static_cast<int>(blockDim.x)) {
    const int h = index / max_dim, d = index % max_dim;
    if (h >= count || d >= p.head_dim) continue;
    float maximum, sum;
    const float value = of_warps.combine(h, d, found, maximum, sum);
    if (Cluster::size() == 1) {
      out[h * p.out_head + d] = T(sum > 0 ? __fdividef(value, sum) : 0);
    } else {
      of_block.values[h][d] = value;
      if (d == 0) of_block.maximum_and_sum[h] = {maximum, sum, 0, 0};
    }
  }
}

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

// Which heads a block computes. Heads of a row are side by side, as their keys are in memory.
struct Tile {
  int row, kv_head, head_in_group, first_head, count;

  static __device__ Tile of_block(const PagedProblem& p, int heads) {
    const int tile = static_cast<int>(blockIdx.y), kv_head = tile / p.tiles, in_group = tile % p.tiles * heads;
    return {static_cast<int>(blockIdx.z), kv_head, in_group, kv_head * p.group + in_group,
            min(heads, p.group - in_group)};
  }
};

// Combines what the blocks of a cluster found, if there are several.
template <class T, int heads, int max_dim>
__device__ void finish_cluster(const PagedProblem& p, const BlockSums<heads, max_dim>& of_block, T* out, int count) {
  if (Cluster::size() == 1) return;
  Cluster::arrive();
  Cluster::wait();
  if (Cluster::rank() == 0) combine_cluster(p, of_block, out, count);
  // Shared memory stays until it has been read.
  Cluster::arrive();
  Cluster::wait();
}

template <class T, int lanes, int pack, int heads, bool appends, class Size>
__global__ void __launch_bounds__(Size::warps* warp_size, Size::blocks)
    paged_attention_kernel(const __grid_constant__ PagedProblem p,
                           const __grid_constant__ std::conditional_t<appends, PagedAppend, Nothing> a) {
  constexpr int max_dim = widest<lanes, pack>;
  __shared__ PartialSums<Size::warps, heads, max_dim> of_warps;
  __shared__ BlockSums<heads, max_dim> of_block;
  if constexpr (!appends) start_next_kernel();
  const Tile tile = Tile::of_block(p, heads);
  const int row = tile.row, kv_head = tile.kv_head, first_head = tile.first_head, count = tile.count;
  const int warps = static_cast<int>(blockDim.x) / warp_size, warp = static_cast<int>(threadIdx.x) / warp_size,
            lane = static_cast<int>(threadIdx.x) % warp_size;
  const int length = p.lengths[row], last = appends ? length - 1 : -1;
  [[maybe_unused]] std::uint64_t first_step = 0;
  if constexpr (appends) // while the length is on its way
    if (2 * static_cast<int>(threadIdx.x) < a.rotary_dim)
      first_step = Angles<max_dim>::step_of(a, static_cast<int>(threadIdx.x));
  const Share share = share_of_block(p.window > 0 ? max(length - p.window, 0) : 0, length);

  using Own = Rows<T, lanes, pack, heads, Size::unroll>;
  const int piece = lane % lanes, first_key = share.begin + warp * Own::step + lane / lanes;
  const int stride = warps * Own::step; // from a batch of a warp to its next
  const bool has_piece = piece * pack < p.head_dim;
  const int offset = has_piece ? piece * pack : 0;
  if (share.begin >= share.end) {
    wait_for_previous_kernel();
    if constexpr (appends) start_next_kernel();
  } else {
    const std::int32_t* table = p.table + static_cast<std::int64_t>(p.sequences[row]) * p.max_pages;
    Own own;
    typename Own::Keys keys[Size::batches];
    const auto load_batches = [&](int first) {
      if (first - lane / lanes < share.end) Own::load_keys(keys, p, table, kv_head, first, stride, share.end, offset);
    };
    [[maybe_unused]] typename Own::Numbers new_k, new_v;
    [[maybe_unused]] bool has_last = false; // this warp
    if constexpr (appends) {
      __shared__ Angles<max_dim> angles;
      __shared__ AppendedRow<T, heads, max_dim> appended;
      const std::int64_t last_page = table[last >> p.page_shift];
      load_batches(first_key);
      angles.find(a, first_step, last);
      has_last = share.end == length && (last - share.begin) / Own::step % warps == warp;
      __syncthreads();
      const RotatedPiece<T, lanes, pack, max_dim> own_piece{a, angles, offset, has_piece};
      wait_for_previous_kernel();
      start_next_kernel();
      appended.load(p, a, row, kv_head, first_head, count, own_piece);
      __syncthreads();
#pragma unroll
      for (int h = 0; h < heads; ++h) own.start(h, appended.at[min(h, count - 1)] + offset, p.scale_log2, has_piece);
      if (has_last) {
        new_k.load(appended.at[count] + offset);
        new_v.load(appended.at[count + 1] + offset);
        if (tile.head_in_group == 0 && lane < lanes && has_piece)
          write_to_page(p, last_page, kv_head, last, offset, new_k, new_v);
      }
    } else {
      wait_for_previous_kernel();
      const T* queries = static_cast<const T*>(p.q) + row * p.q_row + first_head * p.q_head + offset;
#pragma unroll
      for (int h = 0; h < heads; ++h) own.start(h, queries + min(h, count - 1) * p.q_head, p.scale_log2, has_piece);
      load_batches(first_key);
    }
    for (int first = first_key; first - lane / lanes < share.end;) {
#pragma unroll
      for (int i = 0; i < Size::batches; ++i, first += stride) {
        if (first - lane / lanes >= share.end) break;
        if (appends && has_last) Own::place_appended(keys[i], new_k, new_v, first, share.end);
        own.attend(keys[i], first, share.end);
      }
      load_batches(first);
    }
    own.combine_warp();
    own.store(of_warps, piece, has_piece);
  }
  __syncthreads();

  T* out = static_cast<T*>(p.out) + row * p.out_row + first_head * p.out_head;
  combine_block(p, of_warps, share.begin < share.end ? warps : 0, of_block, out, count);
  finish_cluster(p, of_block, out, count);
}

template <class T, int lanes, int pack, int heads, class Size>
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
    sdk::check_cuda(cudaLaunchKernelEx(&config, paged_attention_kernel<T, lanes, pack, heads, true, Size>, p, *append),
                    "launch");
  else
    sdk::check_cuda(
        cudaLaunchKernelEx(&config, paged_attention_kernel<T, lanes, pack, heads, false, Size>, p, Nothing{}),
        "launch");
}

template <class T, int lanes>
void enqueue_heads(const fvlm_call& call, const PagedLaunch& launch, const PagedProblem& p, const PagedAppend* append) {
  constexpr int pack = pack_size<T>;
  if constexpr (sizeof(T) == 2)
    if (launch.is_dense) return enqueue<T, lanes, pack, 1, Dense>(call, launch, p, append);
  if (launch.has_heads_apart) return enqueue<T, lanes, pack, 1, Quick>(call, launch, p, append);
  if (p.group == 1) return enqueue<T, lanes, pack, 1, Middle>(call, launch, p, append);
  if (p.group % 4 == 0) return enqueue<T, lanes, pack, 4, Roomy>(call, launch, p, append);
  enqueue<T, lanes, pack, 3, Roomy>(call, launch, p, append);
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
  launch.warps =
      !launch.has_heads_apart && pairs * launch.blocks > 2 * multiprocessors ? Roomy::warps / 2 : Roomy::warps;
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
    if (pieces <= 32) return enqueue_heads<T, 32>(call, launch, p, append);
    constexpr int pack = 2 * pack_size<T>;
    if (p.group == 1 || launch.has_heads_apart) return enqueue<T, 32, pack, 1, Wide>(call, launch, p, append);
    enqueue<T, 32, pack, 2, Wide>(call, launch, p, append);
  });
}

} // namespace fvlm::plugins
