// gated_norm.cu: rmsnorm of heads, times silu of a gate. A warp holds a head in registers; one pass over memory.
#include "common/cuda_gelu.cuh"
#include "common/cuda_gradient_sums.cuh"
#include "norms.cuh"

namespace fvlm::plugins {
namespace {

constexpr int warps_of_block = sum_threads / warp_size;

// A lane's packs of a head: `size` numbers each, which the lanes interleave.
template <class Type, int pack>
struct Lane {
  using Element = Type;
  static constexpr int size = pack, packs = max_gated_head / (warp_size * size);
  int lane, width;

  __device__ int first(int i) const { return (i * warp_size + lane) * size; }
  __device__ bool inside(int i) const { return first(i) < width; }
  // What lies outside of the head is 0.
  __device__ void load(const Element* from, float (&values)[packs][size]) const {
    Pack<Element, size> loaded[packs]{};
#pragma unroll
    for (int i = 0; i < packs; ++i)
      if (inside(i)) loaded[i].load(from + first(i));
#pragma unroll
    for (int i = 0; i < packs; ++i) loaded[i].widen(values[i]);
  }
  __device__ void store(Element* to, const float (&values)[packs][size]) const {
#pragma unroll
    for (int i = 0; i < packs; ++i)
      if (inside(i)) write(to + first(i), values[i]);
  }
  template <class Body>
  __device__ static void each(const Body& body) {
#pragma unroll
    for (int i = 0; i < packs; ++i)
#pragma unroll
      for (int k = 0; k < size; ++k) body(i, k);
  }
};

template <class Lane>
__global__ void __launch_bounds__(sum_threads) forward_kernel(NormForward p, std::int64_t norms, int width) {
  using Element = typename Lane::Element;
  const std::int64_t norm = static_cast<std::int64_t>(blockIdx.x) * warps_of_block + threadIdx.x / warp_size;
  if (norm >= norms) return;
  const Lane lane{static_cast<int>(threadIdx.x % warp_size), width};
  float x[Lane::packs][Lane::size], gate[Lane::packs][Lane::size], weight[Lane::packs][Lane::size], squares = 0;
  lane.load(row_at<const Element>(p, p.x, norm, width), x);
  lane.load(row_at<const Element>(p, p.gate, norm, width), gate);
  lane.load(static_cast<const Element*>(p.weight), weight);
  Lane::each([&](int i, int k) { squares = fmaf(x[i][k], x[i][k], squares); });
  const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(width) + p.epsilon);
  Lane::each([&](int i, int k) { x[i][k] *= rstd * weight[i][k] * gate[i][k] * sigmoid<Element>(gate[i][k]); });
  lane.store(row_at<Element>(p, p.y, norm, width), x);
  if (p.rstd && lane.lane == 0) p.rstd[norm] = rstd;
}

// The block's part of the weight's gradient.
template <class Lane>
__device__ void add_sums(const Lane& lane, const float (&d_weight)[Lane::packs][Lane::size], const Slice& slice,
                         const GradientSums& sums) {
  __shared__ alignas(16) float shared[warps_of_block][max_gated_head];
#pragma unroll
  for (int i = 0; i < Lane::packs; ++i) write(&shared[threadIdx.x / warp_size][lane.first(i)], d_weight[i]);
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x) * 4;
  if (column < slice.width) {
    float4 total{};
    for (int warp = 0; warp < warps_of_block; ++warp)
      add(total, *reinterpret_cast<const float4*>(&shared[warp][column]));
    store_partial(sums, slice, 0, column, total);
  }
  add_partials(sums, slice);
}

template <class Lane>
__global__ void __launch_bounds__(sum_threads)
    backward_kernel(NormBackward p, std::int64_t norms, int width, GradientSums sums) {
  using Element = typename Lane::Element;
  using Numbers = float[Lane::packs][Lane::size];
  const Slice slice{0, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), 1, (width + 3) / 4 * 4, 0, width};
  if (sums.required()) begin_sums(sums, slice);
  const Lane lane{static_cast<int>(threadIdx.x % warp_size), width};
  Numbers weight, d_weight{};
  lane.load(static_cast<const Element*>(p.weight), weight);
  for (std::int64_t norm = static_cast<std::int64_t>(blockIdx.x) * warps_of_block + threadIdx.x / warp_size;
       norm < norms; norm += static_cast<std::int64_t>(gridDim.x) * warps_of_block) {
    Numbers x, gate, d, d_sum{};
    lane.load(row_at<const Element>(p, p.s, norm, width), x);
    lane.load(row_at<const Element>(p, p.gate, norm, width), gate);
    lane.load(row_at<const Element>(p, p.d_y, norm, width), d);
    if (p.d_sum.data) lane.load(row_at<const Element>(p, p.d_sum, norm, width), d_sum);
    const float rstd = p.rstd[norm];
    float along = 0;
    // x becomes normal, d the gradient of normal, gate its own gradient.
    Lane::each([&](int i, int k) {
      const float open = sigmoid<Element>(gate[i][k]), silu = gate[i][k] * open, d_y = d[i][k];
      x[i][k] *= rstd;
      d[i][k] = d_y * weight[i][k] * silu;
      gate[i][k] = d_y * weight[i][k] * x[i][k] * fmaf(silu, 1 - open, open);
      d_weight[i][k] = fmaf(d_y * x[i][k], silu, d_weight[i][k]);
      along = fmaf(d[i][k], x[i][k], along);
    });
    lane.store(row_at<Element>(p, p.d_gate, norm, width), gate);
    along = warp_sum(along) / static_cast<float>(width);
    Lane::each([&](int i, int k) { d[i][k] = fmaf(fmaf(-along, x[i][k], d[i][k]), rstd, d_sum[i][k]); });
    lane.store(row_at<Element>(p, p.d_x, norm, width), d);
  }
  if (sums.required()) add_sums(lane, d_weight, slice, sums);
}

// Calls body(Lane), with packs of four numbers where they are aligned.
template <class Body>
void with_lanes(const Shape& shape, const Body& body) {
  sdk::dispatch<float, BFloat16, Half>(shape.dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    if (shape.vectorized)
      body(Lane<Element, 4>{});
    else
      body(Lane<Element, 1>{});
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace

void gated_norm_forward(const Device& device, const Shape& shape, const NormForward& norm) {
  if (shape.rows == 0) return;
  const auto blocks = static_cast<unsigned>((shape.rows + warps_of_block - 1) / warps_of_block);
  with_lanes(shape, [&](auto lane) {
    forward_kernel<decltype(lane)>
        <<<blocks, sum_threads, 0, device.stream>>>(norm, shape.rows, static_cast<int>(shape.width));
  });
}

void gated_norm_backward(const Device& device, const Shape& shape, const NormBackward& norm, const GradientSums& sums) {
  if (shape.rows == 0) return;
  const auto blocks = static_cast<unsigned>(
      std::min((shape.rows + warps_of_block - 1) / warps_of_block, max_summing_blocks(device.multiprocessors)));
  with_lanes(shape, [&](auto lane) {
    backward_kernel<decltype(lane)>
        <<<blocks, sum_threads, 0, device.stream>>>(norm, shape.rows, static_cast<int>(shape.width), sums);
  });
}

} // namespace fvlm::plugins
