/* fvlm/attention.h: softmax(q k^T * scale) v over packed segments (variable-length attention). Kind "fvlm.attention/1".
 *
 * Packed layout. Segment s owns the query rows from cu_seqlens_q[s] to cu_seqlens_q[s+1] - 1 and the key rows from
 * cu_seqlens_kv[s] to cu_seqlens_kv[s+1] - 1; segments do not attend to each other. Each cu_seqlens starts at 0, never
 * decreases and ends at or below the capacity of its buffer (tokens_q, tokens_kv). Its content may differ from call to
 * call. A segment may have no queries or no keys: without keys the output of a query row is 0.
 * The causal mask is aligned bottom-right: the last query of a segment attends to its last key, and query i of Lq
 * attends to keys j <= i + Lkv - Lq. A fully masked row gives 0. With grouped queries (GQA) query head h reads key head
 * h / (heads_q / heads_kv).
 *
 * The buffers have fixed capacities: rows at and after cu_seqlens_q[segments] are padding. Their outputs and gradients
 * are set to 0, whatever their inputs hold (NaN too). The same holds for key rows in backward. A capacity may be 0
 * (tokens_q, tokens_kv or both): then those tensors are empty.
 *
 * Shapes: q, out, d_out, d_q [tokens_q, heads_q, head_dim]; k, v, d_k, d_v [tokens_kv, heads_kv, head_dim]; cu_seqlens
 * int32 [segments + 1]; positions int32 [tokens], none negative, NULL where no rotary embedding is requested. All of
 * them are in device memory. Strides: the last dimension of q, k, v, out, their gradients, guest_q and guest_d_out is
 * contiguous, while token and head strides are free and may differ from tensor to tensor (views of one q-k-v buffer).
 * cu_seqlens, positions and saved tensors are contiguous.
 *
 * Extra queries (the fields guest_*) belong to another call on the same keys, at most one per segment. That call
 * computes only dq (the field queries_alone); what its queries contribute to d_k and d_v is added by this call's
 * backward, which writes those anyway.
 *
 * Partial calls (the field partial) are for keys that are divided among several calls, as where a sequence is split
 * across devices (ring attention). Such a call attends to some of the keys that its queries attend to. saved[0] is then
 * the logarithm to base 2 of the sum of the exponentials of a row's scaled scores, [tokens_q, heads_q], contiguous,
 * float32, or float64 for tensors of float64; it is the only saved tensor. The caller has filled it with +infinity,
 * which rows without a visible key and padding rows keep. By it the caller merges the outputs of the calls. Backward
 * gets the merged `out` and saved[0], those of all keys together, and computes from these the probabilities of its keys
 * and what they contribute to d_q.
 *
 * Attention over pages (the functions *_paged, which a plugin may leave out) is for generation. The keys and values of
 * all sequences are in one pool of pages of page_rows rows, and a page may belong to several sequences. Key j of
 * sequence s is row j % page_rows of page page_table[s][j / page_rows]. A query row attends to the first lengths[row]
 * keys of its sequence sequences[row], its own included, which was written before. So rows that each continue a
 * sequence and the rows of a prompt stand side by side, in any order. A row of length 0 is padding: its output is 0,
 * and nothing else of it is read. Entries of the page table and rows of a page past a sequence's keys may hold anything
 * (NaN too). Rotary embedding has been applied.
 *
 * With `appends`, a step of decoding is one call: each row is the last key of its sequence, and the call itself writes
 * it. Before that it normalizes the heads of q and k (qk_norm: rmsnorm of each head, times q_norm or k_norm) and
 * rotates them at position lengths[row] - 1 (rotary_dim and the rest as fvlm/kernels.h says of rope). The key and v go
 * to row lengths[row] - 1 of the sequence, whatever that held. No row attends to what another row of the call writes,
 * so that rows may be computed in any order; rows of length 0 write nothing. q, k and v stay as they are.
 * On a GPU, a call may read pages before the kernel in front of it has ended (programmatic dependent launch): between
 * a call that appends to a sequence and the next one over the same pages the engine launches other kernels, of which
 * one at least starts when all before it have ended. */
