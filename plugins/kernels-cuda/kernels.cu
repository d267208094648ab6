// kernels.cu: the plugin's entry points: checks the operands of each call and whether they can be accessed 16 bytes at
// a time.
#include "common/cuda_device.h"
#include "common/cuda_operands.h"
#include "common/norm_heads.h"
#include "common/packed_weight.h"
#include "experts.h"
#include "launches.h"

#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

// Options that this plugin knows; queries with others are refused.
constexpr std::uint32_t known_options = FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL | FVLM_WITH_BIAS | FVLM_WITH_GELU |
                                        FVLM_WITH_COLUMN_SUMS | FVLM_COMPENSATED | FVLM_WITH_FREQUENCIES |
                                        FVLM_PER_HEAD | FVLM_WITH_OUTPUT | FVLM_WITH_GATE;

// Operands (common/cuda_operands.h) for a stack of linears.
class LinearStack {
 public:
  explicit LinearStack(const fvlm_kernels_query& query) : query_(query) {
    p_.matrices = query.rows;
    p_.width = query.width;
    p_.inner = query.inner;
    p_.dtype = query.dtype;
    p_.gradient = query.gradient_dtype;
    p_.vectorized = query.inner % pack() == 0;
  }

  Rows vectors(const fvlm_tensor* tensor, fvlm_dtype dtype, const char* name) const {
    const std::int64_t shape[] = {query_.rows, query_.width};
    check(tensor, dtype, shape, 2, name);
    return {tensor->data, tensor->strides[0]};
  }
  Matrices matrices(const fvlm_tensor* tensor, fvlm_dtype dtype, const char* name) {
    const std::int64_t shape[] = {query_.rows, query_.width, query_.inner};
    check(tensor, dtype, shape, 3, name);
    const std::uintptr_t bytes = static_cast<std::uintptr_t>(pack()) * bytes_of(dtype);
    p_.vectorized = p_.vectorized && reinterpret_cast<std::uintptr_t>(tensor->data) % bytes == 0;
    for (int i = 0; i < 2; ++i)
      if (shape[i] > 1) p_.vectorized = p_.vectorized && tensor->strides[i] % pack() == 0;
    return {tensor->data, tensor->strides[0], tensor->strides[1]};
  }

  plugins::FoldRowScale& problem() { return p_; }

 private:
  std::int64_t pack() const { return widest_access / static_cast<std::int64_t>(bytes_of(query_.dtype)); }

  static void check(const fvlm_tensor* tensor, fvlm_dtype dtype, const std::int64_t* shape, int dims,
                    const char* name) {
    if (!tensor) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
    bool fits = tensor->dtype == dtype && tensor->ndim == dims;
    for (int i = 0; fits && i < dims; ++i) fits = tensor->shape[i] == shape[i];
    if (!fits)
      throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s for %lld linears of %lld outputs", name, name_of(dtype),
                    static_cast<long long>(shape[0]), static_cast<long long>(shape[1]));
    if (shape[dims - 1] > 1 && tensor->strides[dims - 1] != 1)
      throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: rows have to be contiguous", name);
  }

  const fvlm_kernels_query& query_;
  plugins::FoldRowScale p_{};
};

