// partial_statistics.cu: a thread for each row that cuDNN may have of a segment and head.
#include "partial_statistics.h"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int threads = 256;
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

template <bool to_rows>
__global__ void statistics_kernel(PartialStatistics a) {
  const int row = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x),
            head = static_cast<int>(blockIdx.y), s = static_cast<int>(blockIdx.z);
  if (row >= a.max_rows) return;
  const int begin = a.cu_q[s], queries = a.cu_q[s + 1] - begin, keys = a.cu_kv[s + 1] - a.cu_kv[s];
  const int masked = keys == 0 ? queries : a.causal ? max(0, queries - keys) : 0;
  float& of_segment = a.by_segment[(int64_t{s} * a.heads + head) * a.max_rows + row];
  const bool has_key = row < queries - masked;
  float* const of_row = a.by_row + (int64_t{begin} + masked + row) * a.heads + head;
  if constexpr (!to_rows)
    of_segment = has_key ? *of_row * ln_2 : INFINITY;
  else if (has_key)
    *of_row = of_segment * log2_e;
}

template <bool to_rows>
void launch(const fvlm_call& call, const PartialStatistics& a) {
  if (a.segments == 0 || a.heads == 0) return;
  const dim3 blocks(static_cast<unsigned>((a.max_rows + threads - 1) / threads), static_cast<unsigned>(a.heads),
                    static_cast<unsigned>(a.segments));
  statistics_kernel<to_rows><<<blocks, threads, 0, stream_of(call)>>>(a);
  check_cuda(cudaGetLastError(), "launch");
}

} // namespace

void write_by_row(const fvlm_call& call, const PartialStatistics& statistics) {
  launch<true>(call, statistics);
}
void write_by_segment(const fvlm_call& call, const PartialStatistics& statistics) {
  launch<false>(call, statistics);
}

} // namespace fvlm::plugins
