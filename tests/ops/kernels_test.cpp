#include "ops/kernels.h"
#include "tools.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

KernelsBackend backend() {
  return reference_backend<fvlm_kernels_v1>(FVLM_KERNELS_KIND);
}

fvlm_kernels_query make_query(at::ScalarType type, at::ScalarType gradient_type, int64_t rows, int64_t width,
                              uint32_t options = FVLM_WITH_BACKWARD) {
  return {.dtype = abi_dtype(type),
          .gradient_dtype = abi_dtype(gradient_type),
          .options = options,
          .rows = rows,
          .width = width,
          .epsilon = 1e-5f,
          .rope_theta = 50.0f};
}

// The type of activations, that of parameters' gradients, and the tolerance for rounded results.
struct Precision {
  at::ScalarType type, gradient_type;
  double rounded, gradient;
};
void PrintTo(const Precision& precision, std::ostream* out) {
  *out << c10::toString(precision.type) << "_gradients_" << c10::toString(precision.gradient_type);
}
constexpr Precision precisions[] = {{at::kDouble, at::kDouble, 1e-12, 1e-12},
                                    {at::kFloat, at::kFloat, 3e-6, 3e-6},
                                    {at::kBFloat16, at::kBFloat16, 8e-3, 8e-3},
                                    {at::kBFloat16, at::kFloat, 8e-3, 5e-6},
                                    {at::kHalf, at::kFloat, 1e-3, 5e-6}};

constexpr int64_t width = 6;

class Kernels : public testing::TestWithParam<std::tuple<Precision, int64_t>> {
 protected:
  Precision precision = std::get<0>(GetParam());
  int64_t rows = std::get<1>(GetParam());

  // Strided rows, with NaN in the gaps.
  Tensor rows_of(uint64_t seed, int64_t columns = width) const {
    return spread(random({rows, columns}, seed, precision.type));
  }
  Tensor parameter(uint64_t seed, int64_t size = width) const { return random({size}, seed, precision.type); }
  Tensor gradient_like(const Tensor& shape) const {
    return at::full(shape.sizes(), 0.25, at::TensorOptions().dtype(precision.gradient_type));
  }
  fvlm_kernels_query query(uint32_t options = FVLM_WITH_BACKWARD) const {
    return make_query(precision.type, precision.gradient_type, rows, width, options);
  }

  void expect_rounded(const Tensor& actual, const Tensor& expected, const char* what) const {
    EXPECT_EQ(actual.scalar_type(), precision.type) << what;
    expect_close(actual, expected, precision.rounded, what);
  }
  // `fresh` was overwritten; `added` was 0.25 before and accumulated.
  void expect_gradient(const Tensor& fresh, const Tensor& added, const Tensor& expected, const char* what) const {
    EXPECT_EQ(fresh.scalar_type(), precision.gradient_type) << what;
    expect_close(fresh, expected, precision.gradient, what);
    expect_close(added, expected + 0.25, precision.gradient, what);
  }
};

Tensor gradient_of(const Tensor& leaf) {
  return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
}

struct NormResult {
  Tensor s, y, d_x, d_weight, d_bias;
};

// From the definition, differentiated by autograd, with s as it was rounded.
NormResult norm(int32_t op, const Tensor& s_rounded, const Tensor& weight, const Tensor& bias, const Tensor& d_y,
                const Tensor& d_sum, float epsilon) {
  const Tensor s = leaf(s_rounded), w = leaf(weight), b = leaf(bias);
  Tensor y;
  if (op == FVLM_OP_RMSNORM) {
    y = s / (s.pow(2).mean(1, true) + static_cast<double>(epsilon)).sqrt() * w;
  } else {
    const Tensor centred = s - s.mean(1, true);
    y = centred / (centred.pow(2).mean(1, true) + static_cast<double>(epsilon)).sqrt() * w + b;
  }
  y.backward(d_y.to(at::kDouble));
  return {s, y.detach(), gradient_of(s) + d_sum.to(at::kDouble), gradient_of(w), gradient_of(b)};
}

} // namespace

