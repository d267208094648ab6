// attention.cpp: the plugin's entry points: which calls it supports, and which of its kernels run them.
#include "common/cuda_device.h"
#include "common/cuda_rotary.cuh"
#include "paged_attention.h"
#include "problem.h"
#include "segment_lengths.h"

#include <algorithm>
#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

class AttentionFlash : public Attention {
 public:
  static constexpr std::uint32_t features = FVLM_ATTENTION_APPENDS | FVLM_ATTENTION_PARTIAL | FVLM_ATTENTION_WINDOWS;
  explicit AttentionFlash(const fvlm_instance_config& config)
      : multiprocessors_(multiprocessor_count(config.device)), shared_memory_(shared_memory_per_block(config.device)) {}

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    if (!is_one_of<BFloat16, Half>(query.dtype))
      return refuse("dtype %s is not supported: expected bfloat16 or float16", sdk::name_of(query.dtype));
    if (query.head_dim != head_dim) return refuse("head_dim %d is not supported: expected 64", query.head_dim);
    if (query.rotary_dim != 0 && query.rotary_dim != head_dim)
      return refuse("rotary_dim %d is not supported: expected 0 or 64", query.rotary_dim);
    if (query.rotary_dim != 0 && !(query.rope_theta > 0 && std::isfinite(query.rope_theta)))
      return refuse("rope_theta %g is not supported: expected a positive, finite value",
                    static_cast<double>(query.rope_theta));
    if (query.heads_kv < 1 || query.heads_q < 1 || query.heads_q % query.heads_kv != 0)
      return refuse("%d query heads are not a multiple of %d key heads", query.heads_q, query.heads_kv);
    if (query.tokens_q < 0 || query.tokens_kv < 0 || query.segments < 0 || query.max_seqlen_q < 0 ||
        query.max_seqlen_kv < 0)
      return refuse("a size is negative");
    if (query.queries_alone) return refuse("dq_only (queries_alone) is not supported");
    if (window_of(query) != 0) return refuse("windows are not supported");
    if (query.guests && !fits_persistent_kernels(query))
      return refuse(
          "extra queries (guests) need Hopper, segments of %d to %d rows and as many key heads as query heads",
          max_persistent_rows / 2 + 1, max_rows_with_deferred);
    if (!(query.scale > 0))
      return refuse("scale %g is not supported: expected a positive value", static_cast<double>(query.scale));
    // The kernels index flat rows in 32 bits and divide them by the group size (HeadGroup).
    const int64_t head_group = query.heads_q / query.heads_kv, limit = INT32_MAX / query.heads_q / head_group;
    if (query.tokens_q > limit || query.tokens_kv > limit || query.segments > limit)
      return refuse("%lld tokens in %lld segments exceed 32-bit row indices", static_cast<long long>(query.tokens_q),
                    static_cast<long long>(query.segments));
    if (fits_persistent_kernels(query))
      return accept(250, "one launch, persistent kernels with a segment's keys in shared memory");
    if (fits_streamed_forward(query) && !query.needs_backward)
      return accept(250, "one launch, long segments streamed through shared memory");
    const bool fast = has_short_segments(query);
    return accept(fast ? 250 : 150, fast ? "one launch, for short segments" : "one launch");
  }

  void requirements(const Query& query, Requirements& requirements) const {
    require(supports(query));
    if (!query.needs_backward) return;
    requirements.save(float32, {query.tokens_q, query.heads_q});
    if (keeps_compensation(query)) requirements.save(int8, {query.tokens_q, query.heads_q, head_dim});
    if (!uses_tiled_backward(query)) return;
    Workspace workspace;
    (void)tiled_workspace(workspace, query);
    requirements.backward_workspace = workspace.used();
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& a) {
    require(supports(query));
    const Problem problem = problem_of(query, a);
    if (fits_persistent_kernels(query) && persistent_forward_supported(problem))
      return persistent_forward(call, multiprocessors_, query.dtype, problem);
    if (fits_streamed_forward(query) && streamed_forward_supported(problem, query.max_seqlen_q))
      return streamed_forward(call, multiprocessors_, query.dtype, problem, query.max_seqlen_q);
    if (single_tile_supported(problem, query.max_seqlen_q, query.max_seqlen_kv))
      return single_tile_forward(call, query.dtype, problem);
    if (is_hopper(query.device) &&
        resident_forward_supported(problem, multiprocessors_, query.max_seqlen_q, query.max_seqlen_kv))
      return resident_forward(call, multiprocessors_, query.dtype, problem);
    attention_forward(call, query.dtype, problem);
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& a) {
    require(supports(query));
    const Problem problem = problem_of(query, a);
    if (fits_persistent_kernels(query) && persistent_backward_supported(problem))
      return persistent_backward(call, multiprocessors_, query.dtype, problem);
    if (problem.cu_deferred)
      throw Failure(FVLM_ERROR_UNSUPPORTED,
                    "extra queries (guests) need tensors that TMA can access: rows and heads aligned to 16 bytes");
    if (single_tile_supported(problem, query.max_seqlen_q, query.max_seqlen_kv))
      return single_tile_backward(call, query.dtype, problem);
    if (is_hopper(query.device) &&
        resident_backward_supported(problem, multiprocessors_, query.max_seqlen_q, query.max_seqlen_kv))
      return resident_backward(call, multiprocessors_, query.dtype, problem, query.max_seqlen_q);
    if (uses_tiled_backward(query)) {
      Workspace workspace(call);
      return tiled_backward(call, multiprocessors_, query.dtype, problem, tiled_workspace(workspace, query),
                            query.max_seqlen_q, query.max_seqlen_kv);
    }
    attention_backward(call, {multiprocessors_, shared_memory_}, query.dtype, problem);
  }

  static Support supports_paged(const PagedQuery& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    if (!is_one_of<BFloat16, Half, float>(query.dtype))
      return refuse("dtype %s is not supported: expected bfloat16, float16 or float32", sdk::name_of(query.dtype));
    if (window_of(query) < 0) return refuse("a window of %d is not supported", window_of(query));
    const int widest = max_paged_head_dim(query.dtype);
    if (query.head_dim < 8 || query.head_dim > widest || query.head_dim % 8 != 0 ||
        query.head_dim % numbers_of_piece(query) != 0)
      return refuse("head_dim %d is not supported: expected a multiple of 8, of 16 beyond 256, up to %d",
                    query.head_dim, widest);
    if (query.heads_kv < 1 || query.heads_q < 1 || query.heads_q % query.heads_kv != 0)
      return refuse("%d query heads are not a multiple of %d key heads", query.heads_q, query.heads_kv);
    if (query.page_rows < 1 || (query.page_rows & (query.page_rows - 1)) != 0)
      return refuse("page_rows %d is not supported: expected a power of two", query.page_rows);
    if (query.rows < 0 || query.rows > 65535 || query.heads_q > 65535)
      return refuse("%lld rows of %d heads are not supported: expected at most 65535",
                    static_cast<long long>(query.rows), query.heads_q);
    if (query.max_pages < 0 || query.max_pages > INT32_MAX / query.page_rows / 2)
      return refuse("sequences of %lld pages are not supported", static_cast<long long>(query.max_pages));
    if (appends(query)) {
      if (query.rotary_dim < 0 || query.rotary_dim % 2 != 0 || query.rotary_dim > query.head_dim)
        return refuse("rotary_dim %d is not supported with head_dim %d", query.rotary_dim, query.head_dim);
      if (query.rotary_dim != 0 && !query.has_frequencies && !(query.rope_theta > 0 && std::isfinite(query.rope_theta)))
        return refuse("rope_theta %g is not supported: expected a positive, finite value",
                      static_cast<double>(query.rope_theta));
    }
    return accept(250, "one launch, split over the keys");
  }

  void forward_paged(const fvlm_call& call, const PagedQuery& query, const Paged& a) {
    require(supports_paged(query));
    if (query.rows == 0) return;
    PagedProblem p{};
    const Rows q = paged_rows(query, query.heads_q, a.q, "q"), out = paged_rows(query, query.heads_q, a.out, "out");
    p.q = q.data, p.q_row = q.row, p.q_head = q.head;
    p.out = out.data, p.out_row = out.row, p.out_head = out.head;
    const Rows k = pages_of(query, a.k_pages, "k_pages"), v = pages_of(query, a.v_pages, "v_pages");
    p.k = k.data, p.k_page = k.page, p.k_row = k.row, p.k_head = k.head;
    p.v = v.data, p.v_page = v.page, p.v_row = v.row, p.v_head = v.head;
    const View<const std::int32_t, 2> table(a.page_table, "page_table");
    if (table.size(0) != query.sequences || table.size(1) != query.max_pages)
      throw Failure(FVLM_ERROR_ARGUMENT, "page_table: expected [%lld, %lld]", static_cast<long long>(query.sequences),
                    static_cast<long long>(query.max_pages));
    p.table = table.data();
    p.sequences = vector_of<const std::int32_t>(a.sequences, query.rows, "sequences");
    p.lengths = vector_of<const std::int32_t>(a.lengths, query.rows, "lengths");
    p.max_pages = query.max_pages;
    p.head_dim = query.head_dim;
    p.window = window_of(query);
    while ((1 << p.page_shift) < query.page_rows) ++p.page_shift;
    p.group = query.heads_q / query.heads_kv;
    p.scale_log2 = query.scale * 1.44269504F;
    const PagedLaunch launch = paged_launch(query, p.window, multiprocessors_, is_hopper(query.device));
    if (!appends(query) && paged_tiles_take(query, p)) return paged_tiles(call, query, p, launch.starts_early);
    if (!appends(query)) return paged_attention(call, query.dtype, launch, p, nullptr);
    const PagedAppend append = append_of(query, a, q);
    paged_attention(call, query.dtype, launch, p, &append);
  }

 private:
  // Segments like the frames of a vision tower: long enough to fill tiles, short enough for all keys to fit in shared
  // memory.
  static bool fits_persistent_kernels(const Query& query) {
    const int limit = query.guests ? max_rows_with_deferred : max_persistent_rows;
    const auto is_long_enough = [limit](int rows) { return rows > max_persistent_rows / 2 && rows <= limit; };
    return is_hopper(query.device) && !query.causal && query.rotary_dim == 0 && query.heads_q == query.heads_kv &&
           is_long_enough(query.max_seqlen_q) && is_long_enough(query.max_seqlen_kv);
  }
  // Like a vision tower's frames of many patches. Its backward is the general one, so that other plugins are preferred
  // where there is a backward.
  static bool fits_streamed_forward(const Query& query) {
    return is_hopper(query.device) && !query.causal && query.rotary_dim == 0 && !is_partial(query) &&
           query.max_seqlen_q > max_persistent_rows && query.max_seqlen_kv > max_persistent_rows;
  }
  static bool uses_tiled_backward(const Query& query) {
    return is_hopper(query.device) && !fits_persistent_kernels(query) && tiled_backward_supported(query);
  }
  // Decoder attention only: its rows are few compared with a vision tower's, so the extra memory is small. The output
  // of a partial call is not the one that its backward gets.
  static bool keeps_compensation(const Query& query) {
    return query.causal && query.dtype == bfloat16 && !is_partial(query);
  }

  // Strides in elements.
  struct Rows {
    void* data;
    int64_t page, row, head;
  };
  // Rows of a call over pages: aligned to their elements alone.
  static Rows paged_rows(const PagedQuery& query, int heads, const fvlm_tensor* tensor, const char* name) {
    if (!tensor || tensor->dtype != query.dtype || tensor->ndim != 3 || tensor->shape[0] != query.rows ||
        tensor->shape[1] != heads || tensor->shape[2] != query.head_dim || tensor->strides[2] != 1)
      throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s [%lld, %d, %d] with contiguous heads", name,
                    sdk::name_of(query.dtype), static_cast<long long>(query.rows), heads, query.head_dim);
    return {tensor->data, 0, tensor->strides[0], tensor->strides[1]};
  }
  static bool is_aligned(const PagedQuery& query, const Rows& rows) {
    const auto unit = static_cast<int64_t>(16 / sdk::bytes_of(query.dtype));
    return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.row % unit == 0 && rows.head % unit == 0;
  }
  static PagedAppend append_of(const PagedQuery& query, const Paged& a, const Rows& q) {
    if (a.struct_size < sizeof a) throw Failure(FVLM_ERROR_ARGUMENT, "k and v are missing");
    PagedAppend append{};
    const Rows k = paged_rows(query, query.heads_kv, a.k, "k"), v = paged_rows(query, query.heads_kv, a.v, "v");
    append.k = k.data, append.k_row = k.row, append.k_head = k.head;
    append.v = v.data, append.v_row = v.row, append.v_head = v.head;
    append.has_norm = query.qk_norm != 0;
    append.epsilon = query.epsilon;
    append.head_dim = query.head_dim, append.rotary_dim = query.rotary_dim;
    append.inverse = query.inverse != 0;
    const auto weight = [&](const fvlm_tensor* tensor, const char* name) -> const void* {
      if (!tensor) return nullptr;
      if (tensor->dtype != query.dtype || tensor->ndim != 1 || tensor->shape[0] != query.head_dim)
        throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s [%d]", name, sdk::name_of(query.dtype), query.head_dim);
      return tensor->data;
    };
    append.q_norm = weight(a.q_norm, "q_norm"), append.k_norm = weight(a.k_norm, "k_norm");
    const auto starts_a_pack = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
    append.has_whole_packs = is_aligned(query, q) && is_aligned(query, k) && is_aligned(query, v) &&
                             starts_a_pack(append.q_norm) && starts_a_pack(append.k_norm) &&
                             query.rotary_dim / 2 % numbers_of_piece(query) == 0;
    if (query.rotary_dim > 0 && query.has_frequencies)
      append.frequencies = vector_of<const double>(a.frequencies, query.rotary_dim / 2, "frequencies");
    else if (query.rotary_dim > 0)
      append.log2_theta = std::log2(static_cast<double>(query.rope_theta));
    return append;
  }
  static Rows pages_of(const PagedQuery& query, const fvlm_tensor* tensor, const char* name) {
    if (!tensor || tensor->dtype != query.dtype || tensor->ndim != 4 || tensor->shape[0] != query.pages ||
        tensor->shape[1] != query.page_rows || tensor->shape[2] != query.heads_kv || tensor->shape[3] != query.head_dim)
      throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s [%lld, %d, %d, %d]", name, sdk::name_of(query.dtype),
                    static_cast<long long>(query.pages), query.page_rows, query.heads_kv, query.head_dim);
    const Rows rows{tensor->data, tensor->strides[0], tensor->strides[1], tensor->strides[2]};
    const auto unit = static_cast<int64_t>(16 / sdk::bytes_of(query.dtype));
    const auto is_aligned = [unit](int64_t stride, int64_t count) { return count < 2 || stride % unit == 0; };
    if (tensor->strides[3] != 1 || !is_aligned(rows.page, query.pages) || !is_aligned(rows.row, query.page_rows) ||
        !is_aligned(rows.head, query.heads_kv) || reinterpret_cast<std::uintptr_t>(rows.data) % 16 != 0)
      throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: heads have to be contiguous and aligned to 16 bytes", name);
    return rows;
  }

  template <class Arguments>
  static Problem problem_of(const Query& query, const Arguments& a) {
    const Operands operands = operands_of(query, a);
    Problem p;
    p.cu_q = operands.cu_q;
    p.cu_kv = operands.cu_kv;
    p.segments = static_cast<int>(query.segments);
    p.heads_q = query.heads_q;
    p.heads_kv = query.heads_kv;
    p.tokens_q = static_cast<int>(query.tokens_q);
    p.tokens_kv = static_cast<int>(query.tokens_kv);
    p.head_group.heads = query.heads_q / query.heads_kv;
    p.head_group.reciprocal = ((1u << 31) + static_cast<std::uint32_t>(p.head_group.heads) - 1) /
                              static_cast<std::uint32_t>(p.head_group.heads);
    p.causal = query.causal != 0;
    p.scale = query.scale;
    const auto with_byte_strides = [](const HeadTensor& rows) -> HeadRows {
      if (std::max(rows.row_stride, rows.head_stride) > INT32_MAX)
        throw Failure(FVLM_ERROR_UNSUPPORTED, "a row stride of %lld elements exceeds 32 bits",
                      static_cast<long long>(rows.row_stride));
      return {static_cast<char*>(rows.data), static_cast<std::uint32_t>(rows.row_stride) * 2,
              static_cast<std::uint32_t>(rows.head_stride) * 2};
    };
    p.q = with_byte_strides(operands.rows[q]), p.k = with_byte_strides(operands.rows[k]),
    p.v = with_byte_strides(operands.rows[v]), p.out = with_byte_strides(operands.rows[out]),
    p.d_out = with_byte_strides(operands.rows[d_out]);
    p.d_q = with_byte_strides(operands.rows[d_q]), p.d_k = with_byte_strides(operands.rows[d_k]),
    p.d_v = with_byte_strides(operands.rows[d_v]);
    p.lse = operands.lse;
    if (keeps_compensation(query) && query.needs_backward) {
      if (!a.saved[1]) throw Failure(FVLM_ERROR_ARGUMENT, "saved[1] is NULL");
      p.out_compensation = static_cast<std::int8_t*>(a.saved[1]->data);
    }
    if constexpr (std::is_same_v<Arguments, Backward>) {
      if (a.guest_q) {
        Query deferred_problem = query;
        deferred_problem.tokens_q = a.guest_q->shape[0];
        p.deferred_q = with_byte_strides(rows_of(deferred_problem, q, a.guest_q));
        p.deferred_d_out = with_byte_strides(rows_of(deferred_problem, d_out, a.guest_d_out));
        p.cu_deferred = vector_of<const std::int32_t>(a.guest_cu_seqlens, query.segments + 1, "guest_cu_seqlens");
      }
    }
    if (query.rotary_dim == 0) return p;
    p.positions_q = vector_of<const std::int32_t>(a.positions_q, query.tokens_q, "positions_q");
    p.positions_kv = vector_of<const std::int32_t>(a.positions_kv, query.tokens_kv, "positions_kv");
    for (int i = 0; i < frequencies; ++i)
      p.steps[i] = rotary_frequency(i, query.rotary_dim, std::log2(static_cast<double>(query.rope_theta)));
    return p;
  }

  int multiprocessors_, shared_memory_; // the latter of a block, in bytes
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("attention-flash", "0.1.0", fvlm::plugins::AttentionFlash)
