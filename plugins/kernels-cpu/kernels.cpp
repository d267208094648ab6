// kernels.cpp: the plugin: checks the tensors of each call and distributes its rows over threads.
#include "common/gelu_form.h"
#include "common/norm_heads.h"
#include "operands.h"

#include <fvlm/fvlm.hpp>

#include <algorithm>
#include <cmath>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;

// With fewer elements per task, waking a thread costs more than it saves.
constexpr int64_t elements_per_task = 16384;

// The same for the weights that a task of a linear reads.
constexpr int64_t weights_per_task = 65536;

// Up to so many rows a linear is limited by the memory that its weights are read from, beyond by arithmetic.
constexpr int64_t max_few_rows = 32, max_few_rows_in_16_bits = 24;

// Rows that are packed at a time, and features that a task of many rows is made of.
constexpr int64_t max_packed_rows = 1024, features_per_task = 48;

// The gradient of a parameter is the sum of at most this many partial sums over ranges of rows, whatever the number of
// threads: the result has the same bits on any machine.
constexpr int64_t max_parts = 16;

// Other bits of a query's options are refused: they belong to features that this plugin does not have.
constexpr std::uint32_t known_options = FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL | FVLM_WITH_BIAS | FVLM_WITH_GELU |
                                        FVLM_COMPENSATED | FVLM_WITH_FREQUENCIES | FVLM_PER_HEAD | FVLM_BFLOAT16_WEIGHT;

int64_t parts_of(const fvlm_kernels_query& query) {
  return std::clamp<int64_t>(query.rows / 32, 1, max_parts);
}

