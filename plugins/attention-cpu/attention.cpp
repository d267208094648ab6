// attention.cpp: the plugin: which problems it supports, and how a call is split into tasks.
#include "attention_kernels.h"
#include "common/tasks.h"

#include <fvlm/fvlm.hpp>

#include <algorithm>
#include <limits>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;

// Upper bound of query rows per forward task: one long segment then has work for every thread.
constexpr int64_t rows_per_task = 480;
constexpr int64_t whole_segment = std::numeric_limits<int32_t>::max();
// Multiplications that are worth another thread, for the few rows of a decoding step.
constexpr int64_t work_per_thread = 1 << 17;

struct PlannedTask {
  AttentionTask task;
  int64_t cost;
};

HeadRows rows_of(const fvlm_tensor* tensor, const fvlm_attention_query& query, bool keys, const char* name) {
  if (!tensor) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  const int64_t tokens = keys ? query.tokens_kv : query.tokens_q;
  const int64_t heads = keys ? query.heads_kv : query.heads_q;
  if (tensor->dtype != query.dtype || tensor->ndim != 3 || tensor->shape[0] != tokens || tensor->shape[1] != heads ||
      tensor->shape[2] != query.head_dim)
    throw Failure(FVLM_ERROR_ARGUMENT, "%s is not %s [%lld, %lld, %d]", name, sdk::name_of(query.dtype),
                  static_cast<long long>(tokens), static_cast<long long>(heads), static_cast<int>(query.head_dim));
  if (query.head_dim > 1 && tensor->strides[2] != 1)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: its last dimension must be contiguous", name);
  return {tensor->data, tensor->strides[0], tensor->strides[1]};
}

HeadRows pages_of(const fvlm_tensor* tensor, const fvlm_paged_attention_query& query, const char* name) {
  if (!tensor) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != query.dtype || tensor->ndim != 4 || tensor->shape[0] != query.pages ||
      tensor->shape[1] != query.page_rows || tensor->shape[2] != query.heads_kv || tensor->shape[3] != query.head_dim)
    throw Failure(FVLM_ERROR_ARGUMENT, "%s is not %s [%lld, %d, %d, %d]", name, sdk::name_of(query.dtype),
                  static_cast<long long>(query.pages), query.page_rows, query.heads_kv, query.head_dim);
  if (query.head_dim > 1 && tensor->strides[3] != 1)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: its last dimension must be contiguous", name);
  return {tensor->data, tensor->strides[1], tensor->strides[2], tensor->strides[0]};
}

// The part of a query over pages that describes q and out.
fvlm_attention_query packed_query(const fvlm_paged_attention_query& query) {
  fvlm_attention_query packed{};
  packed.struct_size = sizeof packed;
  packed.causal = 1;
  packed.device = query.device;
  packed.dtype = query.dtype;
  packed.heads_q = query.heads_q;
  packed.heads_kv = query.heads_kv;
  packed.head_dim = query.head_dim;
  packed.max_seqlen_q = static_cast<int32_t>(std::min(query.rows, rows_per_task));
  packed.max_seqlen_kv = static_cast<int32_t>(query.max_pages * query.page_rows);
  packed.tokens_q = query.rows;
  packed.segments = query.rows; // at most one for each row
  packed.scale = query.scale;
  return packed;
}

