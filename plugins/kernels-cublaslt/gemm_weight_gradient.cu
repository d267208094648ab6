// gemm_weight_gradient.cu: d_weight = d_y^T x and d_bias for Hopper, 16-bit operands, at least 8,192 rows and features
// that fill the tiles; chosen by measurement.
//
// A cluster of two blocks computes a tile of 192 x 384 and shares the 192 columns of one operand by TMA multicast; a
// block's part stays in the registers of three consumer warpgroups of 64 x 192, fed by one producer warp four stages
// deep. Clusters that have the same tile split the rows (split-K), all at the same rows at a time, so that rows come
// from memory once. A second kernel adds the partial sums in order, so results are deterministic. The bias gradient is
// eight more columns of ones in the product.
//
// Measured on an H100, bf16 into float32 (bench/LOG.md, 2026-11-22), qkv, proj, up and down of a tower of width 384:
// 131,584 rows 165, 89, 213 and 212 us (qkv 167 with d_bias, where cuBLASLt with a separate sum takes about 262);
// 16,448 rows 37.6, 23.7, 43.0 and 41.7 us.
#include "common/cuda_cluster.cuh"
#include "common/cuda_tensor_map.h"
#include "common/cuda_wgmma_wide.cuh"
#include "gemm_weight_gradient.h"

namespace fvlm::plugins {
namespace {

using namespace hopper;
using std::int64_t;

constexpr int blocks = 2, consumer_warpgroups = 3, stages = 4; // blocks per cluster
constexpr int consumer_threads = consumer_warpgroups * warpgroup_threads, threads = consumer_threads + warp_size;
constexpr int reduce_threads = 256; // block size of the kernel that adds partial sums
constexpr int chunk = 64;           // rows per pipeline stage
constexpr int boxes = 3, block_columns = boxes * box_width, box_bytes = chunk * box_row_bytes; // of either operand
constexpr int block_quads = block_columns * block_columns / 4; // float4s per block's result

struct Problem {
  CUtensorMap left, right;
  float4* sums;                                             // [part, tile, block, float4 of a thread, thread]
  float* column_sums;                                       // [part, tile, block, column of the left operand] or NULL
  int left_columns, right_columns, left_tiles, right_tiles; // a cluster has one of each
  int parts, chunks;

  __host__ __device__ int tiles() const { return left_tiles * right_tiles; }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL // only compiles for sm_90a

struct alignas(8 * box_row_bytes) Shared {
  struct Chunk {
    char left[boxes][box_bytes], right[boxes][box_bytes];
    char ones[box_bytes]; // or zeros: extra columns of the right operand, which sum the left operand's columns
  } chunks[stages];
  Barrier full[stages], empty[stages];
};

using Stage = PipelineStage<stages>;

// The work of a block: a tile of columns of either operand, and a range of chunks of rows.
struct BlockWork {
  int left_tile, right_tile, rank, begin, end;
  unsigned summed; // bit mask of the stages in which this block sums the left operand's columns

  __device__ explicit BlockWork(const Problem& p) {
    const int cluster = static_cast<int>(blockIdx.x) / blocks, tile = cluster % p.tiles(), part = cluster / p.tiles();
    left_tile = tile % p.left_tiles, right_tile = tile / p.left_tiles;
    rank = static_cast<int>(cluster_rank());
    begin = uniform(first_chunk(p, part)), end = uniform(first_chunk(p, part + 1));
    // Blocks with the same left columns share the summing, by stages.
    const int sharers = p.right_tiles * blocks, sharer = right_tile * blocks + rank;
    unsigned own_stages = 0;
    for (int stage = sharer; stage < stages; stage += sharers) own_stages |= 1u << stage;
    summed = uniform(p.column_sums ? own_stages : 0);
  }
  __device__ int chunks() const { return end - begin; }
  __device__ bool sums(unsigned stage) const { return summed >> stage & 1; }

