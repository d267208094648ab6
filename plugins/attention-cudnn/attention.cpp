// attention.cpp: the plugin's entry points: which calls it supports, the cuDNN plans that an instance caches, and how
// tensors are bound to them.
#include "common/cuda_device.h"
#include "decode_attention.h"
#include "graphs.h"
#include "partial_statistics.h"
#include "segment_layout.h"
#include "short_backward.h"
#include "uniform_lengths.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

class AttentionCudnn : public Attention {
 public:
  static constexpr std::uint32_t features =
      FVLM_ATTENTION_PARTIAL | FVLM_ATTENTION_WINDOWS | FVLM_ATTENTION_PARTIAL_WINDOWS;

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    const bool decodes = query.max_seqlen_q == 1 && !is_partial(query);
    if (!is_one_of<float, BFloat16, Half>(query.dtype) || (query.dtype == float32 && !decodes))
      return refuse("dtype %s is not supported%s", sdk::name_of(query.dtype),
                    query.dtype == float32 ? " with more than one query per segment" : "");
    if (query.rotary_dim != 0) return refuse("rotary_dim is not supported: apply RoPE to q and k first (rotary_dim 0)");
    if (query.guests) return refuse("extra queries (guests) are not supported");
    if (query.heads_kv < 1 || query.heads_q < 1 || query.heads_q % query.heads_kv != 0)
      return refuse("%d query heads are not a multiple of %d key heads", query.heads_q, query.heads_kv);
    if (query.tokens_q < 0 || query.tokens_kv < 0 || query.segments < 0 || query.max_seqlen_q < 0 ||
        query.max_seqlen_kv < 0)
      return refuse("a size is negative");
    if (query.segments > 65535)
      return refuse("%lld segments are too many: the limit is 65535", static_cast<long long>(query.segments));
    if (const int window = window_of(query);
        window < 0 || (window > 0 && (decodes || !query.causal || query.tokens_q != query.tokens_kv)))
      return refuse("a window of %d is supported with a causal mask and as many queries as keys, more than one",
                    window);
    if (decodes && decode_supported(query.head_dim, query.heads_q, query.heads_kv))
      return accept(300, "one query per segment, decode kernels");
    if (query.dtype == float32)
      return refuse("head_dim %d is not supported in float32: expected 32, 64 or 128", query.head_dim);
    if (query.queries_alone) return refuse("dq_only (queries_alone) is supported for one query per segment only");
    const int widest = is_hopper(query.device) ? 256 : 128;
    if (query.head_dim < 8 || query.head_dim > widest || query.head_dim % 8 != 0)
      return refuse("head_dim %d is not supported: expected a multiple of 8, at most %d", query.head_dim, widest);
    if (Support no = supports_ragged_segments(query.device); no.score == 0) return no;
    if (max_row_multiple * std::max(query.tokens_q, query.tokens_kv) * std::max(query.heads_q, query.heads_kv) *
            query.head_dim >
        INT32_MAX)
      return refuse("%lld tokens exceed cuDNN's 32-bit ragged offsets", static_cast<long long>(query.tokens_q));
    return accept(200, "cuDNN %s", "fused attention over ragged segments");
  }

  void requirements(const Query& query, Requirements& requirements) {
    require(supports(query));
    const bool decodes = uses_decode_kernels(query);
    if (is_partial(query))
      requirements.save(float32, {query.tokens_q, query.heads_q});
    else if (query.needs_backward)
      requirements.save(
          float32, {uniform_segments(query), query.heads_q, decodes ? int64_t{1} : padded_length(query.max_seqlen_q)});
    if (decodes || is_empty(query)) return;
    const auto size = [&](bool backward, bool deterministic) {
      Workspace scratch;
      (void)allocate(scratch, query, backward, graph(shape_of(query, usual_layouts(query), backward, deterministic)));
      if (backward) (void)scratch.take<char>(room_for_other_layouts(query));
      return scratch.used();
    };
    requirements.forward_workspace = size(false, false);
    if (!query.needs_backward) return;
    if (uses_short_backward(query)) {
      Workspace scratch;
      (void)scratch.take<char>(statistics_bytes(short_backward_problem(query, {})));
      requirements.backward_workspace = scratch.used();
      return;
    }
    requirements.backward_workspace = size(true, false);
    requirements.deterministic_workspace = size(true, true); // gradients of all scores: 2 GiB of 8 x 32 x 2,048^2
  }

  // Builds the plans for the layout that the engine uses. requirements() has already built them to know their
  // workspace.
  void prepare(const fvlm_call&, const Query& query) {
    require(supports(query));
    if (uses_decode_kernels(query) || is_empty(query)) return;
    (void)graph(shape_of(query, usual_layouts(query), false, false));
    if (!query.needs_backward || uses_short_backward(query)) return;
    (void)graph(shape_of(query, usual_layouts(query), true, false));
    (void)graph(shape_of(query, usual_layouts(query), true, true));
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& a) {
    require(supports(query));
    const Operands operands = operands_of(query, a);
    if (uses_decode_kernels(query)) {
      if (query.tokens_q > 0) decode_forward(call, query.dtype, decode_problem(query, operands));
      return;
    }
    run(call, query, operands, false, {out});
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& a) {
    require(supports(query));
    const Operands operands = operands_of(query, a);
    if (uses_decode_kernels(query)) {
      if (query.tokens_q + query.tokens_kv > 0) decode_backward(call, query.dtype, decode_problem(query, operands));
      return;
    }
    if (uses_short_backward(query) && !is_empty(query)) return run_short_backward(call, query, operands);
    run(call, query, operands, true, {d_q, d_k, d_v});
  }

 private:
  // Ragged offsets count elements in 32 bits. Rows may be up to this many times as wide as their heads, for a fused
  // q-k-v buffer.
  static constexpr int64_t max_row_multiple = 4;

  struct Scratch {
    std::int32_t *lengths_q, *lengths_kv, *offsets[operand_count];
    float* statistics; // of partial calls, as cuDNN has them
    Span<char> cudnn;
  };

  static bool uses_decode_kernels(const Query& query) {
    return query.max_seqlen_q == 1 && !is_partial(query) &&
           decode_supported(query.head_dim, query.heads_q, query.heads_kv);
  }
  static bool is_empty(const Query& query) {
    return query.tokens_q == 0 || query.tokens_kv == 0 || query.segments == 0;
  }
  // What cuDNN saves where lengths were taken for uniform is not by segment until that has been verified.
  static bool uses_short_backward(const Query& query) {
    return is_hopper(query.device) && query.head_dim == short_head_dim && !uses_decode_kernels(query) &&
           !is_partial(query) && std::max(query.max_seqlen_q, query.max_seqlen_kv) <= max_short_rows &&
           window_of(query) == 0 && (query.even || uniform_stride(query) == 0);
  }
  // If there are exactly as many tokens as full segments would have, as in a vision tower, cuDNN is called with fixed
  // lengths, which is a quarter faster; unless the query guarantees uniform lengths, they are verified afterwards.
  // Returns the number of segments per full one (see uniform_lengths.h), or 0: use ragged lengths. Causal calls are
  // text, whose token count may match by chance.
  static int uniform_stride(const Query& query) {
    if (query.max_seqlen_q < 64 || query.max_seqlen_kv < 64 || is_partial(query)) return 0;
    if (query.even) return 1;
    if (query.causal) return 0;
    const auto is_full = [&](int64_t uniform_segments) {
      return query.tokens_q == uniform_segments * query.max_seqlen_q;
    };
    if (is_full(query.segments) && query.tokens_kv == query.segments * query.max_seqlen_kv) return 1;
    const int64_t uniform_segments = query.segments / 2;
    const bool is_appended = query.segments == 2 * uniform_segments && is_full(uniform_segments) &&
                             query.tokens_kv % uniform_segments == 0 &&
                             query.tokens_kv > uniform_segments * query.max_seqlen_kv;
    return is_appended ? 2 : 0;
  }
  // The number of segments that cuDNN is given.
  static int64_t uniform_segments(const Query& query) {
    if (query.even && uniform_stride(query) == 1) return query.tokens_q / query.max_seqlen_q;
    return query.segments / std::max(uniform_stride(query), 1);
  }
  // cuDNN does not support segments with a single row on both sides.
  static int64_t padded_length(int64_t rows) { return std::max<int64_t>(rows, 8); }

  // q, k and v interleaved in one buffer if they have the same tokens, and their gradients likewise.
  static std::array<Layout, operand_count> usual_layouts(const Query& query) {
    std::array<Layout, operand_count> layouts;
    const bool together = query.tokens_q == query.tokens_kv;
    for (int i = 0; i < operand_count; ++i) {
      const int64_t heads = i == out || i == d_out ? query.heads_q
                            : together             ? query.heads_q + 2 * query.heads_kv
                            : is_key_side(i)       ? query.heads_kv
                                                   : query.heads_q;
      layouts[static_cast<std::size_t>(i)] = {heads * query.head_dim, query.head_dim};
    }
    return layouts;
  }

  // Rows may be wider than the usual ones, as those of linears with adapters are; some plans of backward then gather a
  // gradient in the workspace. Enough for all three, since requirements() does not know the strides.
  static int64_t room_for_other_layouts(const Query& query) {
    const int64_t heads_by_rows = query.tokens_q * query.heads_q + 2 * query.tokens_kv * query.heads_kv;
    return heads_by_rows * query.head_dim * static_cast<int64_t>(bytes_of(query.dtype));
  }

  static GraphShape shape_of(const Query& query, const std::array<Layout, operand_count>& layouts, bool backward,
                             bool deterministic) {
    GraphShape shape;
    shape.backward = backward;
    shape.lse = !backward && query.needs_backward;
    shape.deterministic = backward && deterministic;
    shape.causal = query.causal != 0;
    shape.window = window_of(query);
    shape.bfloat = query.dtype == bfloat16;
    shape.heads_q = query.heads_q;
    shape.heads_kv = query.heads_kv;
    shape.head_dim = query.head_dim;
    shape.segments = uniform_segments(query);
    shape.uniform = uniform_stride(query) != 0;
    shape.max_q = padded_length(query.max_seqlen_q);
    shape.max_kv = padded_length(query.max_seqlen_kv);
    shape.tokens_q = query.tokens_q;
    shape.tokens_kv = query.tokens_kv;
    shape.scale = query.scale;
    for (int i = 0; i < (backward ? operand_count : d_out); ++i) shape.layout[i] = layouts[static_cast<std::size_t>(i)];
    return shape;
  }

  // The graph of a shape, built on first use.
  const Graph& graph(const GraphShape& shape) {
    const std::lock_guard lock(mutex_);
    auto& found = graphs_[shape];
    if (!found) found = std::make_unique<Graph>(cudnn_, shape);
    return *found;
  }

  static Scratch allocate(Workspace& workspace, const Query& query, bool backward, const Graph& graph) {
    Scratch scratch{};
    scratch.lengths_q = workspace.take<std::int32_t>(query.segments).data();
    scratch.lengths_kv = workspace.take<std::int32_t>(query.segments).data();
    for (int i = 0; i < (backward ? operand_count : d_out); ++i)
      scratch.offsets[i] = workspace.take<std::int32_t>(query.segments + 1).data();
    if (is_partial(query))
      scratch.statistics =
          workspace.take<float>(query.segments * query.heads_q * padded_length(query.max_seqlen_q)).data();
    scratch.cudnn = workspace.take<char>(static_cast<int64_t>(graph.workspace()));
    return scratch;
  }

  static ZeroFill zero_fill_of(const Query& query, const Operands& operands, int operand) {
    const HeadTensor& rows = operands.rows[operand];
    const int64_t element = static_cast<int64_t>(bytes_of(query.dtype));
    return {rows.data,
            is_key_side(operand) ? query.tokens_kv : query.tokens_q,
            rows.row_stride * element,
            rows.head_stride * element,
            is_key_side(operand) ? query.heads_kv : query.heads_q,
            static_cast<int>(query.head_dim * element),
            is_key_side(operand) ? Side::key : Side::query};
  }

  void run(const fvlm_call& call, const Query& query, const Operands& operands, bool backward,
           std::initializer_list<int> written) {
    SegmentLayout segment_layout;
    segment_layout.cu_q = operands.cu_q;
    segment_layout.cu_kv = operands.cu_kv;
    segment_layout.segments = static_cast<int>(query.segments);
    segment_layout.causal = query.causal != 0;
    for (const int operand : written)
      segment_layout.zeros[segment_layout.zero_count++] = zero_fill_of(query, operands, operand);
    if (is_empty(query)) return write_segment_layout(call, segment_layout);

    std::array<Layout, operand_count> layouts;
    for (std::size_t i = 0; i < operand_count; ++i)
      layouts[i] = {operands.rows[i].row_stride, operands.rows[i].head_stride};
    const GraphShape shape = shape_of(query, layouts, backward, (call.flags & FVLM_DETERMINISTIC) != 0);
    const Graph& plan = plan_for_call(call, query, shape);
    const Graph& usual = graph(shape_of(query, usual_layouts(query), backward, shape.deterministic));
    const auto room = backward ? static_cast<std::uint64_t>(room_for_other_layouts(query)) : 0;
    if (plan.workspace() > usual.workspace() + room) // more than requirements() asked for
      throw Failure(FVLM_ERROR_UNSUPPORTED,
                    "tensors with these strides need %llu bytes more workspace than contiguous ones",
                    static_cast<unsigned long long>(plan.workspace() - usual.workspace()));
    Workspace workspace(call);
    const Scratch scratch = allocate(workspace, query, backward, plan);

    void* slots[slot_count] = {};
    constexpr int slot_of[operand_count] = {slot_q, slot_k, slot_v, slot_out, slot_d_out, slot_d_q, slot_d_k, slot_d_v};
    for (int i = 0; i < (backward ? operand_count : d_out); ++i) {
      slots[slot_of[i]] = operands.rows[i].data;
      slots[slot_offsets + i] = scratch.offsets[i];
      segment_layout.offsets[segment_layout.offset_count++] = {scratch.offsets[i], operands.rows[i].row_stride,
                                                               is_key_side(i) ? Side::key : Side::query};
    }
    slots[slot_lse] = is_partial(query) ? scratch.statistics : operands.lse;
    slots[slot_lengths_q] = segment_layout.lengths_q = scratch.lengths_q;
    slots[slot_lengths_kv] = segment_layout.lengths_kv = scratch.lengths_kv;
    cudnn_.set_stream(call.stream);
    if (!shape.uniform) write_segment_layout(call, segment_layout);
    if (is_partial(query) && backward) write_by_segment(call, statistics_of(query, operands, scratch));
    plan.run(cudnn_, slots, scratch.cudnn.data());
    if (is_partial(query) && !backward) write_by_row(call, statistics_of(query, operands, scratch));
    if (!shape.uniform || query.even) return;
    const UniformProblem problem = uniform_problem(query, operands, segment_layout);
    backward ? verify_uniform_backward(call, query.dtype, problem) : verify_uniform_forward(call, query.dtype, problem);
  }

  static PartialStatistics statistics_of(const Query& query, const Operands& operands, const Scratch& scratch) {
    PartialStatistics statistics;
    statistics.cu_q = operands.cu_q;
    statistics.cu_kv = operands.cu_kv;
    statistics.segments = static_cast<int>(query.segments);
    statistics.heads = query.heads_q;
    statistics.max_rows = static_cast<int>(padded_length(query.max_seqlen_q));
    statistics.causal = query.causal != 0;
    statistics.by_segment = scratch.statistics;
    statistics.by_row = operands.lse;
    return statistics;
  }

  static Segments segments_of(const Query& query, const Operands& operands) {
    Segments all;
    all.cu_q = operands.cu_q;
    all.cu_kv = operands.cu_kv;
    all.segments = static_cast<int>(query.segments);
    all.heads_q = query.heads_q;
    all.heads_kv = query.heads_kv;
    all.head_dim = query.head_dim;
    all.tokens_q = query.tokens_q;
    all.tokens_kv = query.tokens_kv;
    all.scale = query.scale;
    all.q = operands.rows[q], all.k = operands.rows[k], all.v = operands.rows[v];
    all.out = operands.rows[out], all.d_out = operands.rows[d_out];
    all.d_q = operands.rows[d_q], all.d_k = operands.rows[d_k], all.d_v = operands.rows[d_v];
    return all;
  }

  static ShortBackwardProblem short_backward_problem(const Query& query, const Operands& operands) {
    ShortBackwardProblem problem{segments_of(query, operands)};
    problem.causal = query.causal != 0;
    problem.lse = operands.lse;
    for (int i = 0; i < 3; ++i) problem.zeros[i] = zero_fill_of(query, operands, d_q + i);
    problem.max_q = static_cast<int>(padded_length(query.max_seqlen_q));
    problem.max_kv = query.max_seqlen_kv;
    return problem;
  }
  static void run_short_backward(const fvlm_call& call, const Query& query, const Operands& operands) {
    const ShortBackwardProblem problem = short_backward_problem(query, operands);
    Workspace workspace(call);
    short_backward(call, query.dtype, problem, workspace.take<char>(statistics_bytes(problem)).data());
  }

  static DecodeProblem decode_problem(const Query& query, const Operands& operands) {
    for (const HeadTensor& each : operands.rows)
      if (const int64_t lane_mask = std::max(each.row_stride, each.head_stride);
          lane_mask > UINT32_MAX / static_cast<int64_t>(bytes_of(query.dtype)))
        throw Failure(FVLM_ERROR_UNSUPPORTED, "a row stride of %lld elements exceeds 32 bits in bytes",
                      static_cast<long long>(lane_mask));
    return {segments_of(query, operands), operands.lse, query.even ? query.max_seqlen_kv : 0};
  }

  static UniformProblem uniform_problem(const Query& query, const Operands& operands,
                                        const SegmentLayout& segment_layout) {
    UniformProblem problem{segments_of(query, operands)};
    problem.step = uniform_stride(query);
    problem.max_q = query.max_seqlen_q;
    problem.max_kv = query.max_seqlen_kv;
    problem.lse = operands.lse;
    std::copy(segment_layout.zeros, segment_layout.zeros + segment_layout.zero_count, problem.zeros);
    return problem;
  }

  // Tensors whose strides prepare() did not expect get a plan at their first call, which takes milliseconds and cannot
  // happen during CUDA graph capture.
  const Graph& plan_for_call(const fvlm_call& call, const Query& query, const GraphShape& shape) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = graphs_.find(shape); found != graphs_.end()) return *found->second;
    }
    // cuDNN accepts a head stride, but writes gradients of ragged segments as if heads were contiguous.
    for (const Layout& layout : shape.layout)
      if (layout.head_stride != 0 && layout.head_stride != query.head_dim)
        throw Failure(FVLM_ERROR_UNSUPPORTED,
                      "a head stride of %lld elements is not supported: heads have to be contiguous",
                      static_cast<long long>(layout.head_stride));
    for (const Layout& layout : shape.layout)
      if (layout.row_stride > max_row_multiple * std::max(query.heads_q, query.heads_kv) * query.head_dim)
        throw Failure(FVLM_ERROR_UNSUPPORTED, "a row stride of %lld elements exceeds cuDNN's 32-bit ragged offsets",
                      static_cast<long long>(layout.row_stride));
    if (call.flags & FVLM_CAPTURING)
      throw Failure(
          FVLM_ERROR_UNSUPPORTED,
          "no cuDNN plan for tensors with these strides: call once outside of CUDA graph capture to build it");
    return graph(shape);
  }

  Cudnn cudnn_;
  std::mutex mutex_; // requirements() may be called from any thread
  std::map<GraphShape, std::unique_ptr<Graph>> graphs_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("attention-cudnn", "0.1.0", fvlm::plugins::AttentionCudnn)
