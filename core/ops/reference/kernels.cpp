// The kind kernels in plain ATen.
#include "ops/reference/common.h"

#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/where.h>

namespace fvlm::ops::reference {
namespace {

using at::Tensor;

constexpr uint32_t known_options =
    FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL | FVLM_WITH_BIAS | FVLM_WITH_GELU | FVLM_WITH_COLUMN_SUMS |
    FVLM_COMPENSATED | FVLM_WITH_FREQUENCIES | FVLM_QUICK_GELU | FVLM_GELU_TANH | FVLM_PER_HEAD | FVLM_WITH_NORM |
    FVLM_WITH_SWIGLU | FVLM_STRIDED_WEIGHT | FVLM_BOTH_GRADIENTS | FVLM_WITH_OUTPUT | FVLM_WITH_FP8 |
    FVLM_SWIGLU_INPUT | FVLM_BFLOAT16_WEIGHT | FVLM_FP8_PAIRS | FVLM_WITH_STATES | FVLM_WITH_GATE |
    FVLM_SIGMOID_ROUTER | FVLM_NORMALIZED_ROUTER | FVLM_INT8_WEIGHTS | FVLM_INT4_WEIGHTS;
// Which operation has options that belong to one alone, and which other options these exclude.
struct OwnOption {
  uint32_t option;
  int op;
  uint32_t excludes;
};
constexpr OwnOption own_options[] = {
    {FVLM_WITH_FREQUENCIES, FVLM_OP_ROPE, 0},
    {FVLM_WITH_GATE, FVLM_OP_RMSNORM, ~uint32_t{FVLM_WITH_GATE | FVLM_PER_HEAD | FVLM_WITH_BACKWARD}},
    {FVLM_SIGMOID_ROUTER, FVLM_OP_EXPERTS, 0},
    {FVLM_NORMALIZED_ROUTER, FVLM_OP_EXPERTS, 0},
    {FVLM_INT8_WEIGHTS, FVLM_OP_EXPERTS, 0},
    {FVLM_INT4_WEIGHTS, FVLM_OP_EXPERTS, 0},
    {FVLM_STRIDED_WEIGHT, FVLM_OP_LINEAR, FVLM_WITH_NORM | FVLM_WITH_SWIGLU},
    {FVLM_BOTH_GRADIENTS, FVLM_OP_LINEAR,
     FVLM_WITH_NORM | FVLM_WITH_SWIGLU | FVLM_WITH_GELU | FVLM_WITH_BIAS | FVLM_WITH_RESIDUAL},
    {FVLM_WITH_FP8, FVLM_OP_LINEAR,
     FVLM_WITH_NORM | FVLM_WITH_SWIGLU | FVLM_WITH_GELU | FVLM_QUICK_GELU | FVLM_GELU_TANH | FVLM_WITH_COLUMN_SUMS |
         FVLM_COMPENSATED},
    {FVLM_SWIGLU_INPUT, FVLM_OP_LINEAR,
     ~uint32_t{FVLM_SWIGLU_INPUT | FVLM_WITH_BACKWARD | FVLM_STRIDED_WEIGHT | FVLM_WITH_OUTPUT}},
    {FVLM_FP8_PAIRS, FVLM_OP_LINEAR, FVLM_BOTH_GRADIENTS},
    {FVLM_BFLOAT16_WEIGHT, FVLM_OP_LINEAR, FVLM_WITH_BACKWARD | FVLM_WITH_FP8}};
constexpr double quick_gelu_factor = 1.702;

// The input of a norm: x, or x + residual as it was rounded into `sum`. Stores the rounding error (Kahan compensation)
// on request.
Tensor norm_input(const fvlm_norm_forward& arguments) {
  const Tensor x = torch_tensor(arguments.x);
  if (!arguments.residual) return upcast(x);
  const Tensor sum = torch_tensor(arguments.sum);
  Tensor exact = upcast(x) + upcast(arguments.residual);
  if (arguments.rest) exact += upcast(arguments.rest);
  store(sum, exact);
  Tensor s = upcast(sum);
  if (arguments.sum_rest) store(torch_tensor(arguments.sum_rest), exact - s);
  return s;
}

// The rows of an rmsnorm, or with FVLM_PER_HEAD their heads.
Tensor one_norm_a_row(const fvlm_kernels_query& query, const Tensor& rows) {
  return query.options & FVLM_PER_HEAD ? rows.reshape({-1, query.head_dim}) : rows;
}

void save(fvlm_tensor* slot, const Tensor& value) {
  if (slot) store(torch_tensor(slot), value);
}

Tensor biased(const fvlm_tensor* x, const fvlm_tensor* bias) {
  return bias ? upcast(x) + upcast(bias) : upcast(x);
}

void store_column_sums(const fvlm_tensor* sums, const Tensor& rows, bool accumulate) {
  store(torch_tensor(sums), rows.sum(0, false, wide(rows.scalar_type())), accumulate);
}

bool is_wide(const Tensor& tensor) {
  return tensor.scalar_type() == wide(tensor.scalar_type());
}

// out = x scale, or out += x scale, without a temporary where the types allow.
void store_scaled(const Tensor& out, const Tensor& x, const Tensor& scale, bool accumulate = false) {
  Tensor target = out;
  if (!is_wide(out) || !is_wide(x))
    store(out, upcast(x) * scale, accumulate);
  else if (accumulate)
    target.addcmul_(x, scale);
  else
    at::mul_out(target, x, scale);
}

const char* approximation(uint32_t options) {
  return options & FVLM_GELU_TANH ? "tanh" : "none";
}

// In the form that the options say.
Tensor gelu_of(const Tensor& x, uint32_t options) {
  if (options & FVLM_QUICK_GELU) return x * at::sigmoid(x * quick_gelu_factor);
  return at::gelu(x, approximation(options));
}

Tensor gelu_gradient(const Tensor& d_y, const Tensor& x, uint32_t options) {
  if (!(options & FVLM_QUICK_GELU)) return at::gelu_backward(d_y, x, approximation(options));
  const Tensor sigmoid = at::sigmoid(x * quick_gelu_factor);
  return (x * quick_gelu_factor * (1 - sigmoid)).add_(1).mul_(sigmoid).mul_(d_y);
}

// x as FVLM_WITH_FP8 rounds it: e4m3, in a wider type, and a power of two as the scale of all numbers along a
// dimension. What is not finite stays as it is.
struct Fp8 {
  Tensor values, scales;