class AttentionCpu : public Attention {
 public:
  static constexpr std::uint32_t features = FVLM_ATTENTION_PARTIAL;
  explicit AttentionCpu(const fvlm_instance_config& config)
      : host_(config.host), kernels_(attention_kernels(cpu_level())) {}

  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return refuse("runs on the CPU only");
    if (!is_one_of<float, BFloat16>(query.dtype)) return refuse("dtype %s not supported", sdk::name_of(query.dtype));
    if (query.rotary_dim != 0)
      return refuse("rotary_dim %d not supported: apply RoPE to q and k first", query.rotary_dim);
    if (query.guests || query.queries_alone)
      return refuse("extra queries and dq only (guests, queries_alone) not supported");
    if (query.heads_kv < 1 || query.heads_q < 1 || query.heads_q % query.heads_kv != 0)
      return refuse("%d query heads are not a multiple of %d key heads", query.heads_q, query.heads_kv);
    if (query.head_dim < 1 || query.head_dim > 512)
      return refuse("head_dim %d not supported: expected 1 to 512", query.head_dim);
    return accept(300, "online softmax by tiles, %s", name_of(cpu_level()));
  }

  void requirements(const Query& query, Requirements& requirements) const {
    require(supports(query));
    const AttentionProblem problem = problem_of(query);
    Workspace forward_space, backward_space;
    (void)take(forward_space, query, rows_per_task, kernels_.forward_scratch(problem));
    requirements.forward_workspace = forward_space.used();
    if (!query.needs_backward) return;
    (void)take(backward_space, query, whole_segment, kernels_.backward_scratch(problem));
    requirements.backward_workspace = backward_space.used();
    requirements.save(float32, {query.tokens_q, query.heads_q});
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& a) {
    require(supports(query));
    AttentionProblem problem = problem_of(query);
    problem.q = rows_of(a.q, query, false, "q");
    problem.k = rows_of(a.k, query, true, "k");
    problem.v = rows_of(a.v, query, true, "v");
    problem.out = rows_of(a.out, query, false, "out");
    if (query.needs_backward) problem.log_sum_exp = View<float, 2>(a.saved[0], "saved[0]").data();
    const View<const int32_t, 1> cu_q(a.cu_seqlens_q, "cu_seqlens_q"), cu_kv(a.cu_seqlens_kv, "cu_seqlens_kv");
    const int64_t scratch_floats = kernels_.forward_scratch(problem);
    Workspace workspace(call);
    const Space space = take(workspace, query, rows_per_task, scratch_floats);
    const int64_t count = plan_tasks(query, cu_q, cu_kv, rows_per_task, space.tasks);
    run_tasks(host_, count, [&](int worker, int64_t task) {
      kernels_.forward(problem, space.tasks[task].task, space.scratch.data() + worker * scratch_floats);
    });
    clear_padding(query, problem.out, cu_q, query.tokens_q, query.heads_q);
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& a) {
    require(supports(query));
    if (!query.needs_backward)
      throw Failure(FVLM_ERROR_ARGUMENT, "backward was called for a query with needs_backward 0");
    AttentionProblem problem = problem_of(query);
    problem.q = rows_of(a.q, query, false, "q");
    problem.k = rows_of(a.k, query, true, "k");
    problem.v = rows_of(a.v, query, true, "v");
    problem.out = rows_of(a.out, query, false, "out");
    problem.d_out = rows_of(a.d_out, query, false, "d_out");
    problem.d_q = rows_of(a.d_q, query, false, "d_q");
    problem.d_k = rows_of(a.d_k, query, true, "d_k");
    problem.d_v = rows_of(a.d_v, query, true, "d_v");
    problem.log_sum_exp = const_cast<float*>(View<const float, 2>(a.saved[0], "saved[0]").data());
    const View<const int32_t, 1> cu_q(a.cu_seqlens_q, "cu_seqlens_q"), cu_kv(a.cu_seqlens_kv, "cu_seqlens_kv");
    const int64_t scratch_floats = kernels_.backward_scratch(problem);
    Workspace workspace(call);
    const Space space = take(workspace, query, whole_segment, scratch_floats);
    const int64_t count = plan_tasks(query, cu_q, cu_kv, whole_segment, space.tasks);
    run_tasks(host_, count, [&](int worker, int64_t task) {
      kernels_.backward(problem, space.tasks[task].task, space.scratch.data() + worker * scratch_floats);
    });
    clear_padding(query, problem.d_q, cu_q, query.tokens_q, query.heads_q);
    clear_padding(query, problem.d_k, cu_kv, query.tokens_kv, query.heads_kv);
    clear_padding(query, problem.d_v, cu_kv, query.tokens_kv, query.heads_kv);
  }

  static Support supports_paged(const PagedQuery& query) {
    if (query.page_rows < 1 || query.page_rows % 16 != 0)
      return refuse("page_rows %d not supported: expected a multiple of 16", query.page_rows);
    if (query.max_pages < 0 || query.max_pages * query.page_rows > std::numeric_limits<int32_t>::max())
      return refuse("sequences of %lld pages not supported", static_cast<long long>(query.max_pages));
    return supports(packed_query(query));
  }

  void requirements_paged(const PagedQuery& query, Requirements& requirements) const {
    require(supports_paged(query));
    const Query packed = packed_query(query);
    Workspace space;
    (void)take(space, packed, rows_per_task, kernels_.forward_scratch(problem_of(packed)));
    requirements.forward_workspace = space.used();
  }

  void forward_paged(const fvlm_call& call, const PagedQuery& query, const Paged& a) {
    require(supports_paged(query));
    const Query packed = packed_query(query);
    AttentionProblem problem = problem_of(packed);
    problem.page_rows = query.page_rows;
    problem.q = rows_of(a.q, packed, false, "q");
    problem.out = rows_of(a.out, packed, false, "out");
    problem.k = pages_of(a.k_pages, query, "k_pages");
    problem.v = pages_of(a.v_pages, query, "v_pages");
    const int64_t scratch_floats = kernels_.forward_scratch(problem);
    Workspace workspace(call);
    const Space space = take(workspace, packed, rows_per_task, scratch_floats);
    const int64_t count = plan_paged_tasks(query, packed, a, problem.out, space.tasks);
    int64_t work = 0;
    for (int64_t task = 0; task < count; ++task)
      work += space.tasks[task].cost * (query.heads_q / query.heads_kv) * 2 * query.head_dim;
    run_tasks(
        host_, count,
        [&](int worker, int64_t task) {
          kernels_.forward(problem, space.tasks[task].task, space.scratch.data() + worker * scratch_floats);
        },
        1 + work / work_per_thread);
  }

 private:
  struct Space {
    Span<PlannedTask> tasks;
    Span<float> scratch;
  };

  static AttentionProblem problem_of(const Query& query) {
    AttentionProblem problem{};
    problem.is_bfloat16 = query.dtype == bfloat16;
    problem.causal = query.causal != 0;
    problem.heads_q = query.heads_q;
    problem.heads_kv = query.heads_kv;
    problem.head_dim = query.head_dim;
    problem.max_seqlen_q = query.max_seqlen_q;
    problem.max_seqlen_kv = query.max_seqlen_kv;
    problem.scale = query.scale;
    return problem;
  }

  // The layout of the workspace: the tasks, and a scratch area per worker.
  Space take(Workspace& space, const Query& query, int64_t max_rows, int64_t scratch_floats) const {
    const int64_t max_tasks = query.heads_kv * (query.segments + query.tokens_q / max_rows);
    return {space.take<PlannedTask>(max_tasks), space.take<float>(workers(host_) * scratch_floats)};
  }

  // Splits the call into tasks, the most expensive ones first, and returns their number.
  static int64_t plan_tasks(const Query& query, const View<const int32_t, 1>& cu_q, const View<const int32_t, 1>& cu_kv,
                            int64_t max_rows, Span<PlannedTask> tasks) {
    check_segments(cu_q, query.segments, query.tokens_q, query.max_seqlen_q, "cu_seqlens_q");
    check_segments(cu_kv, query.segments, query.tokens_kv, query.max_seqlen_kv, "cu_seqlens_kv");
    std::size_t count = 0;
    for (int64_t s = 0; s < query.segments; ++s) {
      const int64_t q_total = cu_q(s + 1) - cu_q(s), kv_count = cu_kv(s + 1) - cu_kv(s);
      // At least one task per segment: keys without queries have gradients too, which are 0.
      for (int64_t first = 0; first == 0 || first < q_total; first += max_rows) {
        const int64_t rows = std::min(max_rows, q_total - first);
        const int64_t masked_keys = query.causal ? std::max<int64_t>(0, q_total - first - rows / 2) : 0;
        for (int head = 0; head < query.heads_kv; ++head)
          tasks[count++] = {{cu_q(s) + first, rows, first, q_total, cu_kv(s), kv_count, head},
                            rows * std::max<int64_t>(1, kv_count - masked_keys)};
      }
    }
    std::sort(tasks.begin(), tasks.begin() + count,
              [](const PlannedTask& a, const PlannedTask& b) { return a.cost > b.cost; });
    return static_cast<int64_t>(count);
  }

  // A task is a key head and a run of rows that follow each other in one sequence, which is one row for each sequence
  // that is continued, and many for a prompt. Clears padding rows.
  static int64_t plan_paged_tasks(const PagedQuery& query, const Query& packed, const Paged& a, const HeadRows& out,
                                  Span<PlannedTask> tasks) {
    const View<const int32_t, 1> sequences(a.sequences, "sequences"), lengths(a.lengths, "lengths");
    const View<const int32_t, 2> table(a.page_table, "page_table");
    if (sequences.size(0) != query.rows || lengths.size(0) != query.rows || table.size(0) != query.sequences ||
        table.size(1) != query.max_pages)
      throw Failure(FVLM_ERROR_ARGUMENT, "sequences, lengths or page_table have other shapes than the query");
    std::size_t count = 0;
    for (int64_t first = 0, end = 0; first < query.rows; first = end) {
      end = first + 1;
      if (lengths(first) == 0) {
        clear_row(packed, out, first, query.heads_q);
        continue;
      }
      const int32_t sequence = sequences(first);
      while (end < query.rows && end - first < rows_per_task && sequences(end) == sequence &&
             lengths(end) == lengths(end - 1) + 1)
        ++end;
      check_pages(query, table, sequence, lengths(end - 1), first);
      const int64_t rows = end - first, keys = lengths(end - 1);
      for (int head = 0; head < query.heads_kv; ++head)
        tasks[count++] = {{first, rows, 0, rows, 0, keys, head, table.data() + sequence * query.max_pages},
                          rows * keys};
    }
    std::sort(tasks.begin(), tasks.begin() + count,
              [](const PlannedTask& a, const PlannedTask& b) { return a.cost > b.cost; });
    return static_cast<int64_t>(count);
  }

  static void check_pages(const PagedQuery& query, const View<const int32_t, 2>& table, int32_t sequence, int64_t keys,
                          int64_t row) {
    if (sequence < 0 || sequence >= query.sequences || keys < 0 || keys > query.max_pages * query.page_rows)
      throw Failure(FVLM_ERROR_ARGUMENT, "row %lld: %lld keys of sequence %d", static_cast<long long>(row),
                    static_cast<long long>(keys), sequence);
    for (int64_t page = 0; page * query.page_rows < keys; ++page)
      if (table(sequence, page) < 0 || table(sequence, page) >= query.pages)
        throw Failure(FVLM_ERROR_ARGUMENT, "page_table: page %d of %lld", table(sequence, page),
                      static_cast<long long>(query.pages));
  }

  static void check_segments(const View<const int32_t, 1>& cu, int64_t segments, int64_t tokens, int64_t max_seqlen,
                             const char* name) {
    if (cu.size(0) != segments + 1 || cu(0) != 0 || cu(segments) > tokens)
      throw Failure(FVLM_ERROR_ARGUMENT, "%s: %lld entries from %d to %d, for %lld segments of %lld tokens", name,
                    static_cast<long long>(cu.size(0)), cu(0), cu(segments), static_cast<long long>(segments),
                    static_cast<long long>(tokens));
    for (int64_t s = 0; s < segments; ++s)
      if (cu(s + 1) < cu(s) || cu(s + 1) - cu(s) > max_seqlen)
        throw Failure(FVLM_ERROR_ARGUMENT, "%s: segment %lld has %d rows, at most %lld are allowed", name,
                      static_cast<long long>(s), cu(s + 1) - cu(s), static_cast<long long>(max_seqlen));
  }

  static void clear_padding(const Query& query, const HeadRows& rows, const View<const int32_t, 1>& cu, int64_t tokens,
                            int64_t heads) {
    for (int64_t row = cu(query.segments); row < tokens; ++row) clear_row(query, rows, row, heads);
  }

  static void clear_row(const Query& query, const HeadRows& rows, int64_t row, int64_t heads) {
    const std::size_t width = bytes_of(query.dtype);
    for (int64_t head = 0; head < heads; ++head)
      std::memset(static_cast<char*>(rows.data) + static_cast<std::size_t>(row * rows.row + head * rows.head) * width,
                  0, static_cast<std::size_t>(query.head_dim) * width);
  }

  const fvlm_host* host_;
  const AttentionKernels& kernels_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("attention-cpu", "0.1.0", fvlm::plugins::AttentionCpu)