class KernelsCuda : public Kernels {
 public:
  explicit KernelsCuda(const fvlm_instance_config& config)
      : multiprocessors_(multiprocessor_count(config.device)), has_clusters_(norms_use_clusters(config.device)) {}

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    return fits(query);
  }

  // Also checked by every call.
  static Support fits(const Query& query) {
    if (query.op == FVLM_OP_EXPERTS) return fits_experts(query);
    if (!is_one_of<float, BFloat16, Half>(query.dtype))
      return refuse("dtype %s is not supported", name_of(query.dtype));
    if ((query.options & FVLM_WITH_BACKWARD) && query.gradient_dtype != query.dtype && query.gradient_dtype != float32)
      return refuse("gradients in %s are not supported", name_of(query.gradient_dtype));
    const std::uint32_t forms = query.op == FVLM_OP_BIAS_GELU ? gelu_forms
                                : query.op == FVLM_OP_SWIGLU  ? FVLM_GELU_TANH
                                                              : 0;
    const std::uint32_t form = query.options & forms;
    if (form == gelu_forms) return refuse("quick_gelu and gelu_tanh are mutually exclusive");
    if (query.options & ~(known_options | form)) return refuse("options %#x are not supported", query.options);
    if ((query.options & FVLM_WITH_FREQUENCIES) && query.op != FVLM_OP_ROPE)
      return refuse("frequencies are rope's; options %#x are not supported", query.options);
    if ((query.options & FVLM_WITH_OUTPUT) && query.op != FVLM_OP_SWIGLU)
      return refuse("an output of backward is swiglu's; options %#x are not supported", query.options);
    if (query.rows < 0 || query.width < 0 || query.width > GradientSums::max_width)
      return refuse("%lld rows of width %lld are not supported", static_cast<long long>(query.rows),
                    static_cast<long long>(query.width));
    if (query.op == FVLM_OP_ROPE) {
      if (query.rotary_dim < 0 || query.rotary_dim % 2 != 0 || query.rotary_dim > query.head_dim)
        return refuse("rotary_dim %d is not supported with head_dim %d: expected an even number up to head_dim",
                      query.rotary_dim, query.head_dim);
      if (query.rotary_dim > 1024) return refuse("rotary_dim %d is not supported: the limit is 1024", query.rotary_dim);
    }
    if ((query.options & FVLM_PER_HEAD) &&
        (query.op != FVLM_OP_RMSNORM || (query.options & (FVLM_WITH_RESIDUAL | FVLM_COMPENSATED)) ||
         query.head_dim < 1 || int64_t{query.heads} * query.head_dim != query.width ||
         query.rows * query.heads > INT32_MAX))
      return refuse("%lld rows of %d heads of %d in %lld columns are not supported", static_cast<long long>(query.rows),
                    query.heads, query.head_dim, static_cast<long long>(query.width));
    if ((query.options & FVLM_WITH_GATE) && (!(query.options & FVLM_PER_HEAD) || query.head_dim > max_gated_head))
      return refuse("a gate of heads of %d is not supported: the limit is %d", query.head_dim, max_gated_head);
    if (query.op == FVLM_OP_RMSNORM && (query.options & FVLM_WITH_COLUMN_SUMS))
      return refuse("column sums of d_x are not supported");
    if (query.op == FVLM_OP_FOLD_ROW_SCALE && query.inner < 0)
      return refuse("rows of width %lld are not supported", static_cast<long long>(query.inner));
    return accept(300, "one pass, 16 bytes per thread");
  }

  void requirements(const Query& all, Requirements& requirements) const {
    require(fits(all));
    if (all.op == FVLM_OP_EXPERTS) {
      Workspace workspace;
      (void)experts_of(workspace, all);
      requirements.forward_workspace = workspace.used();
      return;
    }
    const Query query = norms_of(all);
    if (!(query.options & FVLM_WITH_BACKWARD)) return;
    const bool layernorm = query.op == FVLM_OP_LAYERNORM, norm = layernorm || query.op == FVLM_OP_RMSNORM;
    if (norm) requirements.save(float32, {query.rows});      // 1 / standard deviation
    if (layernorm) requirements.save(float32, {query.rows}); // mean
    if (!norm && query.op != FVLM_OP_BIAS_GELU && query.op != FVLM_OP_LAYERSCALE_RESIDUAL) return;
    Workspace workspace;
    GradientSums().allocate(workspace, query.width, parameter_count(query), multiprocessors_,
                            norm ? full_width_parts(query) : 0);
    requirements.backward_workspace = workspace.used();
  }

  void rmsnorm_forward(const fvlm_call& call, const Query& query, const fvlm_norm_forward& a) const {
    norm_forward(call, query, a, false);
  }
  void layernorm_forward(const fvlm_call& call, const Query& query, const fvlm_norm_forward& a) const {
    norm_forward(call, query, a, true);
  }
  void rmsnorm_backward(const fvlm_call& call, const Query& query, const fvlm_norm_backward& a) const {
    norm_backward(call, query, a, false);
  }
  void layernorm_backward(const fvlm_call& call, const Query& query, const fvlm_norm_backward& a) const {
    norm_backward(call, query, a, true);
  }

  void rope(const fvlm_call& call, const Query& query, const fvlm_rope_apply& a) const {
    require(fits(query));
    Operands operands(query);
    plugins::Rope p{};
    p.x = operands.heads(a.x, p.x_head, "x");
    p.out = operands.heads(a.out, p.out_head, "out");
    operands.require_wide(query.rotary_dim / 2);
    operands.require_wide(query.head_dim - query.rotary_dim);
    const View<const std::int32_t, 1> positions(a.positions, "positions");
    if (positions.size(0) != query.rows)
      throw Failure(FVLM_ERROR_ARGUMENT, "positions has %lld entries, expected %lld",
                    static_cast<long long>(positions.size(0)), static_cast<long long>(query.rows));
    p.positions = positions.data();
    p.positions_stride = positions.stride(0);
    p.rows = query.rows;
    p.heads = query.heads;
    p.head_dim = query.head_dim;
    p.rotary_dim = query.rotary_dim;
    p.log2_theta = std::log2(static_cast<double>(query.rope_theta));
    if (query.options & FVLM_WITH_FREQUENCIES) {
      const View<const double, 1> frequencies(a.frequencies, "frequencies");
      if (2 * frequencies.size(0) != query.rotary_dim || (frequencies.size(0) > 1 && frequencies.stride(0) != 1))
        throw Failure(FVLM_ERROR_ARGUMENT, "frequencies: expected %d contiguous entries", query.rotary_dim / 2);
      p.frequencies = frequencies.data();
    }
    p.inverse = a.inverse != 0;
    plugins::rope(on(call), query.dtype, operands.vectorized(), p);
  }

  void scaled_rows_forward(const fvlm_call& call, const Query& query, const fvlm_scaled_rows_forward& a) const {
    require(fits(query));
    LinearStack stack(query);
    plugins::FoldRowScale& p = stack.problem();
    p.scale = stack.vectors(a.scale, query.dtype, "scale");
    p.weight = stack.matrices(a.weight, query.dtype, "weight");
    p.bias = stack.vectors(a.bias, query.dtype, "bias");
    p.scaled_weight = stack.matrices(a.scaled_weight, query.dtype, "scaled_weight");
    p.scaled_bias = stack.vectors(a.scaled_bias, query.dtype, "scaled_bias");
    plugins::fold_row_scale_forward(on(call), p);
  }

  void scaled_rows_backward(const fvlm_call& call, const Query& query, const fvlm_scaled_rows_backward& a) const {
    require(fits(query));
    LinearStack stack(query);
    plugins::FoldRowScale& p = stack.problem();
    p.scale = stack.vectors(a.scale, query.dtype, "scale");
    p.weight = stack.matrices(a.weight, query.dtype, "weight");
    p.bias = stack.vectors(a.bias, query.dtype, "bias");
    if (a.d_scale || a.d_weight) p.scaled_weight = stack.matrices(a.d_scaled_weight, float32, "d_scaled_weight");
    if (a.d_scale || a.d_bias) p.scaled_bias = stack.vectors(a.d_scaled_bias, float32, "d_scaled_bias");
    if (a.d_scale) p.d_scale = stack.vectors(a.d_scale, query.gradient_dtype, "d_scale");
    if (a.d_weight) p.d_weight = stack.matrices(a.d_weight, query.gradient_dtype, "d_weight");
    if (a.d_bias) p.d_bias = stack.vectors(a.d_bias, query.gradient_dtype, "d_bias");
    p.accumulate = a.accumulate != 0;
    plugins::fold_row_scale_backward(on(call), p);
  }

  void swiglu_forward(const fvlm_call& call, const Query& query, const fvlm_swiglu_forward& a) const {
    require(fits(query));
    Operands operands(query);
    Swiglu p = swiglu_of(query);
    p.gate = operands.rows(a.gate, "gate");
    p.up = operands.rows(a.up, "up");
    p.y = operands.rows(a.y, "y");
    plugins::swiglu_forward(on(call), operands.shape(), p);
  }

  void swiglu_backward(const fvlm_call& call, const Query& query, const fvlm_swiglu_backward& a) const {
    require(fits(query));
    Operands operands(query);
    Swiglu p = swiglu_of(query);
    p.gate = operands.rows(a.gate, "gate");
    p.up = operands.rows(a.up, "up");
    p.d_y = operands.rows(a.d_y, "d_y");
    p.d_gate = operands.rows(a.d_gate, "d_gate");
    p.d_up = operands.rows(a.d_up, "d_up");
    if (query.options & FVLM_WITH_OUTPUT) p.y = operands.rows(a.y, "y");
    plugins::swiglu_backward(on(call), operands.shape(), p);
  }

  void bias_gelu_forward(const fvlm_call& call, const Query& query, const fvlm_bias_gelu_forward& a) const {
    require(fits(query));
    Operands operands(query);
    BiasGelu p{};
    p.form = gelu_form_of(query.options);
    p.bias = a.bias ? operands.parameter(a.bias, "bias") : nullptr;
    p.x = operands.rows(a.x, "x");
    p.y = operands.rows(a.y, "y");
    plugins::bias_gelu_forward(on(call), operands.shape(), p);
  }

  void bias_gelu_backward(const fvlm_call& call, const Query& query, const fvlm_bias_gelu_backward& a) const {
    require(fits(query));
    Operands operands(query);
    BiasGelu p{};
    p.form = gelu_form_of(query.options);
    p.bias = a.bias ? operands.parameter(a.bias, "bias") : nullptr;
    p.x = operands.rows(a.x, "x");
    p.d_y = operands.rows(a.d_y, "d_y");
    p.d_x = operands.rows(a.d_x, "d_x");
    const GradientSums sums = sums_of(call, query, {operands.gradient(a.d_bias, "d_bias")}, a.accumulate);
    plugins::bias_gelu_backward(on(call), operands.shape(), p, sums);
  }

  void layerscale_forward(const fvlm_call& call, const Query& query, const fvlm_layerscale_forward& a) const {
    require(fits(query));
    Operands operands(query);
    Layerscale p{};
    p.scale = operands.parameter(a.scale, "scale");
    p.x = operands.rows(a.x, "x");
    p.residual = operands.rows(a.residual, "residual");
    p.y = operands.rows(a.y, "y");
    plugins::layerscale_forward(on(call), operands.shape(), p);
  }

  void layerscale_backward(const fvlm_call& call, const Query& query, const fvlm_layerscale_backward& a) const {
    require(fits(query));
    Operands operands(query);
    Layerscale p{};
    p.scale = operands.parameter(a.scale, "scale");
    p.x = operands.rows(a.x, "x");
    p.d_y = operands.rows(a.d_y, "d_y");
    p.d_x = operands.rows(a.d_x, "d_x");
    const Gradients out{operands.gradient(a.d_scale, "d_scale"), operands.gradient(a.d_x_sums, "d_x_sums")};
    const GradientSums sums = sums_of(call, query, out, a.accumulate);
    plugins::layerscale_backward(on(call), operands.shape(), p, sums);
  }

  void experts_forward(const fvlm_call& call, const Query& query, const fvlm_experts_forward& a) const {
    require(fits(query));
    Operands operands(query);
    operands.require_wide(query.inner);
    Workspace workspace(call);
    plugins::Experts p = experts_of(workspace, query);
    p.x = operands.rows(a.x, "x");
    p.logits = operands.matrix(a.logits, query.experts, "logits");
    if (query.options & FVLM_WITH_BIAS) p.bias = Operands::contiguous(a.bias, query.dtype, {query.experts}, "bias");
    if (p.weight_bits == 16) {
      p.gate_up.data = operands.parameter(a.gate_up, {query.experts, 2 * query.inner, query.width}, "gate_up");
      p.down.data = operands.parameter(a.down, {query.experts, query.width, query.inner}, "down");
    } else {
      const PackedWeight gate_up = packed_shape(p.weight_bits, 2 * query.inner, query.width),
                         down = packed_shape(p.weight_bits, query.width, query.inner);
      p.gate_up = codes_of(operands, query, gate_up, a.gate_up, "gate_up", a.gate_up_scales, "gate_up_scales");
      p.down = codes_of(operands, query, down, a.down, "down", a.down_scales, "down_scales");
    }
    p.y = operands.matrix(a.y, query.width, "y");
    p.vectorized = operands.vectorized();
    plugins::mix_experts(on(call), p);
  }

 private:
  static Support fits_experts(const Query& query) {
    constexpr std::uint32_t codes = FVLM_INT8_WEIGHTS | FVLM_INT4_WEIGHTS,
                            known = FVLM_WITH_BIAS | FVLM_SIGMOID_ROUTER | FVLM_NORMALIZED_ROUTER | codes;
    constexpr int64_t most_features = 1 << 20;
    if (!is_one_of<BFloat16, Half>(query.dtype))
      return refuse("experts in %s are not supported: expected 16 bits", name_of(query.dtype));
    if ((query.options & ~known) || (query.options & codes) == codes)
      return refuse("options %#x are not supported", query.options);
    if ((query.options & codes) && (query.width % 32 != 0 || query.inner % 32 != 0))
      return refuse("codes of %lld and %lld features are not supported: expected multiples of 32",
                    static_cast<long long>(query.width), static_cast<long long>(query.inner));
    if (query.rows < 0 || query.width < 0 || query.inner < 1 || std::max(query.width, query.inner) > most_features)
      return refuse("%lld rows of width %lld and %lld are not supported", static_cast<long long>(query.rows),
                    static_cast<long long>(query.width), static_cast<long long>(query.inner));
    if (query.experts < 1 || query.chosen < 1 || !experts::are_few(query.rows, query.experts, query.chosen))
      return refuse("%lld rows to %d of %d experts each are not few", static_cast<long long>(query.rows), query.chosen,
                    query.experts);
    return accept(300, "chosen experts' weights are read once");
  }

  static ExpertMatrix codes_of(Operands& operands, const Query& query, const PackedWeight& shape,
                               const fvlm_tensor* codes, const char* name, const fvlm_tensor* scales,
                               const char* name_of_scales) {
    const int64_t experts = query.experts;
    void* const data = Operands::contiguous(codes, shape.bits == 8 ? sdk::int8 : sdk::uint8,
                                            {experts, shape.rows, shape.row_bytes}, name);
    operands.check_alignment(data, 0);
    return {data,
            static_cast<const float*>(
                Operands::contiguous(scales, sdk::float32, {experts, shape.rows, shape.groups}, name_of_scales)),
            static_cast<int>(shape.group)};
  }

  // What follows from the query, with memory between the kernels.
  static plugins::Experts experts_of(Workspace& workspace, const Query& query) {
    plugins::Experts p{};
    p.dtype = query.dtype;
    p.rows = static_cast<int>(query.rows), p.width = static_cast<int>(query.width);
    p.inner = static_cast<int>(query.inner), p.experts = query.experts, p.chosen = query.chosen;
    p.slots = static_cast<int>(experts::most_slots(query.rows, query.experts, query.chosen));
    p.sigmoid = query.options & FVLM_SIGMOID_ROUTER, p.normalized = query.options & FVLM_NORMALIZED_ROUTER;
    p.epsilon = query.epsilon, p.scale = query.router_scale;
    p.weight_bits = query.options & FVLM_INT4_WEIGHTS ? 4 : query.options & FVLM_INT8_WEIGHTS ? 8 : 16;
    const int64_t pairs = query.rows * query.chosen;
    p.slot_experts = workspace.take<int>(p.slots).data();
    p.slot_pairs = workspace.take<int>(int64_t{p.slots} * experts::slot_rows).data();
    p.shares = workspace.take<float>(pairs).data();
    p.hidden = workspace.take<BFloat16>(pairs * query.inner).data(); // or as many of float16
    p.outputs = workspace.take<float>(pairs * query.width).data();
    return p;
  }

  struct Gradients {
    void *first, *second = nullptr, *third = nullptr;
  };

  // The most parameter gradients that the operation's backward sums.
  static int parameter_count(const Query& query) {
    return 1 + (query.op == FVLM_OP_LAYERNORM) + ((query.options & FVLM_WITH_COLUMN_SUMS) != 0);
  }

  static Swiglu swiglu_of(const Query& query) {
    Swiglu p{};
    p.is_geglu = query.options & FVLM_GELU_TANH;
    p.form = gelu_form_of(query.options);
    return p;
  }

  Device on(const fvlm_call& call) const { return {stream_of(call), multiprocessors_, has_clusters_}; }

  int64_t full_width_parts(const Query& query) const {
    return max_norm_parts(query.rows, {nullptr, multiprocessors_, has_clusters_});
  }

  // For calls without rows the sums are already final.
  GradientSums sums_of(const fvlm_call& call, const Query& query, Gradients out, int accumulate,
                       int64_t full_width_parts = 0) const {
    GradientSums sums{{out.first, out.second, out.third}, query.gradient_dtype, accumulate != 0};
    if (!sums.required()) return sums;
    Workspace workspace(call);
    sums.allocate(workspace, query.width, parameter_count(query), multiprocessors_, full_width_parts);
    if (query.rows == 0) clear(on(call), sums, static_cast<std::size_t>(query.width) * bytes_of(query.gradient_dtype));
    return sums;
  }

  static int heads_of(const Query& query) { return query.options & FVLM_PER_HEAD ? query.heads : 1; }
  static Shape shape_of(const Operands& rows, const Operands& norms) {
    Shape shape = norms.shape();
    shape.vectorized = shape.vectorized && rows.vectorized();
    return shape;
  }

  void norm_forward(const fvlm_call& call, const Query& query, const fvlm_norm_forward& a, bool centered) const {
    require(fits(query));
    const Query norms = norms_of(query);
    Operands operands(query), of_norms(norms);
    NormForward p{};
    p.heads = heads_of(query);
    p.x = operands.rows(a.x, "x");
    if (a.residual) {
      p.residual = operands.rows(a.residual, "residual");
      p.sum = operands.rows(a.sum, "sum");
    }
    p.compensation = operands.optional_rows(a.rest, "rest");
    p.sum_compensation = operands.optional_rows(a.sum_rest, "sum_rest");
    p.weight = of_norms.parameter(a.weight, "weight");
    if (centered) p.bias = operands.parameter(a.bias, "bias");
    p.y = operands.rows(a.y, "y");
    if (a.saved[0]) p.rstd = of_norms.statistic(a.saved[0], "saved[0]");
    if (centered && a.saved[1]) p.mean = operands.statistic(a.saved[1], "saved[1]");
    p.epsilon = query.epsilon;
    const bool is_gated = query.options & FVLM_WITH_GATE;
    if (is_gated) p.gate = operands.rows(a.gate, "gate");
    (is_gated ? gated_norm_forward : plugins::norm_forward)(on(call), shape_of(operands, of_norms), p);
  }

  void norm_backward(const fvlm_call& call, const Query& query, const fvlm_norm_backward& a, bool centered) const {
    require(fits(query));
    const Query norms = norms_of(query);
    Operands operands(query), of_norms(norms);
    NormBackward p{};
    p.heads = heads_of(query);
    p.d_y = operands.rows(a.d_y, "d_y");
    p.d_sum = operands.optional_rows(a.d_sum, "d_sum");
    p.s = operands.rows(a.s, "s");
    p.weight = of_norms.parameter(a.weight, "weight");
    p.d_x = operands.rows(a.d_x, "d_x");
    p.rstd = of_norms.statistic(a.saved[0], "saved[0]");
    if (centered) p.mean = operands.statistic(a.saved[1], "saved[1]");
    const Gradients out{of_norms.gradient(a.d_weight, "d_weight"),
                        centered ? operands.gradient(a.d_bias, "d_bias") : nullptr,
                        centered ? operands.gradient(a.d_x_sums, "d_x_sums") : nullptr};
    const bool is_gated = query.options & FVLM_WITH_GATE;
    if (is_gated) {
      p.gate = operands.rows(a.gate, "gate");
      p.d_gate = operands.rows(a.d_gate, "d_gate");
    }
    const GradientSums sums = sums_of(call, norms, out, a.accumulate, full_width_parts(norms));
    (is_gated ? gated_norm_backward : plugins::norm_backward)(on(call), shape_of(operands, of_norms), p, sums);
  }

  int multiprocessors_;
  bool has_clusters_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("kernels-cuda", "0.1.0", fvlm::plugins::KernelsCuda)
