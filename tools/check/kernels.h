// Kernel trials: one case struct for every operation, the calls that run it, and the float64 formula.
#pragma once
#include "check/context.h"
#include "check/workbench.h"

#include <fvlm/kernels.h>

namespace fvlm::check {

struct KernelCase {
  int op = FVLM_OP_RMSNORM;
  at::ScalarType dtype = at::kFloat;
  at::ScalarType gradient_dtype = at::kFloat;
  int64_t rows = 12, width = 64, inner = 48;
  int heads = 3, head_dim = 32, rotary_dim = 32; // rope
  bool backward = true;
  bool residual = false;            // norms, linear
  bool has_d_sum = false;           // norms: a second gradient of the residual sum s is given
  bool writes_compensation = false; // norms, linear: FVLM_COMPENSATED, writes sum_rest
  bool reads_compensation = false;  // and reads `rest`, the residual's compensation
  bool bias = true;                 // linear, bias_gelu
  bool gelu = false;                // linear: in the forward
  bool gelu_on_input = false;       // linear: x is the output of a gelu, whose backward is fused
  uint32_t gelu_form = 0;           // bias_gelu, linear: FVLM_QUICK_GELU, FVLM_GELU_TANH, or 0 for the exact one
  bool norm = false;                // linear: of the normalized x
  bool swiglu = false;              // linear: y = silu(gate) * up
  bool swiglu_input = false;        // linear: x is such a y, whose backward is fused
  bool strided_weight = false;      // linear: the weight's rows may be strided
  bool both_gradients = false;      // linear: d_x is given along with d_weight
  bool output = false;              // swiglu: backward gives y again; linear with swiglu_input: its x
  bool fp8 = false;                 // linear: operands of products are rounded to e4m3
  int64_t pairs = 0;                // linear: with fp8, how many of the last summed features stand as two numbers
  bool bfloat16_weight = false;     // linear: of a float32 x
  bool per_head = false;            // rmsnorm: heads of head_dim are normalized by themselves
  bool gate = false;                // and multiplied by silu of a gate
  int taps = 4;                     // short_convolution
  int key_heads = 0;                // delta_rule, of as many `heads`; 0: one for each of them
  bool states = false;              // both: segments continue others
  int experts = 8, chosen = 2;      // experts
  bool sigmoid = false, normalized = true;
  float router_scale = 1;
  int weight_bits = 16;     // of codes 8 or 4
  bool column_sums = false; // layernorm, linear, layerscale: d_x's column sums are requested
  bool accumulate = false;
  bool frozen = false;                   // no parameter has a gradient
  std::vector<std::string> omitted = {}; // gradients that are not requested: "d_bias"
  bool inverse = false;                  // rope
  int64_t first_position = 0;            // rope
  float theta = 10000;                   // rope
  bool frequencies = false;              // rope: the angles are from a table
  float epsilon = 1e-5f;
  double magnitude = 1; // of x
  bool ties = false;    // results lie halfway between two numbers of the dtype
  bool ties_up = false; // with `ties`: norms' sums do, and all of them are rounded up
  uint64_t seed = 1;

  fvlm_kernels_query query(at::Device device) const;
  int64_t columns() const; // of a row: width, or all heads
  // short_convolution, delta_rule: of three segments. A state of the latter has 128 x 128 numbers a head, which a
  // plugin may rely on.
  std::vector<int> bounds() const;
  static constexpr int state_dim = 128;
  int key_head_count() const { return key_heads > 0 ? key_heads : heads; }
  std::string sizes() const; // "12 x 64"
  std::string label() const;
  bool needs_gradient(const std::string& gradient) const;
  bool gives_input_gradient_alone() const { return swiglu_input || (pairs > 0 && backward && !swiglu); }
};

std::string op_name(int op); // as its functions are called: "rmsnorm" of rmsnorm_forward
constexpr bool is_norm(int op) {
  return op == FVLM_OP_RMSNORM || op == FVLM_OP_LAYERNORM;
}

constexpr bool carries_state(int op) {
  return op == FVLM_OP_SHORT_CONVOLUTION || op == FVLM_OP_DELTA_RULE;
}

// One operation, in its own file.
struct Kernel {
  void (*run)(Workbench&, const fvlm_kernels_v1&, const KernelCase&); // begin() went well
  Expectation (*expect)(const KernelCase&);
};
std::vector<Check> expert_checks();
// Says so where y of a norm with `ties` and a residual was computed from the sum before it was rounded; else "".
std::string norm_of_unrounded_sum(const KernelCase& kernel, const Run& run);
extern const Kernel norm_kernel, rope_kernel, swiglu_kernel, bias_gelu_kernel, layerscale_kernel, linear_kernel,
    scaled_rows_kernel, short_convolution_kernel, delta_rule_kernel, experts_kernel;

Trial kernel_trial(const KernelCase& kernel);
std::vector<Trial> kernel_cases(const std::vector<KernelCase>& cases);
// The cases for this operation, in the plugin's own dtype.
std::vector<KernelCase> in_own_dtype(Context& context, int op, std::vector<KernelCase> cases);
bool offered(Context& context, int op); // its pointers are not NULL
// Not applicable, with a reason, where the plugin supports none of the cases.
Outcome expect_correct_where_supported(Context& context, const std::vector<KernelCase>& cases,
                                       const Variation& variation = {});
at::ScalarType kernel_dtype(Context& context, int op);

// Integers that a 16-bit dtype represents exactly, and whose sum with 0.5 is halfway between two of its values.
at::Tensor tie_values(at::IntArrayRef shape, at::ScalarType dtype);
at::Tensor gelu_of(const KernelCase& kernel, const at::Tensor& x); // in the case's form
at::Tensor filled(at::IntArrayRef shape, at::ScalarType dtype, double value);

// An operand for a sum over rows: an output, or an updated one when the case accumulates.
Operand& accumulated_output(Workbench& bench, const KernelCase& c, const std::string& name, const at::Tensor& held);
// The same for a parameter's gradient; NULL if the case is frozen or omits it.
Operand* parameter_gradient(Workbench& bench, const KernelCase& c, const std::string& name, const at::Tensor& held);
// The expected result: `gradient`, or `held` + `gradient` when the case accumulates.
at::Tensor accumulated(const KernelCase& c, const at::Tensor& held, const at::Tensor& gradient);

} // namespace fvlm::check