 private:
  __device__ static int first_chunk(const Problem& p, int part) {
    return static_cast<int>(static_cast<int64_t>(p.chunks) * part / p.parts);
  }
  // Tells the compiler that a value is the same in all threads of a warp.
  template <class Number>
  __device__ static Number uniform(Number number) {
    return __shfl_sync(0xffffffffu, number, 0);
  }
};

// The producer warp, of which one thread issues the loads.
__device__ inline void run_producer(Shared& s, const Problem& p, const BlockWork& work) {
  constexpr int rows = chunk / blocks; // of the left operand: each block of the cluster loads these for both
  const bool is_leader = threadIdx.x % warp_size == 0;
  const int left = work.left_tile * block_columns, right = (work.right_tile * blocks + work.rank) * block_columns;
  for (int i = 0; i < work.chunks(); ++i) {
    const Stage stage(i);
    const int row = (work.begin + i) * chunk, left_row = work.rank * rows;
    Shared::Chunk& to = s.chunks[stage.index];
    Barrier& full = s.full[stage.index];
    s.empty[stage.index].wait(stage.parity ^ 1);
    if (!is_leader) continue;
    full.arrive_and_expect_tx(2 * boxes * box_bytes);
    for (int box = 0; box < boxes; ++box) tma_load(to.right[box], p.right, right + box * box_width, row, full);
    for (int box = 0; box < boxes; ++box)
      tma_load(to.left[box] + left_row * box_row_bytes, p.left, left + box * box_width, row + left_row, full,
               (1u << blocks) - 1);
  }
  // Waits while the other block still releases stages of this one, which must not exit before.
  for (int i = work.chunks(); i < work.chunks() + stages; ++i) s.empty[Stage(i).index].wait(Stage(i).parity ^ 1);
}

template <class T, int columns>
__device__ void multiply_chunk(float (&sum)[100], std::uint64_t left, std::uint64_t right, bool adds) {
  constexpr unsigned depth = 16; // of one wgmma
  wgmma_fence();
#pragma unroll
  for (unsigned row = 0; row < chunk; row += depth)
    wgmma_mn_major<T, columns>(sum, advance_descriptor(left, row * box_row_bytes),
                               advance_descriptor(right, row * box_row_bytes), adds || row > 0);
  wgmma_commit();
}

// Called by the consumers while the first chunk is in flight.
template <class T>
__device__ void fill_ones(Shared& s, const BlockWork& work) {
  for (unsigned stage = 0; stage < stages; ++stage) {
    const T one(work.sums(stage) ? 1.0f : 0.0f);
    for (int i = static_cast<int>(threadIdx.x); i < box_bytes / 2; i += consumer_threads)
      reinterpret_cast<T*>(s.chunks[stage].ones)[i] = one;
  }
  fence_proxy_async(); // also for wgmma, which reads through the async proxy
  asm volatile("bar.sync 1, %0;" ::"n"(consumer_threads) : "memory");
}

template <class T>
__device__ void run_consumer(Shared& s, const Problem& p, const BlockWork& work, int group) {
  const std::uint64_t left = matrix_descriptor(s.chunks[0].left[group]),
                      right = matrix_descriptor(s.chunks[0].right, box_bytes);
  const int thread = static_cast<int>(threadIdx.x);
  // Both blocks of the cluster have to know, since they load for each other.
  const auto release = [&](int index) {
    if (thread % warp_size < blocks) s.empty[Stage(index).index].arrive_remote(thread % warp_size);
  };
  if (p.column_sums) fill_ones<T>(s, work);
  float sum[100];
  for (int i = 0; i < work.chunks(); ++i) {
    const Stage stage(i);
    const unsigned bytes = stage.index * sizeof s.chunks[0];
    s.full[stage.index].wait(stage.parity);
    // The first chunk initializes all of the accumulators.
    if (p.column_sums && (i == 0 || work.sums(stage.index)))
      multiply_chunk<T, 200>(sum, advance_descriptor(left, bytes), advance_descriptor(right, bytes), i > 0);
    else
      multiply_chunk<T, 192>(sum, advance_descriptor(left, bytes), advance_descriptor(right, bytes), i > 0);
    if (i == 0) continue;
    wgmma_wait<1>();
    release(i - 1);
  }
  wgmma_wait<0>();
  release(work.chunks() - 1);
  float4* to = p.sums + static_cast<int64_t>(blockIdx.x) * block_quads + thread;
#pragma unroll
  for (int i = 0; i < 96; i += 4, to += consumer_threads) *to = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
  if (p.column_sums && thread % 4 == 0) {
    float* const of_rows = p.column_sums + static_cast<int64_t>(blockIdx.x) * block_columns + thread / warp_size * 16;
    of_rows[thread % warp_size / 4] = sum[96];
    of_rows[thread % warp_size / 4 + 8] = sum[98];
  }
}

#endif

template <class T>
__global__ void __launch_bounds__(threads, 1) partial_gemm_kernel(const __grid_constant__ Problem p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & (alignof(Shared) - 1)));
  const BlockWork work(p);
  if (threadIdx.x == consumer_threads) {
    for (Barrier& each : s.full) each.init(1);
    for (Barrier& each : s.empty) each.init(blocks * consumer_warpgroups * warpgroup_warps);
    Barrier::fence_init();
  }
  __syncwarp();
  cluster_sync();
  // uniform within the warp
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (group == consumer_warpgroups)
    run_producer(s, p, work);
  else
    run_consumer<T>(s, p, work, group);
#endif
}

struct GradientOutputs {
  void *d_weight, *d_bias;
  bool accumulate, left_is_x;

