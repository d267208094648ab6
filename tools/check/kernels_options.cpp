// Options of operations that a plugin may refuse in supports(): forms of gelu, norms of heads, tables of frequencies.
#include "check/generic.h"
#include "check/kernels.h"

namespace fvlm::check {
namespace {

// In the plugin's own dtype and in bfloat16, where it supports them.
template <int op>
Outcome supported(Context& context, const std::vector<KernelCase>& cases, const Variation& variation = {}) {
  if (!offered(context, op)) return not_applicable("not offered");
  std::vector<KernelCase> all;
  for (const auto dtype : {kernel_dtype(context, op), at::kBFloat16})
    for (KernelCase c : cases) {
      c.op = op, c.dtype = c.gradient_dtype = dtype;
      all.push_back(c);
    }
  return expect_correct_where_supported(context, all, variation);
}

// With outputs in memory of their own, then in that of inputs.
template <int op>
Outcome supported_over_inputs(Context& context, const std::vector<KernelCase>& cases) {
  const Outcome outcome = supported<op>(context, cases);
  return outcome.state == State::ok ? supported<op>(context, cases, {.alias = 1}) : outcome;
}

Outcome rmsnorm_per_head(Context& context) {
  std::vector<KernelCase> all{{},
                              {.rows = 33, .heads = 1, .head_dim = 70},
                              {.rows = 300, .heads = 15, .head_dim = 128, .accumulate = true},
                              {.rows = 5, .heads = 7, .head_dim = 9, .accumulate = true},
                              {.rows = 40, .heads = 3, .head_dim = 64, .frozen = true},
                              {.rows = 0},
                              {.heads = 5, .head_dim = 128, .backward = false}};
  for (KernelCase& one : all) one.per_head = true;
  return supported_over_inputs<FVLM_OP_RMSNORM>(context, all);
}

Outcome rmsnorm_gate(Context& context) {
  std::vector<KernelCase> all{{},
                              {.rows = 33, .heads = 1, .head_dim = 70},
                              {.rows = 300, .heads = 16, .head_dim = 128, .accumulate = true},
                              {.rows = 5, .heads = 7, .head_dim = 9, .accumulate = true},
                              {.rows = 40, .heads = 3, .head_dim = 256, .frozen = true},
                              {.rows = 0},
                              {.heads = 5, .head_dim = 128, .backward = false}};
  for (KernelCase& one : all) one.per_head = one.gate = true;
  return supported_over_inputs<FVLM_OP_RMSNORM>(context, all);
}

Outcome rope_frequencies(Context& context) {
  return supported<FVLM_OP_ROPE>(
      context, {{.frequencies = true},
                {.head_dim = 64, .rotary_dim = 64, .first_position = 8000, .frequencies = true},
                {.head_dim = 80, .rotary_dim = 30, .inverse = true, .first_position = 90, .frequencies = true}});
}

// As steps of generation have them: few rows, no backward. On a device also replayed from a graph.
Outcome of_few_rows(Context& context, std::vector<KernelCase> all) {
  // Large weights are for devices, which stream them.
  if (context.device.is_cpu())
    std::erase_if(all, [](const KernelCase& one) { return one.width * one.inner > (1 << 20); });
  for (KernelCase& one : all) one.backward = false;
  const Outcome outcome = supported<FVLM_OP_LINEAR>(context, all);
  if (outcome.state != State::ok || context.device.is_cpu()) return outcome;
  return supported<FVLM_OP_LINEAR>(context, all, {.captured = true});
}

Outcome linear_norm(Context& context) {
  return of_few_rows(context, {{.rows = 1, .norm = true},
                               {.rows = 7, .width = 20, .inner = 72, .bias = false, .norm = true},
                               {.rows = 16, .width = 200, .inner = 576, .residual = true, .norm = true},
                               {.rows = 17, .width = 33, .inner = 8, .norm = true},
                               {.rows = 32, .width = 5000, .inner = 96, .bias = false, .norm = true},
                               {.rows = 3, .inner = 1536, .norm = true, .epsilon = 0.5f},
                               {.rows = 3, .norm = true, .magnitude = 100},
                               {.rows = 3, .width = 8200, .inner = 1024, .norm = true},
                               {.rows = 1, .width = 9000, .inner = 960, .residual = true, .norm = true},
                               {.rows = 32, .width = 4300, .inner = 1024, .bias = false, .norm = true},
                               {.rows = 20, .width = 1030, .inner = 4160, .residual = true, .norm = true},
                               {.rows = 0, .norm = true}});
}

Outcome linear_swiglu(Context& context) {
  return of_few_rows(context, {{.rows = 1, .swiglu = true},
                               {.rows = 7, .width = 20, .inner = 72, .bias = false, .swiglu = true},
                               {.rows = 16, .width = 200, .inner = 576, .norm = true, .swiglu = true},
                               {.rows = 17, .width = 33, .inner = 8, .norm = true, .swiglu = true},
                               {.rows = 32, .width = 2600, .inner = 96, .bias = false, .norm = true, .swiglu = true},
                               {.rows = 2, .width = 4110, .inner = 1024, .norm = true, .swiglu = true},
                               {.rows = 30, .width = 2600, .inner = 832, .norm = true, .swiglu = true},
                               {.rows = 0, .swiglu = true}});
}

// As training has them: the forward keeps gate and up, and the input gradient of the linear behind is theirs.
Outcome linear_swiglu_gradients(Context& context) {
  std::vector<KernelCase> all{{},
                              {.rows = 33, .width = 20, .inner = 45},
                              {.rows = 1024, .width = 104, .inner = 72},
                              {.rows = 1300, .width = 96, .inner = 200},
                              {.rows = 2600, .width = 200, .inner = 512},
                              {.rows = 1025, .width = 8, .inner = 8},
                              {.rows = 2100, .width = 208, .inner = 336},
                              {.rows = 0}};
  const size_t count = all.size();
  for (size_t i = 0; i < count; ++i) {
    all[i].bias = false, all[i].swiglu = true;
    KernelCase other = all[i];
    other.swiglu = false, other.swiglu_input = true;
    all.push_back(other);
    other.strided_weight = other.output = true;
    all.push_back(other);
    other.strided_weight = other.output = false;
    other.fp8 = true;
    all.push_back(other);
    other.swiglu = true, other.swiglu_input = false;
    all.push_back(other);
  }
  return supported_over_inputs<FVLM_OP_LINEAR>(context, all);
}

// Weights whose rows do not follow each other, and both gradients of a linear of few input features.
Outcome linear_strided_weight(Context& context) {
  std::vector<KernelCase> all{{},
                              {.bias = false},
                              {.rows = 300, .width = 96, .inner = 200, .residual = true},
                              {.rows = 9, .width = 33, .inner = 5, .bias = false, .accumulate = true},
                              {.rows = 1, .width = 64, .inner = 48, .backward = false},
                              {.rows = 0}};
  for (KernelCase& one : all) one.strided_weight = true;
  return supported<FVLM_OP_LINEAR>(context, all);
}

Outcome linear_both_gradients(Context& context) {
  std::vector<KernelCase> all{{.rows = 300, .width = 96, .inner = 16},
                              {.rows = 130, .width = 200, .inner = 8, .accumulate = true},
                              {.rows = 1000, .width = 1000, .inner = 64},
                              {.rows = 4097, .width = 576, .inner = 24, .accumulate = true},
                              {.rows = 33, .width = 20, .inner = 5},
                              {.rows = 1, .width = 64, .inner = 32},
                              {.rows = 0, .inner = 16}};
  for (KernelCase& one : all) one.bias = false, one.both_gradients = one.strided_weight = true;
  return supported<FVLM_OP_LINEAR>(context, all);
}

// Sizes as fp8 products of devices take them, and others.
Outcome linear_fp8(Context& context) {
  std::vector<KernelCase> all{{},
                              {.bias = false},
                              {.rows = 300, .width = 384, .inner = 96, .bias = false, .accumulate = true},
                              {.rows = 33, .width = 48, .inner = 208, .bias = false, .frozen = true},
                              {.rows = 129, .width = 2064, .inner = 1040, .bias = false},
                              {.rows = 70, .width = 80, .inner = 4112, .backward = false},
                              {.rows = 5, .width = 21, .inner = 43, .residual = true},
                              {.rows = 130, .width = 64, .inner = 128, .bias = false, .magnitude = 3e4},
                              {.rows = 130, .width = 64, .inner = 128, .bias = false, .magnitude = 3e-6},
                              {.rows = 1, .width = 64, .inner = 48, .bias = false},
                              {.rows = 0}};
  for (KernelCase& one : all) one.fp8 = true;
  return supported<FVLM_OP_LINEAR>(context, all);
}

// As frozen weights with adapters behind them are multiplied.
Outcome linear_fp8_pairs(Context& context) {
  std::vector<KernelCase> all{{.rows = 33, .width = 48, .inner = 208, .pairs = 16},
                              {.rows = 300, .width = 392, .inner = 104, .pairs = 8},
                              {.rows = 129, .width = 2064, .inner = 1072, .pairs = 48},
                              {.rows = 70, .width = 80, .inner = 4112, .residual = true, .pairs = 16},
                              {.rows = 130, .width = 64, .inner = 128, .pairs = 32, .magnitude = 3e4},
                              {.rows = 5, .width = 21, .inner = 43, .pairs = 3},
                              {.rows = 2100, .width = 208, .inner = 336, .pairs = 16},
                              {.rows = 0, .pairs = 8}};
  const size_t count = all.size();
  for (size_t i = 0; i < count; ++i) {
    all[i].fp8 = true, all[i].bias = all[i].backward = false;
    KernelCase other = all[i];
    other.residual = false, other.backward = other.strided_weight = true;
    all.push_back(other);
    other.swiglu_input = true;
    all.push_back(other);
    other.output = true;
    all.push_back(other);
    other.swiglu_input = other.strided_weight = other.output = false, other.swiglu = true;
    all.push_back(other);
  }
  return supported<FVLM_OP_LINEAR>(context, all);
}

// The weight gradient of rounded operands comes with d_x.
Outcome linear_fp8_gradients(Context& context) {
  std::vector<KernelCase> all{{.rows = 48},
                              {.rows = 304, .width = 384, .inner = 96, .accumulate = true},
                              {.rows = 2064, .width = 144, .inner = 272},
                              {.rows = 144, .width = 64, .inner = 128, .magnitude = 3e4},
                              {.rows = 7, .width = 21, .inner = 43, .accumulate = true},
                              {.rows = 160, .width = 48, .inner = 112, .omitted = {"d_x with d_weight"}},
                              {.rows = 0}};
  for (KernelCase& one : all) one.bias = false, one.fp8 = one.both_gradients = true;
  return supported<FVLM_OP_LINEAR>(context, all);
}

// As models on a CPU have them that compute in float32 and are stored in bfloat16: of few rows and of many.
Outcome linear_bfloat16_weight(Context& context) {
  std::vector<KernelCase> all{{},
                              {.rows = 1, .width = 200, .inner = 576, .bias = false},
                              {.rows = 7, .width = 33, .inner = 5, .residual = true},
                              {.rows = 32, .width = 61, .inner = 43, .residual = true, .bias = false},
                              {.rows = 33, .width = 20, .inner = 45},
                              {.rows = 300, .width = 96, .inner = 200, .residual = true},
                              {.rows = 1100, .width = 50, .inner = 290, .gelu = true},
                              {.rows = 3, .magnitude = 100},
                              {.rows = 0}};
  for (KernelCase& one : all) one.bfloat16_weight = true, one.backward = false;
  return supported<FVLM_OP_LINEAR>(context, all);
}

Outcome swiglu_output(Context& context) {
  const std::vector<KernelCase> all{{.output = true},
                                    {.rows = 33, .width = 20, .output = true},
                                    {.rows = 300, .width = 1536, .output = true},
                                    {.rows = 0, .output = true}};
  return supported_over_inputs<FVLM_OP_SWIGLU>(context, all);
}

Outcome geglu(Context& context) {
  std::vector<KernelCase> all{{},
                              {.rows = 33, .width = 20},
                              {.rows = 300, .width = 1536},
                              {.backward = false},
                              {.magnitude = 100},
                              {.rows = 33, .width = 20, .output = true},
                              {.rows = 0}};
  for (KernelCase& one : all) one.gelu_form = FVLM_GELU_TANH;
  return supported_over_inputs<FVLM_OP_SWIGLU>(context, all);
}

template <uint32_t form>
Outcome bias_gelu_form(Context& context) {
  return supported<FVLM_OP_BIAS_GELU>(context, {{.gelu_form = form},
                                                {.rows = 33, .width = 20, .bias = false, .gelu_form = form},
                                                {.rows = 300, .width = 70, .gelu_form = form, .accumulate = true},
                                                {.gelu_form = form, .magnitude = 100}});
}

template <uint32_t form>
Outcome linear_gelu_form(Context& context) {
  std::vector<KernelCase> all{{.gelu = true},
                              {.bias = false, .gelu = true},
                              {.backward = false, .gelu = true},
                              {.gelu_on_input = true},
                              {.rows = 33, .width = 20, .inner = 45, .gelu = true, .gelu_on_input = true},
                              {.rows = 300, .width = 384, .inner = 96, .gelu_on_input = true, .column_sums = true},
                              {.rows = 300, .width = 96, .inner = 384, .gelu = true}};
  for (KernelCase& one : all) one.gelu_form = form;
  return supported<FVLM_OP_LINEAR>(context, all);
}

} // namespace

std::vector<Check> kernel_option_checks() {
  const std::string bias_gelu = "bias_gelu_float*,bias_gelu_bfloat16", linear = "linear_gelu";
  return {
      {"rmsnorm_per_head", "heads of a row by themselves, where supports() says so", rmsnorm_per_head,
       "rmsnorm_float*,rmsnorm_bfloat16"},
      {"rmsnorm_gate", "heads times silu of a gate, where supports() says so", rmsnorm_gate, "rmsnorm_per_head"},
      {"rope_frequencies", "angles of a table of frequencies, where supports() says so", rope_frequencies,
       "rope_float*,rope_bfloat16"},
      {"bias_gelu_quick", "x sigmoid(1.702 x), where supports() says so", bias_gelu_form<FVLM_QUICK_GELU>, bias_gelu},
      {"bias_gelu_tanh", "the approximation with tanh, where supports() says so", bias_gelu_form<FVLM_GELU_TANH>,
       bias_gelu},
      {"linear_gelu_quick", "the gelu is x sigmoid(1.702 x), where supports() says so",
       linear_gelu_form<FVLM_QUICK_GELU>, linear},
      {"linear_gelu_tanh", "the gelu is the approximation with tanh, where supports() says so",
       linear_gelu_form<FVLM_GELU_TANH>, linear},
      {"linear_norm", "of the normalized x, few rows, where supports() says so", linear_norm,
       "linear_float*,linear_bfloat16,linear_residual"},
      {"linear_swiglu", "y = silu(gate) * up, few rows, where supports() says so", linear_swiglu,
       "linear_float*,linear_bfloat16"},
      {"linear_swiglu_gradients", "SwiGLU's forward with its inputs, and its derivatives, where supports() says so",
       linear_swiglu_gradients, "linear_float*,linear_bfloat16,linear_swiglu"},
      {"linear_strided_weight", "weights whose rows are strided, where supports() says so", linear_strided_weight,
       "linear_float*,linear_bfloat16,linear_residual,linear_accumulates"},
      {"linear_both_gradients", "d_x along with d_weight, where supports() says so", linear_both_gradients,
       "linear_float*,linear_bfloat16,linear_strided_weight"},
      {"linear_fp8", "operands rounded to e4m3, where supports() says so", linear_fp8,
       "linear_float*,linear_bfloat16,linear_accumulates"},
      {"linear_fp8_pairs", "some of them as sums of two numbers in e4m3, where supports() says so", linear_fp8_pairs,
       "linear_float*,linear_bfloat16,linear_fp8"},
      {"linear_fp8_gradients", "both gradients of operands rounded to e4m3, where supports() says so",
       linear_fp8_gradients, "linear_float*,linear_bfloat16,linear_fp8"},
      {"linear_bfloat16_weight", "weights of bfloat16 and x of float32, where supports() says so",
       linear_bfloat16_weight, "linear_float*,linear_bfloat16,linear_residual"},
      {"swiglu_output", "y along with the gradients, where supports() says so", swiglu_output,
       "swiglu_float*,swiglu_bfloat16"},
      {"swiglu_gelu_tanh", "GeGLU: the gate has gelu's approximation with tanh, where supports() says so", geglu,
       "swiglu_float*,swiglu_bfloat16"}};
}

} // namespace fvlm::check