TEST_P(Kernels, NormsWithAndWithoutResidual) {
  for (const int32_t op : {FVLM_OP_RMSNORM, FVLM_OP_LAYERNORM})
    for (const bool residual : {false, true}) {
      SCOPED_TRACE((op == FVLM_OP_RMSNORM ? "rmsnorm" : "layernorm") + std::string(residual ? " + residual" : ""));
      auto q = query(FVLM_WITH_BACKWARD | (residual ? FVLM_WITH_RESIDUAL : 0));
      q.op = op;
      const Norm norm_op(backend(), q);
      const Tensor x = rows_of(1), other = residual ? rows_of(2) : Tensor();
      const Tensor weight = parameter(3), bias = parameter(4), d_y = rows_of(5);
      const Tensor passed_bias = op == FVLM_OP_LAYERNORM ? bias : Tensor();
      const Tensor d_sum = residual ? rows_of(6) : at::zeros_like(d_y);
      const auto output = norm_op.forward(x, other, weight, passed_bias);
      EXPECT_EQ(output.sum.defined(), residual);
      if (residual) expect_rounded(output.sum, x.to(at::kDouble) + other.to(at::kDouble), "sum");
      const Tensor s = residual ? output.sum : x;
      const auto want = norm(op, s, weight, bias, d_y, d_sum, q.epsilon);
      expect_rounded(output.y, want.y, "y");

      const Tensor passed_d_sum = residual ? d_sum : Tensor();
      const auto fresh = norm_op.backward(s, weight, output, d_y, passed_d_sum, {});
      const auto added = norm_op.backward(s, weight, output, d_y, passed_d_sum, {},
                                          {{}, gradient_like(weight), gradient_like(weight)}, true);
      expect_rounded(fresh.x, want.d_x, "d_x");
      expect_gradient(fresh.weight, added.weight, want.d_weight, "d_weight");
      if (op == FVLM_OP_LAYERNORM)
        expect_gradient(fresh.bias, added.bias, want.d_bias, "d_bias");
      else
        EXPECT_FALSE(fresh.bias.defined());
      const auto frozen = norm_op.backward(s, weight, output, d_y, passed_d_sum, {false, false});
      EXPECT_FALSE(frozen.weight.defined());
      expect_same_bits(frozen.x, fresh.x, "d_x of a frozen norm");

      // Outputs may use the memory of inputs.
      const Tensor in_place = spread(d_y);
      norm_op.backward(s, weight, output, in_place, passed_d_sum, {false, false}, {in_place, {}, {}});
      expect_same_bits(in_place, fresh.x, "d_x in the memory of d_y");
      if (!residual) continue;
      const Tensor over_sum = spread(d_sum);
      norm_op.backward(s, weight, output, d_y, over_sum, {false, false}, {over_sum, {}, {}});
      expect_same_bits(over_sum, fresh.x, "d_x in the memory of d_sum");
      for (const bool over_x : {false, true}) {
        const Tensor x_copy = spread(x), other_copy = spread(other);
        const auto aliased =
            norm_op.forward(x_copy, other_copy, weight, passed_bias, {{}, over_x ? x_copy : other_copy, {}});
        expect_same_bits(over_x ? x_copy : other_copy, output.sum, "sum in the memory of an input");
        expect_same_bits(aliased.y, output.y, "y");
      }
    }
}

TEST_P(Kernels, RopeRotatesPartOfEachHeadAndBack) {
  auto q = query();
  q.heads = 3;
  q.head_dim = 8;
  q.rotary_dim = 6;
  q.width = 24;
  const Rope rope(backend(), q);
  const Tensor x = spread(random({rows, 3, 8}, 1, precision.type));
  const Tensor positions = at::arange(rows, at::kInt) * 7 + 2;
  Tensor want = x.to(at::kDouble).clone();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t head = 0; head < 3; ++head)
      for (int64_t i = 0; i < 3; ++i) {
        const double angle = positions[row].item<int>() * std::pow(50.0, -2.0 * static_cast<double>(i) / 6);
        const double a = x[row][head][i].item<double>(), b = x[row][head][i + 3].item<double>();
        want[row][head][i] = a * std::cos(angle) - b * std::sin(angle);
        want[row][head][i + 3] = b * std::cos(angle) + a * std::sin(angle);
      }
  const Tensor out = rope.apply(x, positions, false);
  expect_rounded(out, want, "out");
  expect_close(rope.apply(out, positions, true), x, 2 * precision.rounded, "rotated back");
  const Tensor in_place = spread(x);
  rope.apply(in_place, positions, false, in_place);
  expect_same_bits(in_place, out, "in place");
}