  template <class T>
  __device__ void write_gradient(void* to, int64_t index, float value) const {
    T& element = static_cast<T*>(to)[index];
    element = T(accumulate ? static_cast<float>(element) + value : value);
  }
};

// Adds all parts, which are `distance` float4s apart.
template <int batch = 8> // loads in flight
__device__ float4 sum_partials(const float4* first, int64_t distance, int parts) {
  float4 sum{};
  for (; parts >= batch; parts -= batch, first += batch * distance) {
    float4 loaded[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) loaded[i] = __ldcg(first + i * distance);
#pragma unroll
    for (int i = 0; i < batch; ++i) add(sum, loaded[i]);
  }
  if constexpr (batch > 1)
    if (parts > 0) add(sum, sum_partials<batch / 2>(first, distance, parts));
  return sum;
}

// Warps take the parts of 32 columns round-robin, one column per lane.
template <class T>
__device__ void add_column_sums(const Problem& p, const GradientOutputs& results) {
  __shared__ float sums[reduce_threads / warp_size][warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp_index = static_cast<int>(threadIdx.x) / warp_size;
  const int sharers = min(p.right_tiles * blocks, stages), parts = p.parts * sharers;
  for (int first = static_cast<int>(blockIdx.x) * warp_size; first < p.left_columns; first += gridDim.x * warp_size) {
    const int column = first + lane;
    float sum = 0;
#pragma unroll 4
    for (int i = warp_index; i < parts; i += reduce_threads / warp_size) {
      const int tile = i % sharers / blocks * p.left_tiles + column / block_columns, part = i / sharers;
      const int64_t block = (static_cast<int64_t>(part) * p.tiles() + tile) * blocks + i % blocks;
      if (column < p.left_columns) sum += __ldcg(p.column_sums + block * block_columns + column % block_columns);
    }
    sums[warp_index][lane] = sum;
    __syncthreads();
    if (warp_index == 0 && column < p.left_columns) {
      for (int i = 1; i < reduce_threads / warp_size; ++i) sum += sums[i][lane];
      results.write_gradient<T>(results.d_bias, column, sum);
    }
    __syncthreads();
  }
}

// blockIdx.y is the tile; if there are column sums, index 0 adds those.
template <class T>
__global__ void __launch_bounds__(reduce_threads)
    reduce_partials_kernel(const __grid_constant__ Problem p, const GradientOutputs results) {
  const int tile = static_cast<int>(blockIdx.y) - (p.column_sums ? 1 : 0);
  if (tile < 0) return add_column_sums<T>(p, results);
  const int item = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), rank = item / block_quads,
            thread = item % consumer_threads, lane = thread % warp_size, eight = item % block_quads / consumer_threads;
  const float4 sum = sum_partials(p.sums + static_cast<int64_t>(tile) * blocks * block_quads + item,
                                  static_cast<int64_t>(p.tiles()) * blocks * block_quads, p.parts);
  const int left = tile % p.left_tiles * block_columns + thread / warp_size * 16 + lane / 4,
            right = (tile / p.left_tiles * blocks + rank) * block_columns + eight * 8 + lane % 4 * 2;
  const float values[2][2] = {{sum.x, sum.y}, {sum.z, sum.w}};
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = left + 8 * i, column = right + j;
      if (row >= p.left_columns || column >= p.right_columns) continue;
      const int64_t index = results.left_is_x ? static_cast<int64_t>(column) * p.left_columns + row
                                              : static_cast<int64_t>(row) * p.right_columns + column;
      results.write_gradient<T>(results.d_weight, index, values[i][j]);
    }
}

int64_t ceil_divide(int64_t size, int64_t unit) {
  return (size + unit - 1) / unit;
}

// How a product is divided.
struct GemmSplit {
  bool left_is_x;
  int64_t left_tiles, right_tiles, chunks, parts;

