#include "arrange.h"
#include "zeros.cuh"

#include <algorithm>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int threads = 256;
constexpr int tail_blocks = 64;

// Blocks below `segments` have a segment each, the others share what lies behind the last one.
__global__ void arrange_kernel(Arrangement a) {
  if (static_cast<int>(blockIdx.x) >= a.segments) {
    const int64_t worker = (blockIdx.x - a.segments) * threads + threadIdx.x;
    for (int i = 0; i < a.zero_count; ++i) {
      const ZerosWanted& z = a.zeros[i];
      zero_rows(z, (z.side == Rows::of_q ? a.cu_q : a.cu_kv)[a.segments], z.rows, worker, tail_blocks * threads);
    }
    return;
  }
  const int s = static_cast<int>(blockIdx.x);
  const int begin_q = a.cu_q[s], begin_kv = a.cu_kv[s];
  const int length_q = a.cu_q[s + 1] - begin_q, length_kv = a.cu_kv[s + 1] - begin_kv;
  const int blind = length_kv == 0 ? length_q : a.causal ? max(0, length_q - length_kv) : 0;
  const int unseen = length_q == 0 ? length_kv : 0;
  if (threadIdx.x == 0 && a.lengths_q) {
    a.lengths_q[s] = length_q - blind;
    a.lengths_kv[s] = length_kv - unseen;
    for (int i = 0; i < a.offset_count; ++i) {
      const OffsetsWanted& wanted = a.offsets[i];
      const int64_t begin = wanted.side == Rows::of_q ? begin_q + blind : begin_kv;
      wanted.offsets[s] = static_cast<std::int32_t>(begin * wanted.row);
      if (s + 1 == a.segments)
        wanted.offsets[s + 1] =
            static_cast<std::int32_t>((wanted.side == Rows::of_q ? a.cu_q : a.cu_kv)[s + 1] * wanted.row);
    }
  }
  for (int i = 0; i < a.zero_count; ++i) {
    const ZerosWanted& z = a.zeros[i];
    const int begin = z.side == Rows::of_q ? begin_q : begin_kv, count = z.side == Rows::of_q ? blind : unseen;
    zero_rows(z, begin, begin + count, threadIdx.x, threads);
  }
}

} // namespace

void arrange(const fvlm_call& call, const Arrangement& arrangement) {
  const unsigned blocks = static_cast<unsigned>(arrangement.segments + (arrangement.zero_count > 0 ? tail_blocks : 0));
  if (blocks == 0) return;
  arrange_kernel<<<blocks, threads, 0, stream_of(call)>>>(arrangement);
  check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
