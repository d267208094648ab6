// attention.cpp: the plugin's face: which calls it takes, the plans that an instance keeps, what is bound to them.
#include "arrange.h"
#include "even.h"
#include "graphs.h"
#include "one_row.h"

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
  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 9, 0); no.score == 0) return no;
    const bool one_row = query.max_seqlen_q == 1;
    if (!is_one_of<float, BFloat16, Half>(query.dtype) || (query.dtype == float32 && !one_row))
      return refuse("dtype %s not supported%s", sdk::name_of(query.dtype),
                    query.dtype == float32 ? " but for one query a segment" : "");
    if (query.rotary_dim != 0) return refuse("does not rotate: apply RoPE to q and k first (rotary_dim 0)");
    if (query.guests) return refuse("takes no guests");
    if (query.heads_kv < 1 || query.heads_q < 1 || query.heads_q % query.heads_kv != 0)
      return refuse("%d query heads cannot share %d key heads evenly", query.heads_q, query.heads_kv);
    if (query.tokens_q < 0 || query.tokens_kv < 0 || query.segments < 0 || query.max_seqlen_q < 0 ||
        query.max_seqlen_kv < 0)
      return refuse("a negative size");
    if (query.segments > 65535) return refuse("%lld segments not supported", static_cast<long long>(query.segments));
    if (one_row && one_row_fits(query.head_dim, query.heads_q, query.heads_kv))
      return accept(300, "one query a segment, a kernel of its own");
    if (query.dtype == float32) return refuse("float32 with head_dim %d not supported", query.head_dim);
    if (query.queries_alone) return refuse("gradients of queries alone only for one query a segment");
    if (query.head_dim < 8 || query.head_dim > 128 || query.head_dim % 8 != 0)
      return refuse("head_dim %d not supported, multiples of 8 up to 128 are", query.head_dim);
    if (widest_row * std::max(query.tokens_q, query.tokens_kv) * std::max(query.heads_q, query.heads_kv) *
            query.head_dim >
        INT32_MAX)
      return refuse("%lld tokens: offsets of 32 bits do not reach", static_cast<long long>(query.tokens_q));
    return accept(200, "cuDNN %s", "fused attention over ragged segments");
  }

  void requirements(const Query& query, Requirements& wanted) {
    require(supports(query));
    const bool one_row = takes_one_row(query);
    if (query.needs_backward)
      wanted.save(float32, {places(query), query.heads_q, one_row ? int64_t{1} : longest(query.max_seqlen_q)});
    if (one_row || is_empty(query)) return;
    const auto size = [&](bool backward, bool deterministic) {
      Workspace space;
      (void)take(space, query, backward, graph(shape_of(query, usual_layouts(query), backward, deterministic)));
      return space.used();
    };
    wanted.forward_workspace = size(false, false);
    if (query.needs_backward) wanted.backward_workspace = std::max(size(true, false), size(true, true));
  }

  // The plans for the layout that the engine uses; requirements() has built them to know what workspace they want.
  void prepare(const fvlm_call&, const Query& query) {
    require(supports(query));
    if (takes_one_row(query) || is_empty(query)) return;
    (void)graph(shape_of(query, usual_layouts(query), false, false));
    if (!query.needs_backward) return;
    (void)graph(shape_of(query, usual_layouts(query), true, false));
    (void)graph(shape_of(query, usual_layouts(query), true, true));
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& a) {
    require(supports(query));
    const Operands tensors = operands_of(query, a);
    if (takes_one_row(query)) {
      if (query.tokens_q > 0) one_row_forward(call, query.dtype, one_row_problem(query, tensors));
      return;
    }
    run(call, query, tensors, false, {out});
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& a) {
    require(supports(query));
    const Operands tensors = operands_of(query, a);
    if (takes_one_row(query)) {
      if (query.tokens_q + query.tokens_kv > 0) one_row_backward(call, query.dtype, one_row_problem(query, tensors));
      return;
    }
    run(call, query, tensors, true, {d_q, d_k, d_v});
  }

 private:
  // Offsets are elements in 32 bits; rows may be this many times as wide as their heads: a buffer of q, k and v.
  static constexpr int64_t widest_row = 4;

  struct Space {
    std::int32_t *lengths_q, *lengths_kv, *offsets[operand_count];
    Span<char> library;
  };

  static bool takes_one_row(const Query& query) {
    return query.max_seqlen_q == 1 && one_row_fits(query.head_dim, query.heads_q, query.heads_kv);
  }
  static bool is_empty(const Query& query) {
    return query.tokens_q == 0 || query.tokens_kv == 0 || query.segments == 0;
  }
  // Where the tokens are as many as full segments would hold, as a vision tower's are, cuDNN is called as if they were
  // full, a quarter faster; even.h has the two forms, and sees to what the segments are where the query does not say
  // it. 0: neither. Causal ones are text, whose sizes may agree by chance.
  static int even_step(const Query& query) {
    if (query.max_seqlen_q < 64 || query.max_seqlen_kv < 64) return 0;
    if (query.even) return 1;
    if (query.causal) return 0;
    const auto full = [&](int64_t places) { return query.tokens_q == places * query.max_seqlen_q; };
    if (full(query.segments) && query.tokens_kv == query.segments * query.max_seqlen_kv) return 1;
    const int64_t places = query.segments / 2;
    const bool riding = query.segments == 2 * places && full(places) && query.tokens_kv % places == 0 &&
                        query.tokens_kv > places * query.max_seqlen_kv;
    return riding ? 2 : 0;
  }
  // The segments that cuDNN is told of.
  static int64_t places(const Query& query) {
    if (query.even && even_step(query) == 1) return query.tokens_q / query.max_seqlen_q;
    return query.segments / std::max(even_step(query), 1);
  }
  // cuDNN does not take segments of one row on both sides.
  static int64_t longest(int64_t rows) { return std::max<int64_t>(rows, 8); }

  // q, k and v side by side in one buffer where they can be, their gradients too.
  static std::array<Layout, operand_count> usual_layouts(const Query& query) {
    std::array<Layout, operand_count> layouts;
    const bool together = query.tokens_q == query.tokens_kv;
    for (int i = 0; i < operand_count; ++i) {
      const int64_t heads = i == out || i == d_out ? query.heads_q
                            : together             ? query.heads_q + 2 * query.heads_kv
                            : of_keys(i)           ? query.heads_kv
                                                   : query.heads_q;
      layouts[static_cast<std::size_t>(i)] = {heads * query.head_dim, query.head_dim};
    }
    return layouts;
  }

  static GraphShape shape_of(const Query& query, const std::array<Layout, operand_count>& layouts, bool backward,
                             bool deterministic) {
    GraphShape shape;
    shape.backward = backward;
    shape.statistics = !backward && query.needs_backward;
    shape.deterministic = backward && deterministic;
    shape.causal = query.causal != 0;
    shape.bfloat = query.dtype == bfloat16;
    shape.heads_q = query.heads_q;
    shape.heads_kv = query.heads_kv;
    shape.head_dim = query.head_dim;
    shape.segments = places(query);
    shape.even = even_step(query) != 0;
    shape.longest_q = longest(query.max_seqlen_q);
    shape.longest_kv = longest(query.max_seqlen_kv);
    shape.tokens_q = query.tokens_q;
    shape.tokens_kv = query.tokens_kv;
    shape.scale = query.scale;
    for (int i = 0; i < (backward ? operand_count : d_out); ++i) shape.layout[i] = layouts[static_cast<std::size_t>(i)];
    return shape;
  }

  // The graph for a shape, built where there is none yet.
  const Graph& graph(const GraphShape& shape) {
    const std::lock_guard lock(mutex_);
    auto& found = graphs_[shape];
    if (!found) found = std::make_unique<Graph>(cudnn_, shape);
    return *found;
  }

  static Space take(Workspace& workspace, const Query& query, bool backward, const Graph& graph) {
    Space space{};
    space.lengths_q = workspace.take<std::int32_t>(query.segments).data();
    space.lengths_kv = workspace.take<std::int32_t>(query.segments).data();
    for (int i = 0; i < (backward ? operand_count : d_out); ++i)
      space.offsets[i] = workspace.take<std::int32_t>(query.segments + 1).data();
    space.library = workspace.take<char>(static_cast<int64_t>(graph.workspace()));
    return space;
  }

  static ZerosWanted zeros_of(const Query& query, const Operands& tensors, int operand) {
    const HeadRows& rows = tensors.rows[operand];
    const int64_t element = static_cast<int64_t>(bytes_of(query.dtype));
    return {rows.data,
            of_keys(operand) ? query.tokens_kv : query.tokens_q,
            rows.row * element,
            rows.head * element,
            of_keys(operand) ? query.heads_kv : query.heads_q,
            static_cast<int>(query.head_dim * element),
            of_keys(operand) ? Rows::of_kv : Rows::of_q};
  }

  void run(const fvlm_call& call, const Query& query, const Operands& tensors, bool backward,
           std::initializer_list<int> written) {
    Arrangement arrangement;
    arrangement.cu_q = tensors.cu_q;
    arrangement.cu_kv = tensors.cu_kv;
    arrangement.segments = static_cast<int>(query.segments);
    arrangement.causal = query.causal != 0;
    for (const int operand : written) arrangement.zeros[arrangement.zero_count++] = zeros_of(query, tensors, operand);
    if (is_empty(query)) return arrange(call, arrangement);

    std::array<Layout, operand_count> layouts;
    for (std::size_t i = 0; i < operand_count; ++i) layouts[i] = {tensors.rows[i].row, tensors.rows[i].head};
    const GraphShape shape = shape_of(query, layouts, backward, (call.flags & FVLM_DETERMINISTIC) != 0);
    const Graph& plan = plan_for_call(call, query, shape);
    const Graph& usual = graph(shape_of(query, usual_layouts(query), backward, shape.deterministic));
    if (plan.workspace() > usual.workspace()) // of which requirements() knew nothing
      throw Failure(FVLM_ERROR_UNSUPPORTED, "tensors that lie so want %llu bytes of workspace more than usual ones",
                    static_cast<unsigned long long>(plan.workspace() - usual.workspace()));
    Workspace workspace(call);
    const Space space = take(workspace, query, backward, plan);

    void* slots[slot_count] = {};
    constexpr int slot_of[operand_count] = {slot_q, slot_k, slot_v, slot_out, slot_d_out, slot_d_q, slot_d_k, slot_d_v};
    for (int i = 0; i < (backward ? operand_count : d_out); ++i) {
      slots[slot_of[i]] = tensors.rows[i].data;
      slots[slot_offsets + i] = space.offsets[i];
      arrangement.offsets[arrangement.offset_count++] = {space.offsets[i], tensors.rows[i].row,
                                                         of_keys(i) ? Rows::of_kv : Rows::of_q};
    }
    slots[slot_statistics] = tensors.statistics;
    slots[slot_lengths_q] = arrangement.lengths_q = space.lengths_q;
    slots[slot_lengths_kv] = arrangement.lengths_kv = space.lengths_kv;
    cudnn_.set_stream(call.stream);
    if (!shape.even) arrange(call, arrangement);
    plan.run(cudnn_, slots, space.library.data());
    if (!shape.even || query.even) return;
    const EvenProblem problem = even_problem(query, tensors, arrangement);
    backward ? finish_even_backward(call, query.dtype, problem) : finish_even_forward(call, query.dtype, problem);
  }

  static Segments segments_of(const Query& query, const Operands& tensors) {
    Segments all;
    all.cu_q = tensors.cu_q;
    all.cu_kv = tensors.cu_kv;
    all.segments = static_cast<int>(query.segments);
    all.heads_q = query.heads_q;
    all.heads_kv = query.heads_kv;
    all.head_dim = query.head_dim;
    all.tokens_q = query.tokens_q;
    all.tokens_kv = query.tokens_kv;
    all.scale = query.scale;
    all.q = tensors.rows[q], all.k = tensors.rows[k], all.v = tensors.rows[v];
    all.out = tensors.rows[out], all.d_out = tensors.rows[d_out];
    all.d_q = tensors.rows[d_q], all.d_k = tensors.rows[d_k], all.d_v = tensors.rows[d_v];
    return all;
  }

  static OneRowProblem one_row_problem(const Query& query, const Operands& tensors) {
    for (const HeadRows& each : tensors.rows)
      if (const int64_t apart = std::max(each.row, each.head);
          apart > UINT32_MAX / static_cast<int64_t>(bytes_of(query.dtype)))
        throw Failure(FVLM_ERROR_UNSUPPORTED, "rows %lld elements apart: bytes of 32 bits do not reach",
                      static_cast<long long>(apart));
    return {segments_of(query, tensors), tensors.statistics, query.even ? query.max_seqlen_kv : 0};
  }

  static EvenProblem even_problem(const Query& query, const Operands& tensors, const Arrangement& arrangement) {
    EvenProblem problem{segments_of(query, tensors)};
    problem.step = even_step(query);
    problem.longest_q = query.max_seqlen_q;
    problem.longest_kv = query.max_seqlen_kv;
    problem.statistics = tensors.statistics;
    std::copy(arrangement.zeros, arrangement.zeros + arrangement.zero_count, problem.zeros);
    return problem;
  }

  // Tensors that do not lie as prepare() expected get a plan of their own at their first call, which then takes
  // milliseconds; inside a recording there is no time for that.
  const Graph& plan_for_call(const fvlm_call& call, const Query& query, const GraphShape& shape) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = graphs_.find(shape); found != graphs_.end()) return *found->second;
    }
    // cuDNN takes the distance between heads, and writes gradients of ragged segments as if they lay side by side.
    for (const Layout& layout : shape.layout)
      if (layout.head != 0 && layout.head != query.head_dim)
        throw Failure(FVLM_ERROR_UNSUPPORTED, "heads %lld elements apart: they have to lie side by side",
                      static_cast<long long>(layout.head));
    for (const Layout& layout : shape.layout)
      if (layout.row > widest_row * std::max(query.heads_q, query.heads_kv) * query.head_dim)
        throw Failure(FVLM_ERROR_UNSUPPORTED, "rows %lld elements apart: offsets of 32 bits do not reach",
                      static_cast<long long>(layout.row));
    if (call.flags & FVLM_CAPTURING)
      throw Failure(FVLM_ERROR_UNSUPPORTED,
                    "no plan for tensors that lie so: call once outside of a recording, which makes one");
    return graph(shape);
  }

  Cudnn cudnn_;
  std::mutex mutex_; // requirements() may be asked by any thread
  std::map<GraphShape, std::unique_ptr<Graph>> graphs_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("attention-cudnn", "0.1.0", fvlm::plugins::AttentionCudnn)