TEST_P(Kernels, Swiglu) {
  const SwiGlu swiglu(backend(), query());
  const Tensor gate = rows_of(1), up = rows_of(2), d_y = rows_of(3);
  const Tensor g = leaf(gate), u = leaf(up);
  const Tensor y = g / (1 + (-g).exp()) * u;
  y.backward(d_y.to(at::kDouble));
  expect_rounded(swiglu.forward(gate, up), y, "y");
  const auto gradients = swiglu.backward(gate, up, d_y);
  expect_rounded(gradients.gate, gradient_of(g), "d_gate");
  expect_rounded(gradients.up, gradient_of(u), "d_up");
  for (const bool crossed : {false, true}) {
    const Tensor gate_copy = spread(gate), up_copy = spread(up);
    const auto aliased =
        swiglu.backward(gate_copy, up_copy, d_y, {crossed ? up_copy : gate_copy, crossed ? gate_copy : up_copy});
    expect_same_bits(aliased.gate, gradients.gate, "d_gate in place");
    expect_same_bits(aliased.up, gradients.up, "d_up in place");
  }
}

TEST_P(Kernels, BiasGeluWithAndWithoutBias) {
  for (const bool with_bias : {false, true}) {
    SCOPED_TRACE(with_bias ? "bias" : "no bias");
    const BiasGelu gelu(backend(), query(FVLM_WITH_BACKWARD | (with_bias ? FVLM_WITH_BIAS : 0)));
    const Tensor x = rows_of(1), bias = with_bias ? parameter(2) : Tensor(), d_y = rows_of(3);
    const Tensor sum = leaf(x), b = leaf(with_bias ? bias : at::zeros({width}));
    const Tensor y = (sum + b) * ((sum + b) / std::sqrt(2.0)).erf().add(1) / 2;
    y.backward(d_y.to(at::kDouble));
    expect_rounded(gelu.forward(x, bias), y, "y");
    const auto fresh = gelu.backward(x, bias, d_y, with_bias);
    expect_rounded(fresh.x, gradient_of(sum), "d_x");
    const Tensor in_place = spread(d_y);
    gelu.backward(x, bias, in_place, false, {in_place, {}});
    expect_same_bits(in_place, fresh.x, "d_x in the memory of d_y");
    if (!with_bias) continue;
    const auto added = gelu.backward(x, bias, d_y, true, {{}, gradient_like(bias)}, true);
    expect_gradient(fresh.bias, added.bias, gradient_of(b), "d_bias");
  }
}

TEST_P(Kernels, bias_gelu_of_both_approximations) {
  for (const uint32_t form : {FVLM_QUICK_GELU, FVLM_GELU_TANH}) {
    SCOPED_TRACE(form == FVLM_QUICK_GELU ? "quick" : "tanh");
    const BiasGelu gelu(backend(), query(FVLM_WITH_BACKWARD | FVLM_WITH_BIAS | form));
    const Tensor x = rows_of(1), bias = parameter(2), d_y = rows_of(3), x_leaf = leaf(x), b = leaf(bias);
    const Tensor sum = x_leaf + b;
    const Tensor y = form == FVLM_QUICK_GELU
                         ? sum * (sum * 1.702).sigmoid()
                         : sum * 0.5 * ((sum + sum.pow(3) * 0.044715) * std::sqrt(2 / M_PI)).tanh().add(1);
    y.backward(d_y.to(at::kDouble));
    expect_rounded(gelu.forward(x, bias), y, "y");
    const auto fresh = gelu.backward(x, bias, d_y, true);
    expect_rounded(fresh.x, gradient_of(x_leaf), "d_x");
    const auto added = gelu.backward(x, bias, d_y, true, {{}, gradient_like(bias)}, true);
    expect_gradient(fresh.bias, added.bias, gradient_of(b), "d_bias");
  }
}

TEST_P(Kernels, LayerscaleWithResidual) {
  const LayerScale layerscale(backend(), query());
  const Tensor x = rows_of(1), scale = parameter(2), residual = rows_of(3), d_y = rows_of(4);
  const Tensor x_leaf = leaf(x), scale_leaf = leaf(scale);
  const Tensor y = residual.to(at::kDouble) + x_leaf * scale_leaf;
  y.backward(d_y.to(at::kDouble));
  const Tensor out = layerscale.forward(x, scale, residual);
  expect_rounded(out, y, "y");
  const Tensor in_place = spread(residual);
  layerscale.forward(x, scale, in_place, in_place);
  expect_same_bits(in_place, out, "y in the memory of residual");
  const auto fresh = layerscale.backward(x, scale, d_y, true);
  const auto added = layerscale.backward(x, scale, d_y, true, {{}, gradient_like(scale)}, true);
  expect_rounded(fresh.x, gradient_of(x_leaf), "d_x");
  expect_gradient(fresh.scale, added.scale, gradient_of(scale_leaf), "d_scale");
  EXPECT_FALSE(layerscale.backward(x, scale, d_y, false).scale.defined());
}

