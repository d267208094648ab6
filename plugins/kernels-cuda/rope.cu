// rope.cu: rotary position embeddings, out of place or in place, or their inverse. A block computes the sines and
// cosines of its rows once for all heads, while the first loads are in flight.
//
// Measured on an H100, bf16, in place (bench/LOG.md, 2026-11-22): 16,384 rows of 32 heads of 64 in 47.9 us (2,804
// GB/s).
#include "common/cuda_packs.cuh"
#include "common/cuda_rotary.cuh"
#include "launches.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

constexpr int threads = 128, items_at_once = 4, max_angles = 512;

// How a block divides its work into items: first the pairs of packs that are rotated, then the packs past rotary_dim,
// which are copied.
struct Layout {
  int rows;                        // per block
  int rotated_packs, copied_packs; // packs per head
  int items;                       // per row
};

// An item's addresses and packs: two packs that are rotated, or one that is copied.
template <class Element, int size>
struct Item {
  int row, pack;
  const Element* x;
  Element* out;
  Pack<Element, size> low, high;
};

template <class Element, int size>
__global__ void __launch_bounds__(threads) rope_kernel(Rope p, Layout layout) {
  __shared__ float2 angles[max_angles]; // cosine and sine
  const int half = p.rotary_dim / 2, thread = static_cast<int>(threadIdx.x);
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * layout.rows;
  const int rows = static_cast<int>(min(static_cast<std::int64_t>(layout.rows), p.rows - first_row));
  const int of_head = layout.rotated_packs + layout.copied_packs, items = rows * layout.items;

  // The first items are in flight while the angles are computed.
  Item<Element, size> item[items_at_once];
  const auto load = [&](int begin) {
#pragma unroll
    for (int i = 0; i < items_at_once; ++i) {
      const int index = begin + i * threads;
      if (index >= items) break;
      Item<Element, size>& it = item[i];
      const int of_row = index % layout.items, head = of_row / of_head;
      it.row = index / layout.items;
      it.pack = of_row % of_head;
      const bool rotates = it.pack < layout.rotated_packs;
      const int at = rotates ? it.pack * size : p.rotary_dim + (it.pack - layout.rotated_packs) * size;
      it.x = static_cast<const Element*>(p.x.data) + (first_row + it.row) * p.x.stride + head * p.x_head + at;
      it.out = static_cast<Element*>(p.out.data) + (first_row + it.row) * p.out.stride + head * p.out_head + at;
      it.low.load(it.x);
      if (rotates) it.high.load(it.x + half);
    }
  };
  load(thread);

  int current_frequency = -1; // the frequency that `step` belongs to
  std::uint64_t step = 0;
  for (int i = thread; i < rows * half; i += threads) {
    if (const int frequency = i % half; frequency != current_frequency) {
      current_frequency = frequency;
      step = p.frequencies ? rotary_step(p.frequencies[frequency])
                           : rotary_frequency(current_frequency, p.rotary_dim, p.log2_theta);
    }
    float sine, cosine;
    sincospif(rotary_angle(step, p.positions[(first_row + i / half) * p.positions_stride], 1), &sine, &cosine);
    angles[i] = {cosine, p.inverse ? -sine : sine};
  }
  __syncthreads();

  for (int begin = thread; begin < items; begin += items_at_once * threads) {
    if (begin != thread) load(begin);
#pragma unroll
    for (int i = 0; i < items_at_once; ++i) {
      if (begin + i * threads >= items) break;
      const Item<Element, size>& it = item[i];
      if (it.pack >= layout.rotated_packs) {
        it.low.store(it.out);
        continue;
      }
      float low[size], high[size];
      it.low.widen(low);
      it.high.widen(high);
      const float2* angle = angles + it.row * half + it.pack * size;
#pragma unroll
      for (int j = 0; j < size; ++j) {
        const float rotated = low[j] * angle[j].x - high[j] * angle[j].y;
        high[j] = high[j] * angle[j].x + low[j] * angle[j].y;
        low[j] = rotated;
      }
      write(it.out, low);
      write(it.out + half, high);
    }
  }
}

} // namespace

void rope(const Device& device, fvlm_dtype dtype, bool vectorized, const Rope& rope) {
  const int half = rope.rotary_dim / 2;
  if (rope.rows == 0 || rope.heads == 0) return;
  sdk::dispatch<float, BFloat16, Half>(dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    const auto enqueue = [&](auto size) {
      Layout layout{};
      const bool in_place =
          rope.x.data == rope.out.data && rope.x.stride == rope.out.stride && rope.x_head == rope.out_head;
      layout.rotated_packs = half / size;
      layout.copied_packs = in_place ? 0 : (rope.head_dim - rope.rotary_dim) / size;
      layout.items = rope.heads * (layout.rotated_packs + layout.copied_packs);
      if (layout.items == 0) return;
      // As many rows per block as are in flight at once, if that leaves two blocks per multiprocessor, and no more
      // angles than fit in shared memory.
      std::int64_t rows = std::max<std::int64_t>(1, items_at_once * threads / layout.items);
      rows = std::min(rows, std::max<std::int64_t>(1, rope.rows / (2 * device.multiprocessors)));
      if (half > 0) rows = std::min<std::int64_t>(rows, max_angles / half);
      layout.rows = static_cast<int>(rows);
      const std::int64_t blocks = (rope.rows + rows - 1) / rows;
      if (blocks > 0x7fffffff)
        throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%lld rows exceed the grid", static_cast<long long>(rope.rows));
      rope_kernel<Element, size()><<<static_cast<unsigned>(blocks), threads, 0, device.stream>>>(rope, layout);
    };
    if (vectorized)
      enqueue(std::integral_constant<int, pack_size<Element>>{});
    else
      enqueue(std::integral_constant<int, 1>{});
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
