// partial_statistics.h: log-sum-exps of partial calls, natural and by segment as cuDNN has them, and to base 2 and by
// row as fvlm/attention.h has them.
#pragma once
#include <fvlm/cuda.hpp>

namespace fvlm::plugins {

struct PartialStatistics {
  const std::int32_t *cu_q = nullptr, *cu_kv = nullptr;
  int segments = 0, heads = 0, max_rows = 0; // max_rows: of a segment, in cuDNN's
  bool causal = false;
  float* by_segment = nullptr; // [segments, heads, max_rows]: of the queries that have a key
  float* by_row = nullptr;     // [tokens, heads]
};

// Leaves rows without a key as they are.
void write_by_row(const fvlm_call& call, const PartialStatistics& statistics);
// Behind a segment's queries is infinity, by which nothing has a probability.
void write_by_segment(const fvlm_call& call, const PartialStatistics& statistics);

} // namespace fvlm::plugins