class KernelsCpu : public Kernels {
 public:
  explicit KernelsCpu(const fvlm_instance_config& config) : host_(config.host), kernels_(row_kernels(cpu_level())) {}

  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return refuse("runs on the CPU only");
    if (!is_one_of<float, BFloat16>(query.dtype)) return refuse("dtype %s not supported", sdk::name_of(query.dtype));
    if ((query.options & FVLM_WITH_BACKWARD) && query.gradient_dtype != query.dtype && query.gradient_dtype != float32)
      return refuse("gradients in %s not supported", sdk::name_of(query.gradient_dtype));
    const bool has_form = query.op == FVLM_OP_BIAS_GELU || (query.op == FVLM_OP_LINEAR && is_gelu_of_many_rows(query));
    const std::uint32_t forms = has_form ? gelu_forms : query.op == FVLM_OP_SWIGLU ? FVLM_GELU_TANH : 0;
    if ((query.options & ~(known_options | forms)) || (query.options & gelu_forms) == gelu_forms)
      return refuse("options %#x not supported", query.options);
    if (((query.options & FVLM_WITH_FREQUENCIES) && query.op != FVLM_OP_ROPE) ||
        ((query.options & FVLM_BFLOAT16_WEIGHT) && query.op != FVLM_OP_LINEAR))
      return refuse("options %#x of another operation not supported", query.options);
    if ((query.options & FVLM_PER_HEAD) &&
        (query.op != FVLM_OP_RMSNORM || (query.options & (FVLM_WITH_RESIDUAL | FVLM_COMPENSATED)) ||
         query.head_dim < 1 || int64_t{query.heads} * query.head_dim != query.width))
      return refuse("%d heads of %d in %lld columns not supported", query.heads, query.head_dim,
                    static_cast<long long>(query.width));
    if (query.op == FVLM_OP_ROPE) {
      if (query.rotary_dim < 0 || query.rotary_dim % 2 != 0 || query.rotary_dim > query.head_dim)
        return refuse("rotary_dim %d of head_dim %d not supported", query.rotary_dim, query.head_dim);
    }
    if (query.op == FVLM_OP_LINEAR) return supports_linear(query);
    return accept(300, "one pass, %s", name_of(cpu_level()));
  }

  void requirements(const Query& all, Requirements& requirements) const {
    require(supports(all));
    const Query query = norms_of(all);
    const bool backward = query.options & FVLM_WITH_BACKWARD;
    Workspace workspace;
    switch (query.op) {
    case FVLM_OP_RMSNORM:
    case FVLM_OP_LAYERNORM:
      if (!backward) return;
      requirements.save(float32, {query.rows});
      if (query.op == FVLM_OP_LAYERNORM) requirements.save(float32, {query.rows});
      (void)workspace.take<float>(parts_of(query) * query.width); // d_weight
      (void)workspace.take<float>(parts_of(query) * query.width); // d_bias
      break;
    case FVLM_OP_BIAS_GELU:
    case FVLM_OP_LAYERSCALE_RESIDUAL:
      if (!backward) return;
      (void)workspace.take<float>(parts_of(query) * query.width);
      break;
    case FVLM_OP_ROPE:
      (void)workspace.take<double>(query.rotary_dim / 2);
      requirements.forward_workspace = workspace.used();
      break;
    case FVLM_OP_LINEAR:
      (void)take_converted(workspace, query);
      requirements.forward_workspace = workspace.used();
      return;
    default:
      return;
    }
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

  void swiglu_forward(const fvlm_call&, const Query& query, const fvlm_swiglu_forward& a) const {
    auto p = swiglu_problem_of(query);
    p.gate = rows_of(a.gate, query, "gate");
    p.up = rows_of(a.up, query, "up");
    p.y = rows_of(a.y, query, "y");
    for_rows(query, [&](int64_t first, int64_t last) { kernels_.swiglu_forward(p, first, last); });
  }

  void swiglu_backward(const fvlm_call&, const Query& query, const fvlm_swiglu_backward& a) const {
    auto p = swiglu_problem_of(query);
    p.gate = rows_of(a.gate, query, "gate");
    p.up = rows_of(a.up, query, "up");
    p.d_y = rows_of(a.d_y, query, "d_y");
    p.d_gate = rows_of(a.d_gate, query, "d_gate");
    p.d_up = rows_of(a.d_up, query, "d_up");
    for_rows(query, [&](int64_t first, int64_t last) { kernels_.swiglu_backward(p, first, last); });
  }

  void bias_gelu_forward(const fvlm_call&, const Query& query, const fvlm_bias_gelu_forward& a) const {
    auto p = gelu_problem_of(query);
    p.bias = a.bias ? parameter_of(a.bias, query, query.dtype, "bias") : nullptr;
    p.x = rows_of(a.x, query, "x");
    p.y = rows_of(a.y, query, "y");
    for_rows(query, [&](int64_t first, int64_t last) { kernels_.gelu_forward(p, first, last); });
  }

  void bias_gelu_backward(const fvlm_call& call, const Query& query, const fvlm_bias_gelu_backward& a) const {
    auto p = gelu_problem_of(query);
    p.bias = a.bias ? parameter_of(a.bias, query, query.dtype, "bias") : nullptr;
    p.x = rows_of(a.x, query, "x");
    p.d_y = rows_of(a.d_y, query, "d_y");
    p.d_x = rows_of(a.d_x, query, "d_x");
    ParameterGradient d_bias(*this, call, query, a.d_bias, a.accumulate, "d_bias");
    for_parts(query, d_bias.required(), [&](int64_t part, int64_t first, int64_t last) {
      kernels_.gelu_backward(p, first, last, d_bias.part(part));
    });
    d_bias.finish();
  }

  void layerscale_forward(const fvlm_call&, const Query& query, const fvlm_layerscale_forward& a) const {
    auto p = problem_of<LayerscaleProblem>(query);
    p.scale = parameter_of(a.scale, query, query.dtype, "scale");
    p.x = rows_of(a.x, query, "x");
    p.residual = rows_of(a.residual, query, "residual");
    p.y = rows_of(a.y, query, "y");
    for_rows(query, [&](int64_t first, int64_t last) { kernels_.layerscale_forward(p, first, last); });
  }

  void layerscale_backward(const fvlm_call& call, const Query& query, const fvlm_layerscale_backward& a) const {
    auto p = problem_of<LayerscaleProblem>(query);
    p.scale = parameter_of(a.scale, query, query.dtype, "scale");
    p.x = rows_of(a.x, query, "x");
    p.d_y = rows_of(a.d_y, query, "d_y");
    p.d_x = rows_of(a.d_x, query, "d_x");
    ParameterGradient d_scale(*this, call, query, a.d_scale, a.accumulate, "d_scale");
    for_parts(query, d_scale.required(), [&](int64_t part, int64_t first, int64_t last) {
      kernels_.layerscale_backward(p, first, last, d_scale.part(part));
    });
    d_scale.finish();
  }

  void linear_forward(const fvlm_call& call, const Query& query, const fvlm_linear_forward& a) const {
    require(supports(query));
    LinearProblem p{};
    p.is_bfloat16 = query.dtype == bfloat16;
    p.uses_pairs = uses_pairs(query);
    p.rows = query.rows;
    p.inner = query.inner;
    p.has_bfloat16_weight = query.options & FVLM_BFLOAT16_WEIGHT;
    p.weight = matrix_of(a.weight, query, p.has_bfloat16_weight ? bfloat16 : query.dtype, "weight");
    p.bias = a.bias ? parameter_of(a.bias, query, query.dtype, "bias") : nullptr;
    p.residual = optional_rows(a.residual, query, "residual");
    p.y = rows_of(a.y, query, "y");
    p.x = rows_of(a.x, inputs_of(query), "x");
    Workspace workspace(call);
    p.converted = take_converted(workspace, query);
    GeluProblem gelu{};
    if (query.options & FVLM_WITH_GELU) {
      gelu = gelu_problem_of(query);
      p.gelu = &gelu;
    }
    if (has_many_rows(query)) return multiply_many_rows(query, p);
    if (p.is_bfloat16 && !p.uses_pairs) kernels_.linear_widen(p);
    for_features(query, [&](int64_t first, int64_t last) { kernels_.linear_few_rows(p, first, last); });
  }

  void linear_input_gradient(const fvlm_call&, const Query& query, const fvlm_linear_input_gradient& a) const {
    const Query inputs = inputs_of(query);
    auto p = linear_gradients(query, a.d_y);
    p.weight = static_cast<const float*>(matrix_of(a.weight, query, query.dtype, "weight"));
    p.d_x = rows_of(a.d_x, inputs, "d_x");
    const int64_t vectors = (query.inner + kernels_.lanes - 1) / kernels_.lanes;
    parallel_for(host_, vectors,
                 std::max<int64_t>(1, weights_per_task / kernels_.lanes / std::max<int64_t>(1, query.width)),
                 [&](int64_t first, int64_t last) { kernels_.linear_input_gradient(p, first, last); });
    if (!a.pre_activation) return;
    auto gelu = gelu_problem_of(inputs);
    gelu.x = rows_of(a.pre_activation, inputs, "pre_activation");
    gelu.d_y = gelu.d_x = p.d_x;
    for_rows(inputs, [&](int64_t first, int64_t last) { kernels_.gelu_backward(gelu, first, last, nullptr); });
  }

  void linear_weight_gradient(const fvlm_call&, const Query& query, const fvlm_linear_weight_gradient& a) const {
    auto p = linear_gradients(query, a.d_y);
    p.x = rows_of(a.x, inputs_of(query), "x");
    p.accumulate = a.accumulate != 0;
    p.d_weight = static_cast<float*>(matrix_of(a.d_weight, query, query.gradient_dtype, "d_weight"));
    p.d_bias = a.d_bias ? static_cast<float*>(parameter_of(a.d_bias, query, query.gradient_dtype, "d_bias")) : nullptr;
    for_features(query, [&](int64_t first, int64_t last) { kernels_.linear_weight_gradient(p, first, last); });
  }

  void rope(const fvlm_call& call, const Query& query, const fvlm_rope_apply& a) const {
    require(supports(query));
    Workspace workspace(call);
    const int64_t half = query.rotary_dim / 2;
    const Span<double> inv_freq = workspace.take<double>(half);
    const bool has_frequencies = query.options & FVLM_WITH_FREQUENCIES;
    const auto frequencies =
        has_frequencies ? View<const double, 1>(a.frequencies, "frequencies") : View<const double, 1>();
    if (has_frequencies && frequencies.size(0) != half)
      throw Failure(FVLM_ERROR_ARGUMENT, "frequencies has %lld entries, not %lld",
                    static_cast<long long>(frequencies.size(0)), static_cast<long long>(half));
    for (int64_t i = 0; i < half; ++i)
      inv_freq[static_cast<std::size_t>(i)] =
          (has_frequencies
               ? frequencies(i)
               : std::pow(static_cast<double>(query.rope_theta), -2.0 * static_cast<double>(i) / query.rotary_dim)) *
          0.636619772367581343;
    const View<const int32_t, 1> positions(a.positions, "positions");
    if (positions.size(0) != query.rows)
      throw Failure(FVLM_ERROR_ARGUMENT, "positions has %lld entries, not %lld",
                    static_cast<long long>(positions.size(0)), static_cast<long long>(query.rows));
    const HeadRows x = heads_of(a.x, query, "x"), out = heads_of(a.out, query, "out");
    RopeProblem p{};
    p.is_bfloat16 = query.dtype == bfloat16;
    p.inverse = a.inverse != 0;
    p.heads = query.heads;
    p.head_dim = query.head_dim;
    p.rotary_dim = query.rotary_dim;
    p.inv_freq = inv_freq.data();
    p.positions = positions.data();
    p.positions_row = positions.stride(0);
    p.x = x.rows;
    p.x_head = x.head;
    p.out = out.rows;
    p.out_head = out.head;
    for_rows(query, [&](int64_t first, int64_t last) { kernels_.rope(p, first, last); });
  }

 private:
  // The gradient of a parameter: partial sums in the workspace, and finally their sum in the tensor.
  class ParameterGradient {
   public:
    ParameterGradient(const KernelsCpu& plugin, const fvlm_call& call, const Query& query, fvlm_tensor* out,
                      int32_t accumulate, const char* name) {
      Workspace workspace(call);
      *this = ParameterGradient(plugin, workspace, query, out, accumulate, name);
    }
    ParameterGradient(const KernelsCpu& plugin, Workspace& workspace, const Query& query, fvlm_tensor* out,
                      int32_t accumulate, const char* name)
        : plugin_(&plugin) {
      if (!out) return;
      problem_.out = parameter_of(out, query, query.gradient_dtype, name);
      problem_.is_bfloat16 = query.gradient_dtype == bfloat16;
      problem_.accumulate = accumulate != 0;
      problem_.width = query.width;
      problem_.parts = parts_of(query);
      problem_.part_row = query.width;
      parts_ = workspace.take<float>(problem_.parts * query.width).data();
      problem_.part = parts_;
    }
    bool required() const { return problem_.out != nullptr; }
    float* part(int64_t index) const { return parts_ ? parts_ + index * problem_.part_row : nullptr; }
    void finish() const {
      if (required()) plugin_->kernels_.sum_parts(problem_);
    }

   private:
    const KernelsCpu* plugin_;
    SumProblem problem_{};
    float* parts_ = nullptr;
  };

  static Support supports_linear(const Query& query) {
    const std::uint32_t gelu = is_gelu_of_many_rows(query) ? FVLM_WITH_GELU | gelu_forms : 0;
    const bool has_bfloat16_weight = query.options & FVLM_BFLOAT16_WEIGHT;
    if ((query.options & ~(FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL | FVLM_WITH_BIAS | FVLM_BFLOAT16_WEIGHT | gelu)) ||
        (has_bfloat16_weight && (query.dtype != float32 || (query.options & FVLM_WITH_BACKWARD))))
      return refuse("linear in %s: options %#x not supported", sdk::name_of(query.dtype), query.options);
    if (query.dtype == bfloat16 && (query.options & FVLM_WITH_BACKWARD))
      return refuse("gradients of a linear in bfloat16 not supported");
    if (!has_many_rows(query)) return accept(300, "few rows, each weight read once, %s", name_of(cpu_level()));
    if (query.options & FVLM_WITH_BACKWARD)
      return refuse("gradients of a linear of %lld rows not supported: at most %lld",
                    static_cast<long long>(query.rows), static_cast<long long>(max_few_rows));
    if (!multiplies_faster_than_torch(query))
      return refuse("a linear of %lld rows in %s not supported with %s: LibTorch's is as fast",
                    static_cast<long long>(query.rows), sdk::name_of(query.dtype), name_of(cpu_level()));
    return accept(300, "many rows, %s%s", name_of(cpu_level()), uses_pairs(query) ? " with bfloat16" : "");
  }

  static bool has_many_rows(const Query& query) {
    return query.rows > (query.dtype == bfloat16 ? max_few_rows_in_16_bits : max_few_rows);
  }

  static bool is_gelu_of_many_rows(const Query& query) {
    return (query.options & FVLM_WITH_GELU) && !(query.options & FVLM_WITH_RESIDUAL) && has_many_rows(query);
  }

  // LibTorch's products of float32 are MKL's, which use AVX-512 on processors of Intel alone. Every weight of bfloat16
  // would be converted first.
  static bool multiplies_faster_than_torch(const Query& query) {
    const CpuLevel level = cpu_level();
    if (query.dtype == bfloat16 || (query.options & FVLM_BFLOAT16_WEIGHT)) return level >= CpuLevel::avx2;
#if defined(__x86_64__)
    return level == CpuLevel::avx512 && __builtin_cpu_is("amd");
#else
    return false;
#endif
  }

  static bool uses_pairs(const Query& query) {
    return query.dtype == bfloat16 && has_bfloat16_products(cpu_level()) &&
           (query.inner % 2 == 0 || !has_many_rows(query));
  }

  // Memory for x as the kernels read it.
  float* take_converted(Workspace& workspace, const Query& query) const {
    if (!has_many_rows(query))
      return query.dtype == bfloat16 && !uses_pairs(query) ? workspace.take<float>(query.rows * query.inner).data()
                                                           : nullptr;
    const int64_t rows = std::min(max_packed_rows, query.rows),
                  depth = uses_pairs(query) ? query.inner / 2 : query.inner;
    return workspace.take<float>(blocks_of(rows) * kernels_.block_rows * depth).data();
  }

  int64_t blocks_of(int64_t rows) const {
    return (rows + kernels_.block_rows - 1) / kernels_.block_rows;
  }

  void multiply_many_rows(const Query& query, const LinearProblem& all) const {
    const auto from = [&](Rows rows, int64_t first) {
      if (rows.data)
        rows.data = static_cast<char*>(rows.data) + first * rows.row * static_cast<int64_t>(bytes_of(query.dtype));
      return rows;
    };
    for (int64_t first = 0; first < query.rows; first += max_packed_rows) {
      LinearProblem p = all;
      p.rows = std::min(max_packed_rows, query.rows - first);
      p.x = from(all.x, first);
      p.residual = from(all.residual, first);
      p.y = from(all.y, first);
      parallel_for(host_, blocks_of(p.rows),
                   std::max<int64_t>(1, elements_per_task / kernels_.block_rows / std::max<int64_t>(1, query.inner)),
                   [&](int64_t begin, int64_t end) { kernels_.linear_pack(p, begin, end); });
      parallel_for(
          host_, (query.width + features_per_task - 1) / features_per_task, 1, [&](int64_t begin, int64_t end) {
            kernels_.linear_many_rows(p, begin * features_per_task, std::min(query.width, end * features_per_task));
          });
    }
  }

  // The query of a linear's inputs, which are as wide as its weight's rows.
  static Query inputs_of(Query query) {
    query.width = query.inner;
    return query;
  }

  static LinearGradientProblem linear_gradients(const Query& query, const fvlm_tensor* d_y) {
    require(supports(query));
    LinearGradientProblem p{};
    p.rows = query.rows;
    p.width = query.width;
    p.inner = query.inner;
    p.d_y = rows_of(d_y, query, "d_y");
    return p;
  }

  // Features of a linear's output.
  template <class Body>
  void for_features(const Query& query, const Body& body) const {
    parallel_for(host_, query.width, std::max<int64_t>(1, weights_per_task / std::max<int64_t>(1, query.inner)), body);
  }

  template <class Body>
  void for_rows(const Query& query, const Body& body) const {
    parallel_for(host_, query.rows, std::max<int64_t>(1, elements_per_task / std::max<int64_t>(1, query.width)), body);
  }

  // Calls body(part, first, last). If column sums are needed, `part` is the index of a fixed range of rows.
  template <class Body>
  void for_parts(const Query& query, bool column_sums, const Body& body) const {
    if (!column_sums) {
      for_rows(query, [&](int64_t first, int64_t last) { body(0, first, last); });
      return;
    }
    const int64_t parts = parts_of(query), part_elements = std::max<int64_t>(1, query.rows * query.width / parts);
    parallel_for(host_, parts, std::max<int64_t>(1, elements_per_task / part_elements),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t part = begin; part < end; ++part)
                     body(part, query.rows * part / parts, query.rows * (part + 1) / parts);
                 });
  }

  void norm_forward(const fvlm_call&, const Query& query, const fvlm_norm_forward& a, bool centered) const {
    NormProblem p = norm_problem(query, centered);
    const Query norms = norms_of(query);
    p.x = rows_of(a.x, query, "x");
    if (a.residual) {
      p.residual = rows_of(a.residual, query, "residual");
      p.sum = rows_of(a.sum, query, "sum");
    }
    p.compensation = optional_rows(a.rest, query, "rest");
    p.sum_compensation = optional_rows(a.sum_rest, query, "sum_rest");
    p.weight = parameter_of(a.weight, norms, query.dtype, "weight");
    if (centered && a.bias) p.bias = parameter_of(a.bias, query, query.dtype, "bias");
    p.y = rows_of(a.y, query, "y");
    if (a.saved[0]) p.rstd = statistic_of(a.saved[0], norms, "saved[0]");
    if (centered && a.saved[1]) p.mean = statistic_of(a.saved[1], query, "saved[1]");
    for_rows(norms, [&](int64_t first, int64_t last) { kernels_.norm_forward(p, first, last); });
  }

  void norm_backward(const fvlm_call& call, const Query& query, const fvlm_norm_backward& a, bool centered) const {
    NormProblem p = norm_problem(query, centered);
    const Query norms = norms_of(query);
    p.d_y = rows_of(a.d_y, query, "d_y");
    p.d_sum = optional_rows(a.d_sum, query, "d_sum");
    p.s = rows_of(a.s, query, "s");
    p.weight = parameter_of(a.weight, norms, query.dtype, "weight");
    p.d_x = rows_of(a.d_x, query, "d_x");
    p.rstd = statistic_of(a.saved[0], norms, "saved[0]");
    if (centered) p.mean = statistic_of(a.saved[1], query, "saved[1]");
    Workspace workspace(call);
    const ParameterGradient d_weight(*this, workspace, norms, a.d_weight, a.accumulate, "d_weight");
    const ParameterGradient d_bias(*this, workspace, norms, centered ? a.d_bias : nullptr, a.accumulate, "d_bias");
    for_parts(norms, d_weight.required() || d_bias.required(), [&](int64_t part, int64_t first, int64_t last) {
      kernels_.norm_backward(p, first, last, d_weight.part(part), d_bias.part(part));
    });
    d_weight.finish();
    d_bias.finish();
  }

  // A problem with the fields set that all of them have.
  template <class Problem>
  static Problem problem_of(const Query& query) {
    require(supports(query));
    Problem p{};
    p.is_bfloat16 = query.dtype == bfloat16;
    p.width = query.width;
    return p;
  }

  static SwigluProblem swiglu_problem_of(const Query& query) {
    auto p = problem_of<SwigluProblem>(query);
    const GeluForm form = gelu_form_of(query.options);
    p.is_geglu = query.options & FVLM_GELU_TANH;
    p.linear = form.linear, p.cubic = form.cubic;
    return p;
  }

  static GeluProblem gelu_problem_of(const Query& query) {
    auto p = problem_of<GeluProblem>(query);
    const GeluForm form = gelu_form_of(query.options);
    p.is_exact = form.exact;
    p.linear = form.linear;
    p.cubic = form.cubic;
    return p;
  }

  static NormProblem norm_problem(const Query& query, bool centered) {
    auto p = problem_of<NormProblem>(query);
    p.centered = centered;
    p.width = norms_of(query).width;
    p.heads = query.options & FVLM_PER_HEAD ? query.heads : 1;
    p.epsilon = query.epsilon;
    return p;
  }

  const fvlm_host* host_;
  const RowKernels& kernels_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("kernels-cpu", "0.1.0", fvlm::plugins::KernelsCpu)