TEST_P(Kernels, LinearWithBiasAndGelu) {
  constexpr int64_t inner = 5;
  for (const uint32_t options :
       {0u, 1u * FVLM_WITH_BIAS, 1u * FVLM_WITH_GELU, 1u * (FVLM_WITH_BIAS | FVLM_WITH_GELU)}) {
    SCOPED_TRACE("options " + std::to_string(options));
    auto q = query(options | FVLM_WITH_BACKWARD);
    q.inner = inner;
    const Linear linear(backend(), q);
    const bool with_bias = options & FVLM_WITH_BIAS, with_gelu = options & FVLM_WITH_GELU;
    const Tensor x = rows_of(1, inner), weight = random({width, inner}, 2, precision.type);
    const Tensor bias = with_bias ? parameter(3) : Tensor(), d_y = rows_of(4);
    Tensor want = at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t());
    if (with_bias) want += bias.to(at::kDouble);
    const Tensor strided = spread(at::zeros({rows, width}, precision.type));
    const auto output = linear.forward(x, weight, bias, {strided, {}});
    EXPECT_EQ(output.y.data_ptr(), strided.data_ptr());
    EXPECT_EQ(output.pre_activation.defined(), with_gelu);
    if (with_gelu) {
      expect_rounded(output.pre_activation, want, "pre_activation");
      want = at::gelu(output.pre_activation.to(at::kDouble));
    }
    expect_rounded(output.y, want, "y");

    const Tensor d_x = at::matmul(d_y.to(at::kDouble), weight.to(at::kDouble));
    expect_rounded(linear.input_gradient(d_y, weight), d_x, "d_x");
    const Tensor before = leaf(rows_of(5, inner));
    at::gelu(before).backward(d_x);
    expect_rounded(linear.input_gradient(d_y, weight, rows_of(5, inner)), gradient_of(before), "d_x through gelu");

    const Tensor d_weight = at::matmul(d_y.to(at::kDouble).t(), x.to(at::kDouble)), d_bias = d_y.to(at::kDouble).sum(0);
    const auto fresh = linear.weight_gradient(d_y, x, true);
    const auto added = linear.weight_gradient(d_y, x, true, {gradient_like(d_weight), gradient_like(d_bias)}, true);
    expect_gradient(fresh.weight, added.weight, d_weight, "d_weight");
    expect_gradient(fresh.bias, added.bias, d_bias, "d_bias");
    EXPECT_FALSE(linear.weight_gradient(d_y, x, false).bias.defined());
  }
}

TEST_P(Kernels, LinearWithResidual) {
  constexpr int64_t inner = 5;
  for (const uint32_t options : {0u, 1u * FVLM_WITH_BIAS}) {
    auto q = query(options | FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL);
    q.inner = inner;
    const Linear linear(backend(), q);
    const Tensor x = rows_of(1, inner), weight = random({width, inner}, 2, precision.type),
                 bias = options ? parameter(3) : Tensor(), residual = rows_of(4);
    Tensor want = at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t()) + residual.to(at::kDouble);
    if (options) want += bias.to(at::kDouble);
    const Tensor out = linear.forward(x, weight, bias, {}, residual).y, in_place = spread(residual);
    expect_rounded(out, want, "y");
    linear.forward(x, weight, bias, {in_place, {}}, in_place);
    expect_same_bits(in_place, out, "y in the memory of residual");
  }
}

// The e4m3 number nearest to x, which is at most 448: 3 bits behind the leading one, and multiples of 2^-9 below 2^-6.
double e4m3(double x) {
  const double unit = std::exp2(std::max(std::floor(std::log2(std::max(std::abs(x), 0x1p-20))), -6.0) - 3);
  return std::nearbyint(x / unit) * unit;
}

// `numbers`, each row rounded with the least power of two as its scale. The last `pairs` keep what rounding leaves.
Tensor rows_in_fp8(const Tensor& numbers, int64_t pairs = 0) {
  Tensor rounded = numbers.to(at::kDouble).clone(at::MemoryFormat::Contiguous);
  for (int64_t row = 0; row < rounded.size(0); ++row) {
    double* values = rounded[row].data_ptr<double>();
    double largest = 0x1p-100, scale = 0x1p-110;
    for (int64_t i = 0; i < rounded.size(1); ++i) largest = std::max(largest, std::abs(values[i]));
    while (448 * scale < largest) scale *= 2;
    for (int64_t i = 0; i < rounded.size(1); ++i) {
      const double scaled = values[i] / scale, first = e4m3(scaled);
      values[i] = (i < rounded.size(1) - pairs ? first : first + e4m3(scaled - first)) * scale;
    }
  }
  return rounded;
}

