// segment_layout.cu: one small launch before cuDNN that derives segment lengths and ragged offsets from cu_seqlens and
// zeros the rows that cuDNN does not write.
#include "segment_layout.h"
#include "zero_rows.cuh"

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int threads = 256;
constexpr int tail_blocks = 64;

// The first `segments` blocks take a segment each; the others zero the padding after the last segment.
__global__ void segment_layout_kernel(SegmentLayout a) {
  if (static_cast<int>(blockIdx.x) >= a.segments) {
    const int64_t worker = (blockIdx.x - a.segments) * threads + threadIdx.x;
    for (int i = 0; i < a.zero_count; ++i) {
      const ZeroFill& z = a.zeros[i];
      zero_rows(z, (z.side == Side::query ? a.cu_q : a.cu_kv)[a.segments], z.rows, worker, tail_blocks * threads);
    }
    return;
  }
  const int s = static_cast<int>(blockIdx.x);
  const int begin_q = a.cu_q[s], begin_kv = a.cu_kv[s];
  const int length_q = a.cu_q[s + 1] - begin_q, length_kv = a.cu_kv[s + 1] - begin_kv;
  const int masked_queries = length_kv == 0 ? length_q : a.causal ? max(0, length_q - length_kv) : 0;
  const int unread_keys = length_q == 0 ? length_kv : 0;
  if (threadIdx.x == 0 && a.lengths_q) {
    a.lengths_q[s] = length_q - masked_queries;
    a.lengths_kv[s] = length_kv - unread_keys;
    for (int i = 0; i < a.offset_count; ++i) {
      const RaggedOffsets& ragged = a.offsets[i];
      const int64_t begin = ragged.side == Side::query ? begin_q + masked_queries : begin_kv;
      ragged.offsets[s] = static_cast<std::int32_t>(begin * ragged.row_stride);
      if (s + 1 == a.segments)
        ragged.offsets[s + 1] =
            static_cast<std::int32_t>((ragged.side == Side::query ? a.cu_q : a.cu_kv)[s + 1] * ragged.row_stride);
    }
  }
  for (int i = 0; i < a.zero_count; ++i) {
    const ZeroFill& z = a.zeros[i];
    const int begin = z.side == Side::query ? begin_q : begin_kv,
              count = z.side == Side::query ? masked_queries : unread_keys;
    zero_rows(z, begin, begin + count, threadIdx.x, threads);
  }
}

} // namespace

void write_segment_layout(const fvlm_call& call, const SegmentLayout& arrangement) {
  const unsigned blocks = static_cast<unsigned>(arrangement.segments + (arrangement.zero_count > 0 ? tail_blocks : 0));
  if (blocks == 0) return;
  segment_layout_kernel<<<blocks, threads, 0, stream_of(call)>>>(arrangement);
  check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
