// paged_attention.h: attention over pages, see fvlm/attention.h.
#pragma once

#include <fvlm/fvlm.hpp>

#include <cstdint>

namespace fvlm::plugins {

// Pointers, and strides in elements.
struct PagedProblem {
  const void *q, *k, *v;
  void* out;
  const std::int32_t *table, *sequences, *lengths;
  std::int64_t q_row, q_head, out_row, out_head;
  std::int64_t k_page, k_row, k_head, v_page, v_row, v_head;
  std::int64_t max_pages;
  int head_dim, page_shift; // a page has 2^page_shift rows
  int group, tiles;         // query heads of a key head; how many blocks compute them
  float scale_log2;         // of the scores, times log2 e
};

// The launch for a query's capacities: clusters of `blocks`, which share the keys of a row.
struct PagedLaunch {
  std::int64_t rows;
  int heads_kv, blocks, warps;
};
PagedLaunch paged_launch(const fvlm_paged_attention_query& query, int multiprocessors, bool has_clusters);

// head_dim is at most 128 and a multiple of 8; keys and values are aligned to 16 bytes.
void paged_attention(const fvlm_call& call, fvlm_dtype dtype, const PagedLaunch& launch, const PagedProblem& problem);

} // namespace fvlm::plugins