#ifndef FVLM_ATTENTION_H
#define FVLM_ATTENTION_H

#include <fvlm/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FVLM_ATTENTION_KIND "fvlm.attention/1"

/* The problem descriptor, in cuDNN's words: the shape class of a call, known before it and the same at every step. */
typedef struct fvlm_attention_query {
  uint32_t struct_size;
  int32_t causal; /* 0 or 1 */
  fvlm_device device;
  fvlm_dtype dtype; /* of q, k, v, out and their gradients */
  int32_t heads_q, heads_kv, head_dim;
  int32_t max_seqlen_q, max_seqlen_kv; /* upper bounds of the segments' lengths */
  int32_t rotary_dim;                  /* leading dimensions of q and k to rotate here; 0: they are already rotated */
  int64_t tokens_q, tokens_kv;         /* capacity_q, capacity_kv: allocated rows; trailing ones may be padding */
  int64_t segments;                    /* capacity; trailing segments may be empty */
  float scale;
  float rope_theta;
  int32_t needs_backward;
  int32_t even;          /* uniform lengths. 1: the first segments all have the maximum length and fill the buffers; the
                            others are empty */
  int32_t guests;        /* extra queries. 1: backward may get them; never together with causal or rotary_dim */
  int32_t queries_alone; /* dq_only. 1: backward writes d_q only, d_k and d_v are NULL; not together with guests */
  int32_t partial;       /* 1: see above; never together with rotary_dim, guests or queries_alone, and always with
                            needs_backward. Only for plugins with FVLM_ATTENTION_PARTIAL */
  int32_t window; /* 0: none. Else a query attends to the last `window` keys up to its own alone: with causal, and
                     with segments that are the same of queries and of keys; never together with guests or
                     queries_alone. Only for plugins with FVLM_ATTENTION_WINDOWS, together with partial only for
                     those with FVLM_ATTENTION_PARTIAL_WINDOWS */
} fvlm_attention_query;

typedef struct fvlm_attention_forward {
  uint32_t struct_size;
  const fvlm_tensor *q, *k, *v;
  const fvlm_tensor *cu_seqlens_q, *cu_seqlens_kv;
  const fvlm_tensor *positions_q, *positions_kv;
  fvlm_tensor* out;
  fvlm_tensor* saved[FVLM_MAX_SAVED]; /* requested by requirements(); NULL when needs_backward is 0 */
} fvlm_attention_forward;

typedef struct fvlm_attention_backward {
  uint32_t struct_size;
  const fvlm_tensor *q, *k, *v, *out, *d_out;
  const fvlm_tensor *cu_seqlens_q, *cu_seqlens_kv;
  const fvlm_tensor *positions_q, *positions_kv;
  const fvlm_tensor* saved[FVLM_MAX_SAVED];
  fvlm_tensor *d_q, *d_k, *d_v;             /* overwritten */
  const fvlm_tensor *guest_q, *guest_d_out; /* extra queries [count, heads_q, head_dim]; NULL: none */
  const fvlm_tensor* guest_cu_seqlens;      /* int32 [segments + 1]; NULL if they are */
} fvlm_attention_backward;

/* The problem descriptor of attention over pages. */
typedef struct fvlm_paged_attention_query {
  uint32_t struct_size;
  fvlm_device device;
  fvlm_dtype dtype; /* of q, k_pages, v_pages and out */
  int32_t heads_q, heads_kv, head_dim, page_rows;
  float scale;
  int64_t rows, sequences, pages; /* capacities: query rows of a call, sequences of the table, pages of the pool */
  int64_t max_pages;              /* of one sequence */
  int32_t appends;                /* 0 or 1: see above. Only for plugins with FVLM_ATTENTION_APPENDS; so the rest */
  int32_t rotary_dim;             /* 0: no rotary embedding */
  int32_t has_frequencies;        /* 1: the angles are those of a table of frequencies in place of rope_theta's */
  int32_t inverse;                /* 1: rotates the other way */
  int32_t qk_norm;                /* 0 or 1 */
  float rope_theta, epsilon;
  int32_t window; /* 0: none. Else a row attends to the last `window` of its keys alone. Only for plugins with
                     FVLM_ATTENTION_WINDOWS */
} fvlm_paged_attention_query;

