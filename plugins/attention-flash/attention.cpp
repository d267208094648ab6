// attention.cpp: the plugin's face: which calls it takes, and what its kernels are told.
#include "common/cuda_device.h"
#include "common/cuda_rotary.cuh"
#include "common/cuda_tensor_map.h"
#include "problem.h"

#include <algorithm>
#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

class AttentionFlash : public Attention {
 public:
  explicit AttentionFlash(const fvlm_instance_config& config) : multiprocessors_(multiprocessor_count(config.device)) {}

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    if (!is_one_of<BFloat16, Half>(query.dtype)) return refuse("dtype %s not supported", sdk::name_of(query.dtype));
    if (query.head_dim != head_dim) return refuse("head_dim %d not supported, 64 is", query.head_dim);
    if (query.rotary_dim != 0 && query.rotary_dim != head_dim)
      return refuse("rotary_dim %d not supported, 0 and 64 are", query.rotary_dim);
    if (query.rotary_dim != 0 && !(query.rope_theta > 0 && std::isfinite(query.rope_theta)))
      return refuse("a base of rotation of %g not supported", static_cast<double>(query.rope_theta));
    if (query.heads_kv < 1 || query.heads_q < 1 || query.heads_q % query.heads_kv != 0)
      return refuse("%d query heads cannot share %d key heads evenly", query.heads_q, query.heads_kv);
    if (query.tokens_q < 0 || query.tokens_kv < 0 || query.segments < 0 || query.max_seqlen_q < 0 ||
        query.max_seqlen_kv < 0)
      return refuse("a negative size");
    if (query.queries_alone) return refuse("gives all gradients");
    if (query.guests && !fits_persistent_kernels(query))
      return refuse("guests only on Hopper, in segments of %d to %d rows, where each query head has a key head",
                    max_persistent_rows / 2 + 1, max_rows_with_deferred);
    if (!(query.scale > 0))
      return refuse("scale %g not supported, positive ones are", static_cast<double>(query.scale));
    // Rows of heads are counted in 32 bits, and divided by `sharing` there.
    const int64_t head_group = query.heads_q / query.heads_kv, limit = INT32_MAX / query.heads_q / head_group;
    if (query.tokens_q > limit || query.tokens_kv > limit || query.segments > limit)
      return refuse("%lld tokens in %lld segments: 32 bits do not reach", static_cast<long long>(query.tokens_q),
                    static_cast<long long>(query.segments));
    if (fits_persistent_kernels(query)) return accept(250, "one launch, a segment's keys at once");
    if (const int limit = max_shared_memory(query.device); query.needs_backward && limit < backward_memory())
      return refuse("a block of the backward takes %d bytes of shared memory, the device has %d", backward_memory(),
                    limit);
    const bool is_short = query.max_seqlen_q > 1 && query.max_seqlen_kv <= max_fast_keys && query.causal;
    return accept(is_short ? 250 : 150, is_short ? "one launch, for short segments" : "one launch");
  }

  void requirements(const Query& query, Requirements& wanted) const {
    require(supports(query));
    if (!query.needs_backward) return;
    wanted.save(float32, {query.tokens_q, query.heads_q});
    if (keeps_compensation(query)) wanted.save(int8, {query.tokens_q, query.heads_q, head_dim});
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& a) {
    require(supports(query));
    const Problem problem = problem_of(query, a);
    if (fits_persistent_kernels(query) && persistent_forward_supported(problem))
      return persistent_forward(call, multiprocessors_, query.dtype, problem);
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
    if (problem.cu_deferred) throw Failure(FVLM_ERROR_UNSUPPORTED, "guests on rows that the copy engine does not read");
    if (single_tile_supported(problem, query.max_seqlen_q, query.max_seqlen_kv))
      return single_tile_backward(call, query.dtype, problem);
    if (is_hopper(query.device) &&
        resident_backward_supported(problem, multiprocessors_, query.max_seqlen_q, query.max_seqlen_kv))
      return resident_backward(call, multiprocessors_, query.dtype, problem, query.max_seqlen_q);
    attention_backward(call, multiprocessors_, query.dtype, problem);
  }

 private:
  static constexpr int max_fast_keys = 512; // keys of a segment, where it was measured to be faster than cuDNN

  // As a vision tower's are: segments long enough to fill tiles, short enough to have all keys in shared memory.
  static bool fits_persistent_kernels(const Query& query) {
    const int limit = query.guests ? max_rows_with_deferred : max_persistent_rows;
    const auto is_long_enough = [limit](int rows) { return rows > max_persistent_rows / 2 && rows <= limit; };
    return is_hopper(query.device) && !query.causal && query.rotary_dim == 0 && query.heads_q == query.heads_kv &&
           is_long_enough(query.max_seqlen_q) && is_long_enough(query.max_seqlen_kv);
  }
  // Bytes of shared memory that a block may have.
  static int max_shared_memory(fvlm_device device) {
    int limit = 0;
    check_cuda(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.id), "shared memory");
    return limit;
  }
  // A decoder's rows are few beside a vision tower's.
  static bool keeps_compensation(const Query& query) { return query.causal && query.dtype == bfloat16; }

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
        throw Failure(FVLM_ERROR_UNSUPPORTED, "rows %lld elements apart", static_cast<long long>(rows.row_stride));
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

  int multiprocessors_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("attention-flash", "0.1.0", fvlm::plugins::AttentionFlash)