  Tensor product() const { return scales.defined() ? values * scales : values; }
};

Tensor e4m3(const Tensor& x) {
  return x.to(at::kFloat8_e4m3fn).to(x.scalar_type());
}

// The last `pairs` numbers along that dimension keep what rounding leaves of them, rounded in turn.
Fp8 rounded_to_fp8(const Tensor& x, int64_t contracted, int64_t pairs = 0) {
  if (x.numel() == 0) return {upcast(x), {}};
  const Tensor exact = upcast(x), largest = exact.abs().amax(contracted, true).clamp_min(0x1p-100);
  // The exponent of largest / 448, rounded up: 448 is 1.75 * 2^8.
  const Tensor bits = largest.to(at::kFloat).view(at::kInt);
  const Tensor exponent = bits.bitwise_right_shift(23) - 8 + (bits.bitwise_and(0x7fffff) > 0x600000);
  const Tensor scale = exponent.bitwise_left_shift(23).view(at::kFloat);
  const Tensor is_finite = largest.isfinite(), scaled = exact / scale, values = e4m3(scaled);
  const int64_t first_pair = x.size(contracted) - pairs;
  Tensor paired = values.narrow(contracted, first_pair, pairs);
  paired += e4m3(scaled.narrow(contracted, first_pair, pairs) - paired);
  return {at::where(is_finite, values, exact), at::where(is_finite, scale, 1)};
}

// Whether ATen's gelu can write to `out` directly. It leaves a tensor unwritten that is not contiguous (2.11, oneDNN).
bool gelu_can_write_to(const Tensor& out) {
  return is_wide(out) && out.is_contiguous();
}

} // namespace

// Of the operations that carry a state.
static sdk::Support supports_recurrence(const fvlm_kernels_query& query) {
  if ((query.options & FVLM_WITH_STATES) && (query.options & FVLM_WITH_BACKWARD))
    return sdk::refuse("states together with backward not supported");
  if (query.segments < 1 || query.max_seqlen < 1)
    return sdk::refuse("%lld segments of at most %d rows not supported", static_cast<long long>(query.segments),
                       query.max_seqlen);
  if (query.op == FVLM_OP_SHORT_CONVOLUTION && query.taps < 1) return sdk::refuse("%d taps not supported", query.taps);
  if (query.op == FVLM_OP_DELTA_RULE &&
      (query.key_dim < 1 || query.head_dim < 1 || query.key_heads < 1 || query.heads % query.key_heads != 0 ||
       int64_t{query.heads} * query.head_dim != query.width))
    return sdk::refuse("%d heads of %d and %d of %d in %lld columns not supported", query.key_heads, query.key_dim,
                       query.heads, query.head_dim, static_cast<long long>(query.width));
  return sdk::accept(1, "ATen");
}

static sdk::Support supports_experts(const fvlm_kernels_query& query) {
  constexpr uint32_t codes = FVLM_INT8_WEIGHTS | FVLM_INT4_WEIGHTS;
  if ((query.options & ~(FVLM_WITH_BIAS | FVLM_SIGMOID_ROUTER | FVLM_NORMALIZED_ROUTER | codes)) ||
      (query.options & codes) == codes)
    return sdk::refuse("options %#x not supported", query.options);
  if (query.chosen < 1 || query.chosen > query.experts)
    return sdk::refuse("%d of %d experts not supported", query.chosen, query.experts);
  return sdk::accept(1, "ATen");
}

sdk::Support Kernels::supports(const Query& query) {
  if (query.op == FVLM_OP_ROPE &&
      (query.rotary_dim % 2 != 0 || query.rotary_dim < 0 || query.rotary_dim > query.head_dim))
    return sdk::refuse("rotary_dim %d of head_dim %d not supported", query.rotary_dim, query.head_dim);
  if (query.options & ~known_options) return sdk::refuse("options %#x not supported", query.options);
  for (const OwnOption& own : own_options)
    if ((query.options & own.option) && (query.op != own.op || (query.options & own.excludes)))
      return sdk::refuse("options %#x not supported", query.options);
  if ((query.options & FVLM_FP8_PAIRS) &&
      (!(query.options & FVLM_WITH_FP8) || query.pairs < 0 || query.pairs > std::min(query.inner, query.width)))
    return sdk::refuse("%lld pairs not supported", static_cast<long long>(query.pairs));
  if ((query.options & FVLM_BFLOAT16_WEIGHT) && (query.dtype.code != FVLM_FLOAT || query.dtype.bits != 32))
    return sdk::refuse("a bfloat16 weight of activations in %s not supported", dtype_name(query.dtype).c_str());
  if (query.op == FVLM_OP_LINEAR && (query.options & FVLM_WITH_GELU) && (query.options & FVLM_WITH_RESIDUAL))
    return sdk::refuse("gelu together with a residual not supported");
  if ((query.options & (FVLM_WITH_NORM | FVLM_WITH_SWIGLU)) &&
      (query.op != FVLM_OP_LINEAR || (query.options & (FVLM_WITH_GELU | FVLM_COMPENSATED)) ||
       ((query.options & FVLM_WITH_NORM) && (query.options & FVLM_WITH_BACKWARD)) ||
       ((query.options & FVLM_WITH_SWIGLU) && (query.options & FVLM_WITH_RESIDUAL))))
    return sdk::refuse("options %#x not supported", query.options);
  if ((query.options & FVLM_WITH_OUTPUT) && query.op != FVLM_OP_SWIGLU && !(query.options & FVLM_SWIGLU_INPUT))
    return sdk::refuse("options %#x not supported", query.options);
  constexpr uint32_t forms = FVLM_QUICK_GELU | FVLM_GELU_TANH;
  const uint32_t own_forms = query.op == FVLM_OP_BIAS_GELU || query.op == FVLM_OP_LINEAR ? forms
                             : query.op == FVLM_OP_SWIGLU                                ? FVLM_GELU_TANH
                                                                                         : 0;
  if ((query.options & forms & ~own_forms) || (query.options & forms) == forms)
    return sdk::refuse("options %#x not supported", query.options);
  if ((query.options & FVLM_PER_HEAD) &&
      (query.op != FVLM_OP_RMSNORM || (query.options & (FVLM_WITH_RESIDUAL | FVLM_COMPENSATED)) || query.head_dim < 1 ||
       int64_t{query.heads} * query.head_dim != query.width))
    return sdk::refuse("%d heads of %d in %lld columns not supported", query.heads, query.head_dim,
                       static_cast<long long>(query.width));
  if (query.op == FVLM_OP_EXPERTS)
    if (const sdk::Support support = supports_experts(query); support.score == 0) return support;
  const bool carries = query.op == FVLM_OP_SHORT_CONVOLUTION || query.op == FVLM_OP_DELTA_RULE;
  if (!carries && (query.options & FVLM_WITH_STATES)) return sdk::refuse("options %#x not supported", query.options);
  if (carries)
    if (const sdk::Support support = supports_recurrence(query); support.score == 0) return support;
  return supports_numbers(query.device, query.dtype, query.gradient_dtype);
}

// Norms save 1 / standard deviation of each row; layernorm saves the mean before it.
void Kernels::requirements(const Query& query, sdk::Requirements& wanted) const {
  if (!(query.options & FVLM_WITH_BACKWARD)) return;
  if (query.op == FVLM_OP_LAYERNORM) wanted.save(wide(query.dtype), {query.rows});
  const int64_t heads = query.options & FVLM_PER_HEAD ? query.heads : 1;
  if (query.op == FVLM_OP_LAYERNORM || query.op == FVLM_OP_RMSNORM)
    wanted.save(wide(query.dtype), {query.rows * heads});
}

void Kernels::rmsnorm_forward(const fvlm_call&, const Query& query, const fvlm_norm_forward& arguments) {
  const Tensor s = one_norm_a_row(query, norm_input(arguments)), y = torch_tensor(arguments.y);
  const Tensor inverse = s.square().mean(-1).add_(query.epsilon).rsqrt_();
  Tensor normed = (s * inverse.unsqueeze(1)).mul_(upcast(arguments.weight)).view(y.sizes());
  if (query.options & FVLM_WITH_GATE) normed *= at::silu(upcast(arguments.gate));
  store(y, normed);
  save(arguments.saved[0], inverse);
}

void Kernels::rmsnorm_backward(const fvlm_call&, const Query& query, const fvlm_norm_backward& arguments) {
  const Tensor inverse = torch_tensor(arguments.saved[0]).unsqueeze(1);
  const Tensor normal = one_norm_a_row(query, upcast(arguments.s)) * inverse;
  Tensor d_y = one_norm_a_row(query, upcast(arguments.d_y));
  if (query.options & FVLM_WITH_GATE) {
    const Tensor gate = one_norm_a_row(query, upcast(arguments.gate));
    const Tensor d_silu = (normal * upcast(arguments.weight)).mul_(d_y);
    store(torch_tensor(arguments.d_gate), at::silu_backward(d_silu, gate).view({query.rows, query.width}));
    d_y = d_y * at::silu(gate);
  }
  const Tensor d_normal = d_y * upcast(arguments.weight);
  Tensor d_x = (d_normal - normal * (d_normal * normal).mean(-1, true)).mul_(inverse);
  if (arguments.d_sum) d_x += upcast(arguments.d_sum);
  if (arguments.d_weight) store(torch_tensor(arguments.d_weight), (d_y * normal).sum(0), arguments.accumulate);
  store(torch_tensor(arguments.d_x), d_x.view({query.rows, query.width}));
}

void Kernels::layernorm_forward(const fvlm_call&, const Query& query, const fvlm_norm_forward& arguments) {
  const Tensor s = norm_input(arguments);
  const auto [y, mean, inverse] =
      at::native_layer_norm(s, {query.width}, upcast(arguments.weight), upcast(arguments.bias), query.epsilon);
  store(torch_tensor(arguments.y), y);
  save(arguments.saved[0], mean.view({-1}));
  save(arguments.saved[1], inverse.view({-1}));
}

void Kernels::layernorm_backward(const fvlm_call&, const Query& query, const fvlm_norm_backward& arguments) {
  const Tensor mean = torch_tensor(arguments.saved[0]).unsqueeze(1);
  const Tensor inverse = torch_tensor(arguments.saved[1]).unsqueeze(1);
  const bool wants_weight = arguments.d_weight, wants_bias = arguments.d_bias;
  // ATen uses only the shape of the bias, so the weight can stand in for it.
  const Tensor weight = upcast(arguments.weight);
  auto [d_x, d_weight, d_bias] =
      at::native_layer_norm_backward(upcast(arguments.d_y), upcast(arguments.s), {query.width}, mean, inverse, weight,
                                     weight, {true, wants_weight, wants_bias});
  if (arguments.d_sum) d_x += upcast(arguments.d_sum);
  if (wants_weight) store(torch_tensor(arguments.d_weight), d_weight, arguments.accumulate);
  if (wants_bias) store(torch_tensor(arguments.d_bias), d_bias, arguments.accumulate);
  if (arguments.d_x_sums) store(torch_tensor(arguments.d_x_sums), d_x.sum(0), arguments.accumulate);
  store(torch_tensor(arguments.d_x), d_x);
}

void Kernels::rope(const fvlm_call&, const Query& query, const fvlm_rope_apply& arguments) {
  const Tensor x = upcast(arguments.x), positions = torch_tensor(arguments.positions);
  const bool inverse = arguments.inverse;
  store(torch_tensor(arguments.out), query.options & FVLM_WITH_FREQUENCIES
                                         ? rotated(x, positions, torch_tensor(arguments.frequencies), inverse)
                                         : rotated(x, positions, query.rotary_dim, query.rope_theta, inverse));
}

static Tensor open_gate(const Tensor& gate, uint32_t options) {
  return options & FVLM_GELU_TANH ? gelu_of(gate, options) : at::silu(gate);
}

void Kernels::swiglu_forward(const fvlm_call&, const Query& query, const fvlm_swiglu_forward& arguments) {
  store(torch_tensor(arguments.y), open_gate(upcast(arguments.gate), query.options).mul_(upcast(arguments.up)));
}

struct SwigluGradients {
  Tensor gate, up, open; // open: the gate behind its activation
};
static SwigluGradients swiglu_gradients(const Tensor& gate, const Tensor& up, const Tensor& d_y) {
  const Tensor sigmoid = at::sigmoid(gate), silu = gate * sigmoid;
  return {(silu * (1 - sigmoid)).add_(sigmoid).mul_(up).mul_(d_y), d_y * silu, silu};
}

static SwigluGradients geglu_gradients(const Tensor& gate, const Tensor& up, const Tensor& d_y, uint32_t options) {
  Tensor open = open_gate(gate, options);
  return {gelu_gradient(d_y * up, gate, options), d_y * open, open};
}

void Kernels::swiglu_backward(const fvlm_call&, const Query& query, const fvlm_swiglu_backward& arguments) {
  const Tensor gate = upcast(arguments.gate), up = upcast(arguments.up), d = upcast(arguments.d_y);
  const auto [d_gate, d_up, open] =
      query.options & FVLM_GELU_TANH ? geglu_gradients(gate, up, d, query.options) : swiglu_gradients(gate, up, d);
  const Tensor y = arguments.y ? open * up : Tensor(); // before what they may alias is written
  store(torch_tensor(arguments.d_up), d_up);
  store(torch_tensor(arguments.d_gate), d_gate);
  if (arguments.y) store(torch_tensor(arguments.y), y);
}

void Kernels::bias_gelu_forward(const fvlm_call&, const Query& query, const fvlm_bias_gelu_forward& arguments) {
  store(torch_tensor(arguments.y), gelu_of(biased(arguments.x, arguments.bias), query.options));
}

void Kernels::bias_gelu_backward(const fvlm_call&, const Query& query, const fvlm_bias_gelu_backward& arguments) {
  const Tensor d_x = gelu_gradient(upcast(arguments.d_y), biased(arguments.x, arguments.bias), query.options);
  if (arguments.d_bias) store(torch_tensor(arguments.d_bias), d_x.sum(0), arguments.accumulate);
  store(torch_tensor(arguments.d_x), d_x);
}

void Kernels::layerscale_forward(const fvlm_call&, const Query&, const fvlm_layerscale_forward& arguments) {
  store(torch_tensor(arguments.y), (upcast(arguments.x) * upcast(arguments.scale)).add_(upcast(arguments.residual)));
}

void Kernels::layerscale_backward(const fvlm_call&, const Query&, const fvlm_layerscale_backward& arguments) {
  const Tensor d_y = upcast(arguments.d_y);
  if (arguments.d_scale)
    store(torch_tensor(arguments.d_scale), (d_y * upcast(arguments.x)).sum(0), arguments.accumulate);
  const Tensor d_x = d_y * upcast(arguments.scale);
  if (arguments.d_x_sums) store(torch_tensor(arguments.d_x_sums), d_x.sum(0), arguments.accumulate);
  store(torch_tensor(arguments.d_x), d_x);
}

// A linear with a norm before it or SwiGLU behind it; the norm is rounded as if it were an operation of its own.
static void extended_linear(const fvlm_kernels_query& query, const fvlm_linear_forward& arguments) {
  Tensor x = torch_tensor(arguments.x);
  const Tensor y = torch_tensor(arguments.y), weight = torch_tensor(arguments.weight).t();
  if (query.options & FVLM_WITH_NORM) {
    const Tensor exact = upcast(x);
    x = (exact * at::rsqrt(exact.square().mean(1, true) + static_cast<double>(query.epsilon)) *
         upcast(arguments.norm_weight))
            .to(x.scalar_type());
  }
  Tensor sum = product(x, weight, wide(y.scalar_type()));
  if (arguments.bias) sum += torch_tensor(arguments.bias);
  if (arguments.residual) sum += torch_tensor(arguments.residual);
  if (arguments.pre_activation) { // SwiGLU is applied to the rounded sum then
    store(torch_tensor(arguments.pre_activation), sum);
    sum = upcast(arguments.pre_activation);
  }
  if (query.options & FVLM_WITH_SWIGLU)
    sum = at::silu(sum.narrow(1, 0, query.width)) * sum.narrow(1, query.width, query.width);
  store(y, sum);
}

static int64_t pairs_of(const Kernels::Query& query) {
  return query.options & FVLM_FP8_PAIRS ? query.pairs : 0;
}

static void fp8_linear(int64_t pairs, const fvlm_linear_forward& arguments) {
  const Tensor x = rounded_to_fp8(torch_tensor(arguments.x), 1, pairs).product(),
               weight = torch_tensor(arguments.weight);
  Tensor sum = product(x, rounded_to_fp8(weight, 1, pairs).product().t(), x.scalar_type());
  if (arguments.bias) sum += torch_tensor(arguments.bias);
  if (arguments.residual) sum += torch_tensor(arguments.residual);
  store(torch_tensor(arguments.y), sum);
}

void Kernels::linear_forward(const fvlm_call&, const Query& query, const fvlm_linear_forward& arguments) {
  if (query.options & (FVLM_WITH_NORM | FVLM_WITH_SWIGLU)) return extended_linear(query, arguments);
  if (query.options & FVLM_WITH_FP8) return fp8_linear(pairs_of(query), arguments);
  const Tensor x = torch_tensor(arguments.x), weight = torch_tensor(arguments.weight).to(x.scalar_type()).t();
  const Tensor bias = torch_tensor(arguments.bias);
  Tensor y = torch_tensor(arguments.y);
  const bool gelu = query.options & FVLM_WITH_GELU;
  const Tensor residual = torch_tensor(arguments.residual);
  if (arguments.y_rest) {
    Tensor exact = product(x, weight, wide(y.scalar_type())) + residual;
    if (bias.defined()) exact += bias;
    if (arguments.rest) exact += torch_tensor(arguments.rest);
    store(y, exact);
    store(torch_tensor(arguments.y_rest), exact - upcast(y));
    return;
  }
  if (residual.defined() && is_wide(y)) {
    if (bias.defined())
      at::add_out(y, residual, bias);
    else
      store(y, residual);
    at::addmm_out(y, y, x, weight);
    return;
  }
  if (gelu ? gelu_can_write_to(y) : is_wide(y) || (is_on_cuda(y) && !residual.defined())) {
    Tensor sum = gelu && arguments.pre_activation ? torch_tensor(arguments.pre_activation) : y;
    if (bias.defined())
      at::addmm_out(sum, bias, x, weight);
    else
      at::mm_out(sum, x, weight);
    if (gelu && (query.options & FVLM_QUICK_GELU))
      store(y, gelu_of(sum, query.options));
    else if (gelu)
      at::gelu_out(y, sum, approximation(query.options));
    return;
  }
  Tensor sum = product(x, weight, wide(y.scalar_type()));
  if (bias.defined()) sum += bias;
  if (residual.defined()) sum += residual;
  if (!gelu) return store(y, sum);
  // gelu is applied to the rounded sum, whether or not that is saved.
  sum = upcast(sum.to(y.scalar_type()));
  if (arguments.pre_activation) store(torch_tensor(arguments.pre_activation), sum);
  store(y, gelu_of(sum, query.options));
}

void Kernels::linear_input_gradient(const fvlm_call&, const Query& query, const fvlm_linear_input_gradient& arguments) {
  const Tensor d_y = torch_tensor(arguments.d_y), weight = torch_tensor(arguments.weight);
  Tensor d_x = torch_tensor(arguments.d_x);
  if (query.options & FVLM_SWIGLU_INPUT) {
    const Tensor of_swiglu = product(d_y, weight, wide(d_x.scalar_type())), gate_up = upcast(arguments.pre_activation);
    const auto half = [&](const Tensor& both, int64_t which) {
      return both.narrow(1, which * query.inner, query.inner);
    };
    const SwigluGradients gradients = swiglu_gradients(half(gate_up, 0), half(gate_up, 1), of_swiglu);
    if (arguments.x) store(torch_tensor(arguments.x), gradients.open * half(gate_up, 1));
    store(half(d_x, 0), gradients.gate);
    return store(half(d_x, 1), gradients.up);
  }
  if (query.options & FVLM_WITH_FP8) {
    const Tensor rounded = rounded_to_fp8(d_y, 1, pairs_of(query)).product();
    store(d_x, product(rounded, rounded_to_fp8(weight, 0, pairs_of(query)).product(), rounded.scalar_type()));
  } else if (!arguments.pre_activation) {
    store_product(d_x, d_y, weight);
  } else if (gelu_can_write_to(d_x) && !(query.options & FVLM_QUICK_GELU)) {
    at::mm_out(d_x, d_y, weight);
    at::gelu_backward_out(d_x, d_x, torch_tensor(arguments.pre_activation), approximation(query.options));
  } else {
    store(d_x, gelu_gradient(product(d_y, weight, wide(d_x.scalar_type())), upcast(arguments.pre_activation),
                             query.options));
  }
  if (arguments.d_x_sums) store_column_sums(arguments.d_x_sums, d_x, arguments.accumulate);
}

static void fp8_both_gradients(const fvlm_linear_weight_gradient& arguments) {
  const Fp8 d_y = rounded_to_fp8(torch_tensor(arguments.d_y), 1), x = rounded_to_fp8(torch_tensor(arguments.x), 1);
  const Tensor weight = rounded_to_fp8(torch_tensor(arguments.weight), 0).product();
  if (arguments.d_x) store(torch_tensor(arguments.d_x), product(d_y.product(), weight, weight.scalar_type()));
  const Tensor scales = d_y.scales * x.scales, largest = scales.amax().clamp_min(0x1p-126);
  const Tensor sums = product(e4m3(d_y.values * (scales / largest)).t(), x.values, weight.scalar_type());
  store(torch_tensor(arguments.d_weight), sums * largest, arguments.accumulate);
}

void Kernels::linear_weight_gradient(const fvlm_call&, const Query& query,
                                     const fvlm_linear_weight_gradient& arguments) {
  constexpr uint32_t both_in_fp8 = FVLM_WITH_FP8 | FVLM_BOTH_GRADIENTS;
  if ((query.options & both_in_fp8) == both_in_fp8 && query.rows > 0) return fp8_both_gradients(arguments);
  const Tensor d_y = torch_tensor(arguments.d_y), x = torch_tensor(arguments.x);
  store_product(torch_tensor(arguments.d_weight), d_y.t(), x, arguments.accumulate);
  if (arguments.d_bias) store_column_sums(arguments.d_bias, d_y, arguments.accumulate);
  if (arguments.d_x) store_product(torch_tensor(arguments.d_x), d_y, torch_tensor(arguments.weight));
}

void Kernels::scaled_rows_forward(const fvlm_call&, const Query&, const fvlm_scaled_rows_forward& arguments) {
  const Tensor scale = upcast(arguments.scale);
  store_scaled(torch_tensor(arguments.scaled_weight), torch_tensor(arguments.weight), scale.unsqueeze(2));
  store_scaled(torch_tensor(arguments.scaled_bias), torch_tensor(arguments.bias), scale);
}

void Kernels::scaled_rows_backward(const fvlm_call&, const Query&, const fvlm_scaled_rows_backward& arguments) {
  const Tensor scale = upcast(arguments.scale), of_weight = torch_tensor(arguments.d_scaled_weight),
               of_bias = torch_tensor(arguments.d_scaled_bias);
  const bool accumulate = arguments.accumulate;
  if (arguments.d_scale)
    store(torch_tensor(arguments.d_scale),
          (of_weight * upcast(arguments.weight)).sum(2) + of_bias * upcast(arguments.bias), accumulate);
  if (arguments.d_weight) store_scaled(torch_tensor(arguments.d_weight), of_weight, scale.unsqueeze(2), accumulate);
  if (arguments.d_bias) store_scaled(torch_tensor(arguments.d_bias), of_bias, scale, accumulate);
}

} // namespace fvlm::ops::reference