/* Bits of fvlm_attention_v1.features. */
enum {
  FVLM_ATTENTION_APPENDS = 1u << 0,        /* supports_paged reads the query's `appends` and what follows it */
  FVLM_ATTENTION_PARTIAL = 1u << 1,        /* supports reads the query's `partial` */
  FVLM_ATTENTION_WINDOWS = 1u << 2,        /* supports and supports_paged read the queries' `window` */
  FVLM_ATTENTION_PARTIAL_WINDOWS = 1u << 3 /* `partial` and `window` may be in one query */
};

/* The last dimension of q, k_pages, v_pages and out is contiguous, their other strides are free. The int32 tensors are
 * contiguous. */
typedef struct fvlm_paged_attention {
  uint32_t struct_size;
  const fvlm_tensor* q;                   /* [rows, heads_q, head_dim] */
  const fvlm_tensor *k_pages, *v_pages;   /* [pages, page_rows, heads_kv, head_dim] */
  const fvlm_tensor* page_table;          /* int32 [sequences, max_pages] */
  const fvlm_tensor *sequences, *lengths; /* int32 [rows] */
  fvlm_tensor* out;                       /* [rows, heads_q, head_dim] */
  /* NULL without `appends`. [rows, heads_kv, head_dim], strides as q's. k_pages and v_pages are then written too. */
  const fvlm_tensor *k, *v;
  const fvlm_tensor *q_norm, *k_norm; /* [head_dim]; NULL: ones, or no qk_norm */
  const fvlm_tensor* frequencies;     /* float64 [rotary_dim / 2]; NULL without has_frequencies */
} fvlm_paged_attention;

typedef struct fvlm_attention_v1 {
  fvlm_table base;

  /* Whether calls of this class are supported, and how well. A plugin that cannot rotate refuses a rotary_dim other
   * than 0; the engine then applies RoPE beforehand. Reads nothing but the query. [any thread] */
  void (*supports)(const fvlm_attention_query* query, fvlm_support* support);

  /* Workspace and saved tensors for calls of this class. Reads host memory only. [any thread] */
  fvlm_status (*requirements)(fvlm_instance* instance, const fvlm_attention_query* query,
                              fvlm_requirements* requirements, fvlm_error* error);

  /* Builds plans and picks algorithms for this class before its first call. May be NULL. [setup] */
  fvlm_status (*prepare)(fvlm_instance* instance, const fvlm_call* call, const fvlm_attention_query* query);

  /* Writes out, and saved[] where needs_backward is set. [step thread] */
  fvlm_status (*forward)(fvlm_instance* instance, const fvlm_call* call, const fvlm_attention_query* query,
                         const fvlm_attention_forward* arguments);

  /* Overwrites d_q, and d_k and d_v unless queries_alone is set. Called only where needs_backward is set.
   * [step thread] */
  fvlm_status (*backward)(fvlm_instance* instance, const fvlm_call* call, const fvlm_attention_query* query,
                          const fvlm_attention_backward* arguments);

  /* The same functions for attention over pages, appended to version 1.0. All but prepare_paged are set, or none is.
   * A call reads no lengths on the host: it may be captured, and replayed with others. There is no backward. */
  void (*supports_paged)(const fvlm_paged_attention_query* query, fvlm_support* support); /* [any thread] */
  fvlm_status (*requirements_paged)(fvlm_instance* instance, const fvlm_paged_attention_query* query,
                                    fvlm_requirements* requirements, fvlm_error* error); /* [any thread] */
  fvlm_status (*prepare_paged)(fvlm_instance* instance, const fvlm_call* call,
                               const fvlm_paged_attention_query* query); /* may be NULL [setup] */
  fvlm_status (*forward_paged)(fvlm_instance* instance, const fvlm_call* call, const fvlm_paged_attention_query* query,
                               const fvlm_paged_attention* arguments); /* writes out [step thread] */

  /* FVLM_ATTENTION_*, appended to version 1.0. */
  uint32_t features;
} fvlm_attention_v1;

#ifdef __cplusplus
}
#endif
#endif