TEST_P(Kernels, LinearInFp8) {
  constexpr int64_t inner = 37;
  auto q = query(FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL | FVLM_WITH_BIAS | FVLM_WITH_FP8);
  q.inner = inner;
  const Linear linear(backend(), q);
  const Tensor x = rows_of(1, inner), weight = random({width, inner}, 2, precision.type), bias = parameter(3),
               residual = rows_of(4), d_y = rows_of(5);
  if (rows > 1) x[0].mul_(1e-3), d_y[1].mul_(10), weight[2].fill_(448);
  const Tensor product = at::matmul(rows_in_fp8(x), rows_in_fp8(weight).t());
  expect_rounded(linear.forward(x, weight, bias, {}, residual).y,
                 product + bias.to(at::kDouble) + residual.to(at::kDouble), "y");
  const Tensor columns = rows_in_fp8(weight.t().contiguous());
  expect_rounded(linear.input_gradient(d_y, weight), at::matmul(rows_in_fp8(d_y), columns.t()), "d_x");
  const auto fresh = linear.weight_gradient(d_y, x, true),
             added = linear.weight_gradient(d_y, x, true, {gradient_like(weight), gradient_like(bias)}, true);
  expect_gradient(fresh.weight, added.weight, at::matmul(d_y.to(at::kDouble).t(), x.to(at::kDouble)), "d_weight");
}

// As frozen weights with adapters behind them are multiplied.
TEST_P(Kernels, LinearInFp8WithPairs) {
  constexpr int64_t inner = 37, pairs = 3;
  const Tensor x = rows_of(1, inner), weight = random({width, inner}, 2, precision.type), d_y = rows_of(5);
  for (const uint32_t direction : {0u, uint32_t{FVLM_WITH_BACKWARD}}) {
    auto q = query(direction | FVLM_WITH_FP8 | FVLM_FP8_PAIRS);
    q.inner = inner, q.pairs = pairs;
    const Linear linear(backend(), q);
    if (direction == 0)
      expect_rounded(linear.forward(x, weight, {}).y, at::matmul(rows_in_fp8(x, pairs), rows_in_fp8(weight, pairs).t()),
                     "y");
    else
      expect_rounded(linear.input_gradient(d_y, weight),
                     at::matmul(rows_in_fp8(d_y, pairs), rows_in_fp8(weight.t().contiguous(), pairs).t()), "d_x");
  }
}

// A row that holds infinity or no number leaves no finite result behind, and the others as they are.
TEST_P(Kernels, LinearInFp8KeepsWhatIsNotFinite) {
  if (rows < 2) return;
  auto q = query(FVLM_WITH_FP8);
  q.inner = 4;
  const Linear linear(backend(), q);
  for (const double value : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const Tensor x = rows_of(1, 4), weight = random({width, 4}, 2, precision.type);
    x[1][2] = value;
    const Tensor finite = linear.forward(x, weight, {}).y.isfinite().all(1);
    EXPECT_FALSE(finite[1].item<bool>());
    EXPECT_EQ(finite.sum().item<int64_t>(), rows - 1);
  }
}

TEST_P(Kernels, ScaledRows) {
  constexpr int64_t inner = 5;
  auto q = query();
  q.inner = inner;
  const FoldRowScale op(backend(), q);
  const auto linears = [&](uint64_t seed) { return spread(random({rows, width, inner}, seed, precision.type)); };
  const FoldRowScale::Parameters values{rows_of(1), {linears(2), rows_of(3)}};
  const Tensor scale = leaf(values.scale), weight = leaf(values.linears.weight), bias = leaf(values.linears.bias);
  const Tensor scaled_weight = scale.unsqueeze(2) * weight, scaled_bias = scale * bias;
  const auto scaled = op.forward(values);
  expect_rounded(scaled.weight, scaled_weight, "scaled weight");
  expect_rounded(scaled.bias, scaled_bias, "scaled bias");

  const auto wide = precision.type == at::kDouble ? at::kDouble : at::kFloat;
  const FoldRowScale::Linears came{random({rows, width, inner}, 4, wide), random({rows, width}, 5, wide)};
  at::sum(scaled_weight * came.weight + (scaled_bias * came.bias).unsqueeze(2) / inner).backward();
  const auto give = [&](bool accumulate) {
    FoldRowScale::Parameters into{gradient_like(scale), {gradient_like(weight), gradient_like(bias)}};
    op.backward(values, came, into, accumulate);
    return into;
  };
  const auto fresh = give(false), added = give(true);
  expect_gradient(fresh.scale, added.scale, gradient_of(scale), "d_scale");
  expect_gradient(fresh.linears.weight, added.linears.weight, gradient_of(weight), "d_weight");
  expect_gradient(fresh.linears.bias, added.linears.bias, gradient_of(bias), "d_bias");
}

