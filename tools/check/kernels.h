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
  bool residual = false;    // norms, linear
  bool reaches_sum = false; // norms: a gradient reaches s by other ways too
  bool keeps_rest = false;  // norms, linear: what the sum loses by rounding is kept
  bool rest = false;        // and what the residual lost is given
  bool bias = true;         // linear, bias_gelu
  bool gelu = false;        // linear: in the forward
  bool gelu_before = false; // linear: x came out of a gelu
  uint32_t gelu_form = 0;   // bias_gelu: FVLM_QUICK_GELU, FVLM_GELU_TANH, or the exact one
  bool sums = false;        // layernorm, linear, layerscale: d_x comes with its sums over rows
  bool accumulate = false;
  bool frozen = false;                    // gradients of parameters are not wanted
  std::vector<std::string> unwanted = {}; // or these are not: "d_bias"
  bool inverse = false;                   // rope
  int64_t first_position = 0;             // rope
  float theta = 10000;                    // rope
  float epsilon = 1e-5f;
  double magnitude = 1; // of x
  bool ties = false;    // results lie halfway between two numbers of the dtype
  uint64_t seed = 1;

  fvlm_kernels_query query(at::Device device) const;
  std::string sizes() const; // "12 x 64"
  std::string label() const;
  bool wants(const std::string& gradient) const;
};

std::string op_name(int op); // as its functions are called: "rmsnorm" of rmsnorm_forward
constexpr bool is_norm(int op) {
  return op == FVLM_OP_RMSNORM || op == FVLM_OP_LAYERNORM;
}

// One operation, in its own file.
struct Kernel {
  Run (*run)(Context&, const KernelCase&, const Variation&);
  Expectation (*expect)(const KernelCase&);
};
extern const Kernel norm_kernel, rope_kernel, swiglu_kernel, bias_gelu_kernel, layerscale_kernel, linear_kernel,
    scaled_rows_kernel;

Trial kernel_trial(const KernelCase& kernel);
std::vector<Trial> kernel_cases(const std::vector<KernelCase>& cases);
// The cases for this operation, in the plugin's own dtype.
std::vector<KernelCase> in_own_dtype(Context& context, int op, std::vector<KernelCase> cases);
bool offered(Context& context, int op); // its pointers are not NULL
at::ScalarType kernel_dtype(Context& context, int op);

// For results that are ties: whole numbers that a dtype of 16 bits just holds, with whose halves it has to round.
at::Tensor climbing(at::IntArrayRef shape, at::ScalarType dtype);
at::Tensor all_of(at::IntArrayRef shape, at::ScalarType dtype, double value);

// What is summed over rows: output or, where it is added to, updated.
Operand& gathered(Workbench& bench, const KernelCase& c, const std::string& name, const at::Tensor& held);
// The gradient of a parameter, of that kind. NULL where it is frozen or not wanted.
Operand* parameter_gradient(Workbench& bench, const KernelCase& c, const std::string& name, const at::Tensor& held);
// What `held` becomes.
at::Tensor added(const KernelCase& c, const at::Tensor& held, const at::Tensor& gradient);

} // namespace fvlm::check
