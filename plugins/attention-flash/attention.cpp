// attention.cpp: the plugin's face: which calls it takes, and what its kernels are told.
#include "common/cuda_boxes.h"
#include "common/cuda_device.h"
#include "common/cuda_rotary.cuh"
#include "problem.h"

#include <algorithm>
#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

class AttentionFlash : public Attention {
 public:
  explicit AttentionFlash(const fvlm_instance_config& config) : multiprocessors_(multiprocessors_of(config.device)) {}

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
    if (query.guests && !is_of_frames(query))
      return refuse("guests only on Hopper, in segments of %d to %d rows, where each query head has a key head",
                    most_rows / 2 + 1, most_rows_beside_guest);
    if (!(query.scale > 0))
      return refuse("scale %g not supported, positive ones are", static_cast<double>(query.scale));
    // Rows of heads are counted in 32 bits, and divided by `sharing` there.
    const int64_t sharing = query.heads_q / query.heads_kv, most = INT32_MAX / query.heads_q / sharing;
    if (query.tokens_q > most || query.tokens_kv > most || query.segments > most)
      return refuse("%lld tokens in %lld segments: 32 bits do not reach", static_cast<long long>(query.tokens_q),
                    static_cast<long long>(query.segments));
    if (is_of_frames(query)) return accept(250, "one launch, a segment's keys at once");
    if (const int most = most_memory(query.device); query.needs_backward && most < backward_memory())
      return refuse("a block of the backward takes %d bytes of shared memory, the device has %d", backward_memory(),
                    most);
    const bool is_short = query.max_seqlen_q > 1 && query.max_seqlen_kv <= most_where_fast && query.causal;
    return accept(is_short ? 250 : 150, is_short ? "one launch, for short segments" : "one launch");
  }

  void requirements(const Query& query, Requirements& wanted) const {
    require(supports(query));
    if (!query.needs_backward) return;
    wanted.save(float32, {query.tokens_q, query.heads_q});
    if (keeps_rest(query)) wanted.save(int8, {query.tokens_q, query.heads_q, head_dim});
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& a) {
    require(supports(query));
    const Problem problem = problem_of(query, a);
    if (is_of_frames(query) && takes_frames(problem))
      return frame_forward(call, multiprocessors_, query.dtype, problem);
    if (is_for_short(problem, query.max_seqlen_q, query.max_seqlen_kv))
      return short_forward(call, query.dtype, problem);
    if (is_hopper(query.device) &&
        takes_whole_forward(problem, multiprocessors_, query.max_seqlen_q, query.max_seqlen_kv))
      return whole_forward(call, multiprocessors_, query.dtype, problem);
    attention_forward(call, query.dtype, problem);
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& a) {
    require(supports(query));
    const Problem problem = problem_of(query, a);
    if (is_of_frames(query) && takes_frames_backward(problem))
      return frame_backward(call, multiprocessors_, query.dtype, problem);
    if (problem.cu_guests) throw Failure(FVLM_ERROR_UNSUPPORTED, "guests on rows that the copy engine does not read");
    if (is_for_short(problem, query.max_seqlen_q, query.max_seqlen_kv))
      return short_backward(call, query.dtype, problem);
    if (is_hopper(query.device) &&
        takes_whole_backward(problem, multiprocessors_, query.max_seqlen_q, query.max_seqlen_kv))
      return whole_backward(call, multiprocessors_, query.dtype, problem, query.max_seqlen_q);
    attention_backward(call, multiprocessors_, query.dtype, problem);
  }

 private:
  static constexpr int most_where_fast = 512; // keys of a segment, where it was measured to be faster than cuDNN

  // As a vision tower's are: segments long enough to fill tiles, short enough to have all keys in shared memory.
  static bool is_of_frames(const Query& query) {
    const int most = query.guests ? most_rows_beside_guest : most_rows;
    const auto is_long_enough = [most](int rows) { return rows > most_rows / 2 && rows <= most; };
    return is_hopper(query.device) && !query.causal && query.rotary_dim == 0 && query.heads_q == query.heads_kv &&
           is_long_enough(query.max_seqlen_q) && is_long_enough(query.max_seqlen_kv);
  }
  // Bytes of shared memory that a block may have.
  static int most_memory(fvlm_device device) {
    int most = 0;
    check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.id), "shared memory");
    return most;
  }
  // A decoder's rows are few beside a vision tower's.
  static bool keeps_rest(const Query& query) { return query.causal && query.dtype == bfloat16; }

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
    p.sharing.heads = query.heads_q / query.heads_kv;
    p.sharing.reciprocal =
        ((1u << 31) + static_cast<std::uint32_t>(p.sharing.heads) - 1) / static_cast<std::uint32_t>(p.sharing.heads);
    p.causal = query.causal != 0;
    p.scale = query.scale;
    const auto near = [](const HeadRows& rows) -> Rows {
      if (std::max(rows.row, rows.head) > INT32_MAX)
        throw Failure(FVLM_ERROR_UNSUPPORTED, "rows %lld elements apart", static_cast<long long>(rows.row));
      return {static_cast<char*>(rows.data), static_cast<std::uint32_t>(rows.row) * 2,
              static_cast<std::uint32_t>(rows.head) * 2};
    };
    p.q = near(operands.rows[q]), p.k = near(operands.rows[k]), p.v = near(operands.rows[v]),
    p.out = near(operands.rows[out]), p.d_out = near(operands.rows[d_out]);
    p.d_q = near(operands.rows[d_q]), p.d_k = near(operands.rows[d_k]), p.d_v = near(operands.rows[d_v]);
    p.log_sums = operands.statistics;
    if (keeps_rest(query) && query.needs_backward) {
      if (!a.saved[1]) throw Failure(FVLM_ERROR_ARGUMENT, "saved[1] is NULL");
      p.out_rest = static_cast<std::int8_t*>(a.saved[1]->data);
    }
    if constexpr (std::is_same_v<Arguments, Backward>) {
      if (a.guest_q) {
        Query of_guests = query;
        of_guests.tokens_q = a.guest_q->shape[0];
        p.guest_q = near(rows_of(of_guests, q, a.guest_q));
        p.guest_d_out = near(rows_of(of_guests, d_out, a.guest_d_out));
        p.cu_guests = vector_of<const std::int32_t>(a.guest_cu_seqlens, query.segments + 1, "guest_cu_seqlens");
      }
    }
    if (query.rotary_dim == 0) return p;
    p.positions_q = vector_of<const std::int32_t>(a.positions_q, query.tokens_q, "positions_q");
    p.positions_kv = vector_of<const std::int32_t>(a.positions_kv, query.tokens_kv, "positions_kv");
    for (int i = 0; i < frequencies; ++i)
      p.steps[i] = rotary_step(i, query.rotary_dim, std::log2(static_cast<double>(query.rope_theta)));
    return p;
  }

  int multiprocessors_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("attention-flash", "0.1.0", fvlm::plugins::AttentionFlash)