INSTANTIATE_TEST_SUITE_P(Reference, Kernels, testing::Combine(testing::ValuesIn(precisions), testing::Values(0, 1, 9)),
                         [](const auto& info) {
                           return fmt::format("{}_{}_rows", testing::PrintToString(std::get<0>(info.param)),
                                              std::get<1>(info.param));
                         });

TEST(KernelGradients, MatchFiniteDifferences) {
  constexpr int64_t rows = 3;
  const auto query = make_query(at::kDouble, at::kDouble, rows, width, FVLM_WITH_BACKWARD);
  const Tensor x = random({rows, width}, 1), weight = random({width}, 2), bias = random({width}, 3),
               d_y = random({rows, width}, 4);
  for (const int32_t op : {FVLM_OP_RMSNORM, FVLM_OP_LAYERNORM}) {
    auto q = query;
    q.op = op;
    const Norm norm(backend(), q);
    const Tensor passed_bias = op == FVLM_OP_LAYERNORM ? bias : Tensor();
    const auto loss = [&] { return (norm.forward(x, {}, weight, passed_bias).y * d_y).sum().item<double>(); };
    const auto gradients = norm.backward(x, weight, norm.forward(x, {}, weight, passed_bias), d_y, {}, {});
    for (int64_t element = 0; element < x.numel(); ++element)
      EXPECT_NEAR(gradients.x.view({-1})[element].item<double>(), difference(x, element, loss), 1e-8) << op;
    for (int64_t element = 0; element < width; ++element)
      EXPECT_NEAR(gradients.weight[element].item<double>(), difference(weight, element, loss), 1e-8) << op;
  }
  const SwiGlu swiglu(backend(), query);
  const Tensor up = random({rows, width}, 5);
  const auto loss = [&] { return (swiglu.forward(x, up) * d_y).sum().item<double>(); };
  const auto gradients = swiglu.backward(x, up, d_y);
  for (int64_t element = 0; element < x.numel(); ++element)
    EXPECT_NEAR(gradients.gate.view({-1})[element].item<double>(), difference(x, element, loss), 1e-8);
}

TEST(KernelPrecision, SumsOfManyBfloat16RowsAreKeptInFloat32) {
  constexpr int64_t rows = 5000;
  auto query = make_query(at::kBFloat16, at::kFloat, rows, 1, FVLM_WITH_BACKWARD | FVLM_WITH_BIAS);
  query.inner = 1;
  const Linear linear(backend(), query);
  const Tensor ones = at::ones({rows, 1}, at::kBFloat16);
  const auto gradients = linear.weight_gradient(ones, ones, true);
  EXPECT_EQ(gradients.weight.item<float>(), 5000.0f);
  EXPECT_EQ(gradients.bias.item<float>(), 5000.0f);
}

TEST(KernelSupport, RefusesWithAReason) {
  using testing::HasSubstr;
  const auto refusal = [](auto change) {
    auto query = make_query(at::kFloat, at::kFloat, 2, 8);
    query.heads = 1;
    query.head_dim = 8;
    query.rotary_dim = 8;
    change(query);
    try {
      Rope rope(backend(), query);
    } catch (const Error& error) {
      return error.text();
    }
    return std::string("not refused");
  };
  EXPECT_EQ(refusal([](auto&) {}), "not refused");
  EXPECT_THAT(refusal([](auto& q) { q.rotary_dim = 5; }), HasSubstr("rotary_dim 5"));
  EXPECT_THAT(refusal([](auto& q) { q.rotary_dim = 16; }), HasSubstr("rotary_dim 16"));
  EXPECT_THAT(refusal([](auto& q) { q.dtype = abi_dtype(at::kLong); }), HasSubstr("int64"));
  EXPECT_THAT(refusal([](auto& q) { q.gradient_dtype = abi_dtype(at::kHalf); }), HasSubstr("gradients in float16"));
}
