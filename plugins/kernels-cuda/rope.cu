// rope.cu: rotates the heads of rows. A block computes sines and cosines of its rows once for all heads.
#include "common/cuda_packs.cuh"
#include "launches.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

constexpr int threads = 128, most_angles = 512;

// How items are shared out: first the pairs of packs that turn, then the packs behind rotary_dim, which are copied.
struct Layout {
  int rows;            // of a block
  int turning, copied; // packs of a head
  int items;           // of a row
};

template <class Element, int size>
__global__ void __launch_bounds__(threads) turn(Rope p, Layout layout) {
  __shared__ double turns[most_angles]; // of each frequency, at position 1
  __shared__ float2 angles[most_angles];
  const int half = p.rotary_dim / 2;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * layout.rows;
  const int rows = static_cast<int>(min(static_cast<std::int64_t>(layout.rows), p.rows - first_row));
  const double step = -2 * log2(p.theta) / p.rotary_dim;
  for (int i = static_cast<int>(threadIdx.x); i < half; i += threads)
    turns[i] = exp2(i * step) * 0.15915494309189533577;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * half; i += threads) {
    const double turned = p.positions[(first_row + i / half) * p.positions_stride] * turns[i % half];
    float sine, cosine;
    sincospif(2 * static_cast<float>(turned - rint(turned)), &sine, &cosine);
    angles[i] = {cosine, p.inverse ? -sine : sine};
  }
  __syncthreads();

  const int of_head = layout.turning + layout.copied;
  for (int i = static_cast<int>(threadIdx.x); i < rows * layout.items; i += threads) {
    const int row = i / layout.items, head = i % layout.items / of_head, pack = i % layout.items % of_head;
    const Element* x = static_cast<const Element*>(p.x.data) + (first_row + row) * p.x.stride + head * p.x_head;
    Element* out = static_cast<Element*>(p.out.data) + (first_row + row) * p.out.stride + head * p.out_head;
    if (pack >= layout.turning) {
      const int at = p.rotary_dim + (pack - layout.turning) * size;
      Pack<Element, size> same;
      same.load(x + at);
      same.store(out + at);
      continue;
    }
    const int at = pack * size;
    float low[size], high[size];
    Pack<Element, size> low_pack, high_pack;
    low_pack.load(x + at);
    high_pack.load(x + at + half);
    low_pack.widen(low);
    high_pack.widen(high);
#pragma unroll
    for (int j = 0; j < size; ++j) {
      const float2 angle = angles[row * half + at + j];
      const float turned = low[j] * angle.x - high[j] * angle.y;
      high[j] = high[j] * angle.x + low[j] * angle.y;
      low[j] = turned;
    }
    write(out + at, low);
    write(out + at + half, high);
  }
}

} // namespace

void rope(const Device& device, fvlm_dtype dtype, bool wide, const Rope& rope) {
  const int half = rope.rotary_dim / 2;
  if (rope.rows == 0 || rope.heads == 0) return;
  sdk::dispatch<float, BFloat16, Half>(dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    const auto enqueue = [&](auto size) {
      Layout layout{};
      const bool in_place =
          rope.x.data == rope.out.data && rope.x.stride == rope.out.stride && rope.x_head == rope.out_head;
      layout.turning = half / size;
      layout.copied = in_place ? 0 : (rope.head_dim - rope.rotary_dim) / size;
      layout.items = rope.heads * (layout.turning + layout.copied);
      if (layout.items == 0) return;
      // Four items a thread, where that leaves two blocks for each multiprocessor; and as many angles as there is room.
      std::int64_t rows = std::max<std::int64_t>(1, 4 * threads / layout.items);
      rows = std::min(rows, std::max<std::int64_t>(1, rope.rows / (2 * device.multiprocessors)));
      if (half > 0) rows = std::min<std::int64_t>(rows, most_angles / half);
      layout.rows = static_cast<int>(rows);
      const std::int64_t blocks = (rope.rows + rows - 1) / rows;
      if (blocks > 0x7fffffff)
        throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "%lld rows", static_cast<long long>(rope.rows));
      turn<Element, size()><<<static_cast<unsigned>(blocks), threads, 0, device.stream>>>(rope, layout);
    };
    if (wide)
      enqueue(std::integral_constant<int, pack_size<Element>>{});
    else
      enqueue(std::integral_constant<int, 1>{});
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