  GemmSplit(int multiprocessors, const WeightGradientShape& shape, bool x_left) : left_is_x(x_left) {
    left_tiles = ceil_divide(x_left ? shape.inner : shape.width, block_columns);
    right_tiles = ceil_divide(x_left ? shape.width : shape.inner, blocks * block_columns);
    chunks = ceil_divide(shape.rows, chunk);
    parts = std::min(multiprocessors / (blocks * tiles()), chunks);
  }
  int64_t tiles() const { return left_tiles * right_tiles; }
  int64_t all_blocks() const { return tiles() * blocks * parts; }
};

// Chooses the orientation with the fewest tiles, and of those the fewest of the right operand, as more clusters then
// read the same rows at a time. Column sums are always the left operand's.
GemmSplit choose_split(int multiprocessors, const WeightGradientShape& shape, bool sums_columns) {
  const GemmSplit x_right(multiprocessors, shape, false), x_left(multiprocessors, shape, true);
  const bool left = std::pair(x_left.tiles(), x_left.right_tiles) < std::pair(x_right.tiles(), x_right.right_tiles);
  return left && !sums_columns ? x_left : x_right;
}

} // namespace

bool weight_gradient_supports(int multiprocessors, const WeightGradientShape& shape) {
  constexpr int64_t min_rows = 1 << 13, min_parts = 4;
  constexpr double min_utilization = 0.8; // of the multiprocessors' capacity
  if (!sdk::is_one_of<BFloat16, Half>(shape.dtype) || shape.inner % 8 != 0 || shape.width % 8 != 0) return false;
  const GemmSplit split = choose_split(multiprocessors, shape, true);
  const auto capacity = static_cast<double>(multiprocessors) * block_columns * block_columns,
             used = static_cast<double>(shape.inner * shape.width * split.parts);
  return shape.rows >= min_rows && split.parts >= min_parts && used >= min_utilization * capacity;
}

int64_t weight_gradient_workspace(int multiprocessors) {
  return static_cast<int64_t>(multiprocessors) *
         static_cast<int64_t>(block_quads * sizeof(float4) + block_columns * sizeof(float));
}

void weight_gradient_gemm(const Device& device, const WeightGradientShape& shape, const WeightGradient& o,
                          void* workspace) {
  const GemmSplit split = choose_split(device.multiprocessors, shape, o.d_bias != nullptr);
  const Rows &left = split.left_is_x ? o.x : o.d_y, &right = split.left_is_x ? o.d_y : o.x;
  const int64_t left_columns = split.left_is_x ? shape.inner : shape.width,
                right_columns = split.left_is_x ? shape.width : shape.inner;
  Problem p{};
  p.left = make_tensor_map(shape.dtype, left.data, left.stride, shape.rows, left_columns, chunk / blocks);
  p.right = make_tensor_map(shape.dtype, right.data, right.stride, shape.rows, right_columns, chunk);
  p.left_columns = static_cast<int>(left_columns), p.right_columns = static_cast<int>(right_columns);
  p.left_tiles = static_cast<int>(split.left_tiles), p.right_tiles = static_cast<int>(split.right_tiles);
  p.parts = static_cast<int>(split.parts), p.chunks = static_cast<int>(split.chunks);
  p.sums = static_cast<float4*>(workspace);
  if (o.d_bias) p.column_sums = reinterpret_cast<float*>(p.sums + split.all_blocks() * block_quads);
  sdk::dispatch<BFloat16, Half>(shape.dtype, [&](auto element) {
    const auto kernel = partial_gemm_kernel<typename decltype(element)::type>;
    constexpr int bytes = stages * (2 * boxes + 1) * box_bytes + 2 * stages * 8 + 8 * box_row_bytes;
    sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {blocks, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(split.all_blocks()));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = device.stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    sdk::check_cuda(cudaLaunchKernelEx(&config, kernel, p), "launch");
  });
  sdk::dispatch<float, BFloat16, Half>(shape.gradient_dtype, [&](auto element) {
    const dim3 grid(blocks * block_quads / reduce_threads, static_cast<unsigned>(p.tiles() + (o.d_bias ? 1 : 0)));
    reduce_partials_kernel<typename decltype(element)::type>
        <<<grid, reduce_threads, 0, device.stream>>>(p, {o.d_weight, o.d_bias, o.accumulate, split.left_is_x});
    sdk::check_cuda(cudaGetLastError(), "launch");
  });
}

} // namespace fvlm::plugins
