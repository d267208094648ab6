// recurrence.cu: the plugin's entry points: which queries it takes, and the checks of each call's operands.
#include "common/cuda_device.h"
#include "common/cuda_operands.h"
#include "delta_rule.h"
#include "short_convolution.h"

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

class RecurrenceCuda : public Kernels {
 public:
  explicit RecurrenceCuda(const fvlm_instance_config& config) : multiprocessors_(multiprocessor_count(config.device)) {}

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    return fits(query);
  }

  // Also checked by every call.
  static Support fits(const Query& query) {
    constexpr std::uint32_t known_options = FVLM_WITH_BACKWARD | FVLM_WITH_BIAS | FVLM_WITH_STATES;
    if (!is_one_of<float, BFloat16, Half>(query.dtype))
      return refuse("dtype %s is not supported", name_of(query.dtype));
    if ((query.options & FVLM_WITH_BACKWARD) && query.gradient_dtype != query.dtype && query.gradient_dtype != float32)
      return refuse("gradients in %s are not supported", name_of(query.gradient_dtype));
    if (query.options & ~known_options) return refuse("options %#x are not supported", query.options);
    if ((query.options & FVLM_WITH_BACKWARD) && (query.options & FVLM_WITH_STATES))
      return refuse("a backward through states is not supported");
    if (query.rows < 0 || query.rows > INT32_MAX || query.width < 0 || query.width > GradientSums::max_width)
      return refuse("%lld rows of width %lld are not supported", static_cast<long long>(query.rows),
                    static_cast<long long>(query.width));
    if (query.segments < 0 || query.segments >= INT32_MAX)
      return refuse("%lld segments are not supported", static_cast<long long>(query.segments));
    if (query.op == FVLM_OP_DELTA_RULE) return fits_delta_rule(query);
    if (query.taps < 1 || query.taps > max_taps)
      return refuse("%d taps are not supported: expected 1 to %d", query.taps, max_taps);
    return accept(300, "rows are read about once, 16 bytes per thread");
  }

  void requirements(const Query& query, Requirements& requirements) const {
    require(fits(query));
    if (!(query.options & FVLM_WITH_BACKWARD)) return;
    Workspace workspace;
    if (query.op == FVLM_OP_DELTA_RULE)
      take_chunks(workspace, query);
    else
      take_parts(workspace, query);
    requirements.backward_workspace = workspace.used();
  }

  void short_convolution_forward(const fvlm_call& call, const Query& query, const fvlm_convolution_forward& a) const {
    require(fits(query));
    Operands operands(query);
    ShortConvolution p = convolution_of(operands, query, a);
    p.y = operands.rows(a.y, "y");
    if (query.options & FVLM_WITH_STATES) {
      p.slots = operands.integers(a.slots, query.segments, "slots");
      p.starts = operands.integers(a.starts, query.segments, "starts");
      p.states = states_of(operands, query, a.states);
    }
    plugins::short_convolution_forward(on(call), operands.shape(), p);
  }

  void short_convolution_backward(const fvlm_call& call, const Query& query, const fvlm_convolution_backward& a) const {
    require(fits(query));
    Operands operands(query);
    const ShortConvolution p = convolution_of(operands, query, a);
    ShortConvolutionGradients gradients{};
    gradients.d_y = operands.rows(a.d_y, "d_y");
    gradients.d_x = operands.rows(a.d_x, "d_x");
    gradients.d_weight = operands.gradient(a.d_weight, {query.width, query.taps}, "d_weight");
    gradients.d_bias = operands.gradient(a.d_bias, "d_bias");
    gradients.type = query.gradient_dtype;
    gradients.accumulate = a.accumulate != 0;
    if (gradients.d_weight || gradients.d_bias) {
      Workspace workspace(call);
      gradients.parts = take_parts(workspace, query);
    }
    plugins::short_convolution_backward(on(call), operands.shape(), p, gradients);
  }

  void delta_rule_forward(const fvlm_call& call, const Query& query, const fvlm_delta_rule_forward& a) const {
    require(fits(query));
    const Operands operands(query);
    DeltaRule p = delta_rule_of(operands, query, a);
    p.y = operands.matrix(a.y, query.width, "y");
    if (query.options & FVLM_WITH_STATES) {
      p.slots = operands.integers(a.slots, query.segments, "slots");
      p.starts = operands.integers(a.starts, query.segments, "starts");
      const int64_t slots = a.states && a.states->ndim == 4 ? a.states->shape[0] : 0;
      p.states = static_cast<float*>(
          operands.contiguous(a.states, float32, {slots, query.heads, query.key_dim, query.head_dim}, "states"));
      p.wide_states = reinterpret_cast<std::uintptr_t>(p.states) % widest_access == 0;
    }
    plugins::delta_rule_forward(stream_of(call), p, nullptr);
  }

  void delta_rule_backward(const fvlm_call& call, const Query& query, const fvlm_delta_rule_backward& a) const {
    require(fits(query));
    const Operands operands(query);
    const DeltaRule p = delta_rule_of(operands, query, a);
    DeltaRuleGradients gradients{};
    gradients.d_y = operands.matrix(a.d_y, query.width, "d_y");
    gradients.d_qkv = operands.matrix(a.d_qkv, qkv_width(query), "d_qkv");
    gradients.d_gates = operands.matrix(a.d_gates, int64_t{2} * query.heads, "d_gates");
    gradients.d_log_decay = operands.gradient(a.d_log_decay, {query.heads}, "d_log_decay");
    gradients.d_step_bias = operands.gradient(a.d_step_bias, {query.heads}, "d_step_bias");
    gradients.gradient = query.gradient_dtype;
    gradients.accumulate = a.accumulate != 0;
    Workspace workspace(call);
    const DeltaRuleChunks chunks = take_chunks(workspace, query);
    plugins::delta_rule_forward(stream_of(call), p, &chunks);
    plugins::delta_rule_backward(stream_of(call), p, chunks, gradients);
  }

 private:
  static Support fits_delta_rule(const Query& query) {
    if ((query.options & FVLM_WITH_BACKWARD) && query.dtype == float32)
      return refuse("the gradients multiply 16-bit numbers; %s is not supported", name_of(query.dtype));
    if (query.key_dim != delta_rule_dim || query.head_dim != delta_rule_dim)
      return refuse("states of %d x %d are not supported: expected %d x %d", query.key_dim, query.head_dim,
                    delta_rule_dim, delta_rule_dim);
    if (query.key_heads < 1 || query.heads % query.key_heads != 0 || query.heads > UINT16_MAX ||
        int64_t{query.heads} * query.head_dim != query.width)
      return refuse("%d heads of %d, of %d of keys, in %lld columns are not supported", query.heads, query.head_dim,
                    query.key_heads, static_cast<long long>(query.width));
    if (query.options & FVLM_WITH_BIAS) return refuse("a bias is not supported");
    return accept(300, "states stay in registers from row to row");
  }

  static int64_t qkv_width(const Query& query) { return int64_t{2} * query.key_heads * query.key_dim + query.width; }

  template <class Arguments>
  static DeltaRule delta_rule_of(const Operands& operands, const Query& query, const Arguments& a) {
    DeltaRule p{};
    p.qkv = operands.matrix(a.qkv, qkv_width(query), "qkv");
    p.gates = operands.matrix(a.gates, int64_t{2} * query.heads, "gates");
    p.log_decay = operands.contiguous(a.log_decay, query.dtype, {query.heads}, "log_decay");
    p.step_bias = operands.contiguous(a.step_bias, query.dtype, {query.heads}, "step_bias");
    p.cu_seqlens = operands.integers(a.cu_seqlens, query.segments + 1, "cu_seqlens");
    p.dtype = query.dtype;
    p.rows = query.rows;
    p.segments = static_cast<int>(query.segments);
    p.key_heads = query.key_heads, p.heads = query.heads;
    return p;
  }

  static DeltaRuleChunks take_chunks(Workspace& workspace, const Query& query) {
    const int64_t heads_of_chunks = DeltaRuleChunks::count(query.rows, query.segments) * query.heads,
                  states = heads_of_chunks * query.key_dim * query.head_dim, rows = query.rows * query.width;
    const auto take = [&](int64_t count) { return workspace.take<BFloat16>(count).data(); }; // or as many of float16
    DeltaRuleChunks chunks{};
    chunks.before = take(states), chunks.d_behind = take(states);
    chunks.errors = take(rows), chunks.d_added = take(rows);
    chunks.sums = workspace.take<float>(2 * heads_of_chunks).data();
    return chunks;
  }

  Device on(const fvlm_call& call) const { return {stream_of(call), multiprocessors_}; }

  float* take_parts(Workspace& workspace, const Query& query) const {
    const int64_t parts = max_convolution_parts({nullptr, multiprocessors_}, query.rows, query.width);
    return workspace.take<float>(parts * (query.taps + 1) * query.width).data();
  }

  // What forward and backward read alike.
  template <class Arguments>
  static ShortConvolution convolution_of(Operands& operands, const Query& query, const Arguments& a) {
    ShortConvolution p{};
    p.x = operands.rows(a.x, "x");
    p.weight = operands.parameter(a.weight, {query.width, query.taps}, "weight");
    if (query.options & FVLM_WITH_BIAS) p.bias = operands.parameter(a.bias, "bias");
    p.cu_seqlens = operands.integers(a.cu_seqlens, query.segments + 1, "cu_seqlens");
    p.segments = static_cast<int>(query.segments);
    p.taps = query.taps;
    return p;
  }

  static ConvolutionStates states_of(Operands& operands, const Query& query, const fvlm_tensor* states) {
    const char* const name = "states";
    if (!states) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
    if (states->dtype != query.dtype || states->ndim != 3 || states->shape[1] != query.taps - 1 ||
        states->shape[2] != query.width || (query.width > 1 && states->strides[2] != 1))
      throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s [slots, %d, %lld] with contiguous rows", name,
                    name_of(query.dtype), query.taps - 1, static_cast<long long>(query.width));
    operands.check_alignment(states->data, states->strides[0]);
    operands.check_alignment(states->data, states->strides[1]);
    return {states->data, states->strides[0], states->strides[1]};
  }

  int multiprocessors_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("recurrence-cuda", "0.1.0", fvlm::plugins::RecurrenceCuda)
