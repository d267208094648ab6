// Packed (variable-length) attention by a selected plugin: see fvlm/attention.h for the layout.
#pragma once
#include "ops/backend.h"
#include "ops/deferred_queries.h"

namespace fvlm::ops {

// The bounds of the segments: int32 tensors on the device. Positions are needed for rotary embedding only.
struct Packing {
  at::Tensor cu_seqlens_q, cu_seqlens_kv;
  at::Tensor positions_q, positions_kv;
};

class Attention : public Prepared<fvlm_attention_v1> {
 public:
  Attention(Backend<fvlm_attention_v1> backend, const Query& query) : Prepared(std::move(backend), query) {}

  struct Output {
    at::Tensor out;
    std::vector<at::Tensor> saved; // for backward; empty without needs_backward
  };
  Output forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Packing& packing,
                 const at::Tensor& into = {}) const;

  struct Gradients {
    at::Tensor q, k, v; // k and v are undefined with queries_alone
  };
  Gradients backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Packing& packing,
                     const Output& output, const at::Tensor& d_out, const Gradients& into = {},
                     const DeferredQueries& deferred = {}) const;
};

// The keys and values of sequences in pages, and for each query row its sequence and how many keys it attends to: see
// fvlm/attention.h.
struct PagedKeys {
  at::Tensor k_pages, v_pages;   // [pages, page_rows, kv_heads, head_dim]
  at::Tensor page_table;         // int32 [sequences, max_pages]
  at::Tensor sequences, lengths; // int32 [rows]
  // Whether some row attends to keys behind its own, or outside of a window, from `first` on, int32 [rows].
  bool has_ranges = false;
  at::Tensor first = {};
};

// The rows of keys and values that a call appends to the pages, and what is done to them and to q before: see
// fvlm/attention.h.
struct AppendedKeys {
  at::Tensor k, v;           // [rows, kv_heads, head_dim]
  at::Tensor q_norm, k_norm; // [head_dim]; undefined: ones, or no norm
  at::Tensor frequencies;    // float64 [rotary_dim / 2]; may be undefined
};

class PagedAttention : public Prepared<PagedAttentionTable> {
 public:
  PagedAttention(Backend<PagedAttentionTable> backend, const Query& query) : Prepared(std::move(backend), query) {}

  // q [rows, heads, head_dim]. With a query that appends, `appended` is given.
  at::Tensor forward(const at::Tensor& q, const PagedKeys& keys, const AppendedKeys& appended = {}) const;
};

} // namespace fvlm::ops
