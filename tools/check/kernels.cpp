#include "check/kernels.h"

#include "check/families.h"
#include "check/formulas.h"
#include "check/generic.h"
#include "plugin/kinds.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <c10/util/accumulate.h>

#include <algorithm>

namespace fvlm::check {
namespace {

const Kernel& kernel_of(int op) {
  switch (op) {
  case FVLM_OP_ROPE:
    return rope_kernel;
  case FVLM_OP_SWIGLU:
    return swiglu_kernel;
  case FVLM_OP_BIAS_GELU:
    return bias_gelu_kernel;
  case FVLM_OP_LAYERSCALE_RESIDUAL:
    return layerscale_kernel;
  case FVLM_OP_LINEAR:
    return linear_kernel;
  case FVLM_OP_FOLD_ROW_SCALE:
    return scaled_rows_kernel;
  case FVLM_OP_SHORT_CONVOLUTION:
    return short_convolution_kernel;
  case FVLM_OP_DELTA_RULE:
    return delta_rule_kernel;
  case FVLM_OP_EXPERTS:
    return experts_kernel;
  default:
    return norm_kernel;
  }
}

std::vector<int> offered_ops(Context& context) {
  std::vector<int> ops;
  for (const TableOperation& operation : kernel_operations())
    if (operation.is_implemented(&context.base())) ops.push_back(operation.op);
  return ops;
}

// Of each operation that the plugin offers.
std::vector<Trial> of_each_op(Context& context, const std::function<std::vector<KernelCase>(int op)>& cases) {
  std::vector<Trial> trials;
  for (int op : offered_ops(context))
    for (const KernelCase& one : in_own_dtype(context, op, cases(op))) trials.push_back(kernel_trial(one));
  return trials;
}

} // namespace

std::string op_name(int op) {
  const std::string_view function = find_operation(op)->slots[0].name;
  return std::string(function.substr(0, function.find("_forward")));
}

fvlm_kernels_query KernelCase::query(at::Device device) const {
  const TableOperation& operation = *find_operation(op);
  fvlm_kernels_query query{};
  query.struct_size = sizeof query;
  query.op = op;
  query.device = device_of(device);
  query.dtype = dtype_of(dtype);
  query.gradient_dtype = dtype_of(gradient_dtype);
  for (const auto& [is_set, bit] : {std::pair(residual, FVLM_WITH_RESIDUAL),
                                    {bias, FVLM_WITH_BIAS},
                                    {gelu, FVLM_WITH_GELU},
                                    {column_sums, FVLM_WITH_COLUMN_SUMS},
                                    {writes_compensation, FVLM_COMPENSATED},
                                    {frequencies, FVLM_WITH_FREQUENCIES},
                                    {norm, FVLM_WITH_NORM},
                                    {swiglu, FVLM_WITH_SWIGLU},
                                    {swiglu_input, FVLM_SWIGLU_INPUT},
                                    {strided_weight, FVLM_STRIDED_WEIGHT},
                                    {both_gradients, FVLM_BOTH_GRADIENTS},
                                    {output, FVLM_WITH_OUTPUT},
                                    {fp8, FVLM_WITH_FP8},
                                    {pairs > 0, FVLM_FP8_PAIRS},
                                    {bfloat16_weight, FVLM_BFLOAT16_WEIGHT},
                                    {states, FVLM_WITH_STATES},
                                    {gate, FVLM_WITH_GATE},
                                    {sigmoid, FVLM_SIGMOID_ROUTER},
                                    {normalized, FVLM_NORMALIZED_ROUTER},
                                    {weight_bits == 8, FVLM_INT8_WEIGHTS},
                                    {weight_bits == 4, FVLM_INT4_WEIGHTS},
                                    {per_head, FVLM_PER_HEAD}})
    if (is_set) query.options |= bit;
  query.options |= gelu_form;
  query.options &= operation.options;
  if (backward && operation.has_backward) query.options |= FVLM_WITH_BACKWARD;
  query.rows = rows;
  query.width = columns();
  if (operation.has_inner) query.inner = inner;
  query.pairs = pairs;
  if (op == FVLM_OP_ROPE || per_head) query.heads = heads, query.head_dim = head_dim;
  if (op == FVLM_OP_ROPE) {
    query.rotary_dim = rotary_dim;
    query.rope_theta = theta;
  }
  if (operation.has_epsilon || norm) query.epsilon = epsilon;
  if (carries_state(op)) {
    const std::vector<int> of_rows = bounds();
    query.segments = std::ssize(of_rows) - 1;
    query.max_seqlen = std::max({1, of_rows[1], of_rows[3] - of_rows[2]});
  }
  if (op == FVLM_OP_EXPERTS) query.experts = experts, query.chosen = chosen, query.router_scale = router_scale;
  if (op == FVLM_OP_SHORT_CONVOLUTION) query.taps = taps;
  if (op == FVLM_OP_DELTA_RULE) {
    query.heads = heads, query.key_heads = key_head_count();
    query.head_dim = query.key_dim = state_dim;
  }
  return query;
}

int64_t KernelCase::columns() const {
  if (op == FVLM_OP_DELTA_RULE) return int64_t{heads} * state_dim;
  return op == FVLM_OP_ROPE || per_head ? int64_t{heads} * head_dim : width;
}

std::string KernelCase::sizes() const {
  if (op == FVLM_OP_ROPE || per_head) return fmt::format("{} x {} x {}", rows, heads, head_dim);
  if (op == FVLM_OP_DELTA_RULE) return fmt::format("{} x {} x {}", rows, heads, state_dim);
  if (find_operation(op)->has_inner) return fmt::format("{} x {} x {}", rows, inner, width);
  return fmt::format("{} x {}", rows, width);
}

std::string KernelCase::label() const {
  std::string text = fmt::format("{} {} {}", op_name(op), name_of(dtype), sizes());
  if (op == FVLM_OP_ROPE) text += fmt::format(", rotary_dim {}", rotary_dim);
  if (gradient_dtype != dtype) text += fmt::format(", gradients {}", name_of(gradient_dtype));
  if (residual) text += ", residual";
  if (has_d_sum) text += ", d_sum";
  if (writes_compensation) text += reads_compensation ? ", rest given and kept" : ", rest kept";
  if (gelu) text += ", gelu";
  if (gelu_form == FVLM_QUICK_GELU) text += ", quick_gelu";
  if (gelu_form == FVLM_GELU_TANH) text += ", gelu_tanh";
  if (gelu_on_input) text += ", gelu before";
  if (norm) text += ", norm";
  if (swiglu) text += ", swiglu";
  if (swiglu_input) text += ", swiglu before it";
  if (column_sums) text += ", sums";
  if (fp8) text += ", fp8";
  if (pairs > 0) text += fmt::format(", {} in pairs", pairs);
  if (bfloat16_weight) text += ", bfloat16 weight";
  if (per_head) text += ", heads apart";
  if (gate) text += ", gate";
  if (op == FVLM_OP_SHORT_CONVOLUTION) text += fmt::format(", {} taps", taps);
  if (op == FVLM_OP_EXPERTS)
    text += fmt::format(", {} of {} experts{}{}{}{}", chosen, experts, sigmoid ? ", sigmoids" : "",
                        normalized ? "" : ", not normalized", bias ? ", bias" : "",
                        weight_bits == 16 ? "" : fmt::format(", weights in int{}", weight_bits));
  if (key_heads > 0) text += fmt::format(", {} of keys", key_heads);
  if (states) text += ", states";
  if (inverse) text += ", inverse";
  if (frequencies) text += ", frequencies";
  if (accumulate) text += ", accumulating";
  if (ties) text += ", ties";
  if (frozen) text += ", frozen";
  if (!omitted.empty()) text += fmt::format(", without {}", fmt::join(omitted, " and "));
  return text;
}

bool KernelCase::needs_gradient(const std::string& gradient) const {
  return std::ranges::find(omitted, gradient) == omitted.end();
}

bool offered(Context& context, int op) {
  return find_operation(op)->is_implemented(&context.base());
}

Outcome expect_correct_where_supported(Context& context, const std::vector<KernelCase>& cases,
                                       const Variation& variation) {
  std::vector<Trial> trials;
  std::string why_not;
  for (const KernelCase& one : cases) {
    Trial trial = kernel_trial(one);
    const std::string refused = refusal(context, trial);
    if (refused.empty())
      trials.push_back(std::move(trial));
    else
      why_not = refused;
  }
  return trials.empty() ? not_applicable(why_not) : expect_correct(context, trials, variation);
}

Trial kernel_trial(const KernelCase& c) {
  Trial trial;
  trial.label = c.label();
  trial.supports = [c](Context& context) {
    fvlm_support answer = query_support(context.table<fvlm_kernels_v1>().supports, c.query(context.device));
    // A yes to an operation without functions is caught by a row of its own.
    if (!offered(context, c.op)) fvlm_answer(&answer, 0, "%s is not offered", op_name(c.op).c_str());
    return answer;
  };
  trial.run = [c](Context& context, const Variation& variation) {
    const auto& table = context.table<fvlm_kernels_v1>();
    Workbench bench(context, variation);
    if (bench.begin(table, c.query(context.device))) kernel_of(c.op).run(bench, table, c);
    return bench.finish();
  };
  trial.expect = once([c] {
    auto all = kernel_of(c.op).expect(c);
    std::erase_if(all, [&](const Expected& one) { return !c.needs_gradient(one.name); });
    return all;
  });
  return trial;
}

std::vector<Trial> kernel_cases(const std::vector<KernelCase>& cases) {
  return trials_of(cases, kernel_trial);
}

at::ScalarType kernel_dtype(Context& context, int op) {
  return first_supported_dtype(
      context, [=](auto dtype) { return kernel_trial({.op = op, .dtype = dtype, .gradient_dtype = dtype}); });
}

std::vector<KernelCase> in_own_dtype(Context& context, int op, std::vector<KernelCase> cases) {
  const auto dtype = kernel_dtype(context, op);
  for (auto& one : cases) one.op = op, one.dtype = one.gradient_dtype = dtype;
  return cases;
}

at::Tensor tie_values(at::IntArrayRef shape, at::ScalarType dtype) {
  const int64_t base = dtype == at::kHalf ? 1024 : 128, count = c10::multiply_integers(shape);
  return (at::arange(count).remainder(base - 1) + base).view(shape).to(dtype);
}

at::Tensor filled(at::IntArrayRef shape, at::ScalarType dtype, double value) {
  return at::full(shape, value, dtype);
}

Operand* parameter_gradient(Workbench& bench, const KernelCase& c, const std::string& name, const at::Tensor& held) {
  return c.frozen || !c.needs_gradient(name) ? nullptr : &accumulated_output(bench, c, name, held);
}

Operand& accumulated_output(Workbench& bench, const KernelCase& c, const std::string& name, const at::Tensor& held) {
  return c.accumulate ? bench.updated(name, held)
                      : bench.output(name, held.sizes(), held.scalar_type(), Rows::contiguous);
}

at::Tensor accumulated(const KernelCase& c, const at::Tensor& held, const at::Tensor& gradient) {
  if (!c.accumulate) return gradient;
  const auto work = at_least_float(gradient.scalar_type());
  return held.to(work) + gradient.to(work);
}

std::vector<Trial> kernels_trials(Context& context) {
  return of_each_op(context, [](int op) {
    const int64_t rows = op == FVLM_OP_FOLD_ROW_SCALE ? 5 : 37; // matrices
    return std::vector<KernelCase>{
        {}, {.rows = rows, .width = 96, .inner = 160, .heads = 2, .head_dim = 64, .rotary_dim = 64}};
  });
}

std::vector<Trial> kernels_odd_trials(Context& context) {
  return of_each_op(context, [](int op) {
    return std::vector<KernelCase>{{.rows = 5, .width = 61, .inner = 43, .heads = 3, .head_dim = 14, .rotary_dim = 10},
                                   {.rows = 3,
                                    .width = 11,
                                    .inner = 7,
                                    .heads = 1,
                                    .head_dim = 7,
                                    .rotary_dim = 6,
                                    .residual = is_norm(op),
                                    .accumulate = true}};
  });
}

std::vector<Trial> kernels_parallel_trials(Context& context) {
  return of_each_op(context, [](int op) {
    const int64_t rows = op == FVLM_OP_FOLD_ROW_SCALE ? 9 : 520;
    return std::vector<KernelCase>{{.rows = rows, .width = 200, .inner = 96, .heads = 7, .head_dim = 32}};
  });
}

std::vector<Trial> kernels_sweep(Context& context) {
  std::vector<KernelCase> cases;
  for (int op : offered_ops(context)) {
    for (auto dtype : floating)
      for (auto gradient : {dtype, at::kFloat})
        for (int64_t width : {1, 7, 64, 1000}) {
          KernelCase c{.op = op, .dtype = dtype, .gradient_dtype = gradient, .rows = 5, .width = width};
          if (op == FVLM_OP_ROPE) c.rotary_dim = width == 1 ? 2 : width == 7 ? 16 : width == 64 ? 32 : 30;
          if (is_norm(op)) c.residual = width > 10;
          if (op == FVLM_OP_LINEAR) c.inner = width + 2;
          cases.push_back(c);
        }
    cases.push_back({.op = op, .backward = false});
    cases.push_back({.op = op, .bias = false});
    cases.push_back({.op = op, .rows = 300});
  }
  if (offered(context, FVLM_OP_LINEAR)) {
    cases.push_back({.op = FVLM_OP_LINEAR, .gelu = true});
    cases.push_back({.op = FVLM_OP_LINEAR, .residual = true});
  }
  return kernel_cases(cases);
}

} // namespace fvlm::check
