// paged_attention.h: attention over pages, see fvlm/attention.h.
#pragma once

#include <fvlm/fvlm.hpp>

#include <cstdint>

namespace fvlm::plugins {

// A warp holds a key, 16 bytes a thread, or 32 of heads that are wider than that.
constexpr int max_paged_head_dim(fvlm_dtype dtype) {
  return 2 * 32 * 128 / dtype.bits;
}
// Numbers of a head that a thread holds.
constexpr int numbers_of_piece(const fvlm_paged_attention_query& query) {
  const int in_16_bytes = 128 / query.dtype.bits;
  return query.head_dim > 32 * in_16_bytes ? 2 * in_16_bytes : in_16_bytes;
}

// Pointers, and strides in elements.
struct PagedProblem {
  const void *q, *k, *v;
  void* out;
  const std::int32_t *table, *sequences, *lengths;
  std::int64_t q_row, q_head, out_row, out_head;
  std::int64_t k_page, k_row, k_head, v_page, v_row, v_head;
  std::int64_t max_pages;
  int head_dim, page_shift; // a page has 2^page_shift rows
  int window;               // 0: none
  int group, tiles;         // query heads of a key head; how many blocks compute them
  float scale_log2;         // of the scores, times log2 e
};

// What a call appends, where it does: see fvlm/attention.h.
struct PagedAppend {
  const void *k, *v; // [rows, heads_kv, head_dim]
  std::int64_t k_row, k_head, v_row, v_head;
  const void *q_norm, *k_norm; // NULL: ones
  const double* frequencies;   // NULL: those of theta
  double log2_theta;
  int head_dim, rotary_dim; // rotary_dim: 0: no rotary embedding
  // 16 bytes of q, k, v and the norms' weights are aligned, and rotate with 16 adjacent bytes.
  bool has_whole_packs;
  bool inverse, has_norm;
  float epsilon;
};

// The launch for a query's capacities: clusters of `blocks`, which share the keys of a row.
struct PagedLaunch {
  std::int64_t rows;
  int heads_kv, blocks, warps;
  bool starts_early;    // programmatic dependent launch
  bool is_dense;        // blocks of few registers, of which many fit on a multiprocessor
  bool has_heads_apart; // a block for each query head, also where several have one key head
};
// window: 0: none
PagedLaunch paged_launch(const fvlm_paged_attention_query& query, int window, int multiprocessors, bool has_clusters);

// head_dim is at most max_paged_head_dim() and a multiple of 8; keys and values are aligned to 16 bytes. append: NULL
// where the pages have the rows already.
void paged_attention(const fvlm_call& call, fvlm_dtype dtype, const PagedLaunch& launch, const PagedProblem& problem,
                     const PagedAppend* append);

// For many rows, of few sequences, of which several share the keys that are read: paged_tiles.cu. `problem`: without
// what paged_attention() adds.
constexpr std::int64_t min_rows_of_tiles = 64, min_rows_of_sequence = 8;
bool paged_tiles_take(const fvlm_paged_attention_query& query, const PagedProblem& problem);
void paged_tiles(const fvlm_call& call, const fvlm_paged_attention_query& query, const PagedProblem& problem,
                 bool starts_early);

} // namespace fvlm::plugins
