#include "ops/quantizer.h"
#include "tools.h"

#include <ATen/ops/fake_quantize_per_channel_affine.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;

namespace {

constexpr int64_t rows = 5, cols = 7, input_rows = 3;

Quantizer make_quantizer(at::ScalarType type, int64_t row_count = rows, int64_t col_count = cols) {
  const fvlm_quantizer_query query = {
      .dtype = abi_dtype(type), .rows = row_count, .cols = col_count, .tokens = input_rows};
  return {reference_backend<fvlm_quantizer_v1>(FVLM_QUANTIZER_KIND("int8")), query};
}

Tensor make_weight(at::ScalarType type) {
  Tensor weight = random({rows, cols}, 1, type);
  weight[2].zero_();
  return weight;
}

} // namespace

TEST(Quantizer, CodesAndScalesEqualTorchSymmetricPerChannel) {
  const Tensor weight = make_weight(at::kFloat);
  const auto packed = make_quantizer(at::kFloat).pack(spread(weight));
  ASSERT_EQ(packed.size(), 2u);
  const Tensor scales = weight.abs().amax(1) / 127;
  expect_same_bits(packed[1], scales, "scales");
  EXPECT_EQ(packed[0].scalar_type(), at::kChar);
  for (int64_t row = 0; row < rows; ++row) {
    if (row == 2) continue;
    const Tensor torchs = at::quantize_per_tensor(weight[row], scales[row].item<double>(), 0, at::kQInt8);
    expect_close(packed[0][row], torchs.int_repr(), 0, "codes of row " + std::to_string(row));
  }
}

TEST(Quantizer, RowOfZerosIsSafe) {
  const auto quantizer = make_quantizer(at::kFloat);
  const Tensor weight = make_weight(at::kFloat);
  const auto packed = quantizer.pack(weight);
  EXPECT_EQ(packed[1][2].item<float>(), 0.0f);
  expect_same_bits(packed[0][2], at::zeros({cols}, at::kChar), "codes");
  expect_same_bits(quantizer.unpack(packed)[2], at::zeros({cols}, at::kFloat), "unpacked");
}

TEST(Quantizer, RoundTripIsWithinHalfAStep) {
  for (const auto& [type, rounding] :
       {std::pair{at::kDouble, 0.0}, {at::kFloat, 0.0}, {at::kBFloat16, 4e-3}, {at::kHalf, 5e-4}}) {
    const auto quantizer = make_quantizer(type);
    const Tensor weight = make_weight(type);
    const auto packed = quantizer.pack(weight);
    const Tensor restored = quantizer.unpack(packed);
    EXPECT_EQ(restored.scalar_type(), type);
    const Tensor wide = weight.to(at::kDouble);
    const Tensor allowed = packed[1].to(at::kDouble).unsqueeze(1) * 0.500001 + wide.abs() * rounding;
    const Tensor off = (restored.to(at::kDouble) - wide).abs();
    EXPECT_TRUE(off.le(allowed).all().item<bool>()) << c10::toString(type) << " off " << off << " allowed " << allowed;
    expect_same_bits(quantizer.fake_quantize(weight), restored, "fake quantisation");
    EXPECT_EQ(packed[0].abs().max().item<int>(), 127);
  }
}

TEST(Quantizer, RepackingChangesNothing) {
  const auto quantizer = make_quantizer(at::kFloat);
  const auto packed = quantizer.pack(make_weight(at::kFloat));
  const auto again = quantizer.pack(quantizer.unpack(packed));
  expect_same_bits(again[0], packed[0], "codes");
  expect_close(again[1], packed[1], 1e-7, "scales");
}

TEST(Quantizer, HalvesRoundToEven) {
  const auto quantizer = make_quantizer(at::kFloat, 1, 5);
  const auto packed = quantizer.pack(at::tensor({127.0f, 0.5f, 1.5f, 2.5f, -0.5f}).unsqueeze(0));
  expect_same_bits(packed[0][0], at::tensor({127, 0, 2, 2, 0}, at::kChar), "codes");
}

TEST(Quantizer, LinearAndGradientUseTheRestoredWeight) {
  for (const auto& [type, tolerance] :
       {std::pair{at::kDouble, 1e-12}, {at::kFloat, 2e-6}, {at::kBFloat16, 8e-3}, {at::kHalf, 1e-3}}) {
    const auto quantizer = make_quantizer(type);
    const auto packed = quantizer.pack(make_weight(type));
    const Tensor restored = packed[0].to(at::kDouble) * packed[1].to(at::kDouble).unsqueeze(1);
    const Tensor x = spread(random({input_rows, cols}, 2, type)), bias = random({rows}, 3, type);
    const Tensor d_y = spread(random({input_rows, rows}, 4, type));
    const Tensor y = at::matmul(x.to(at::kDouble), restored.t());
    expect_close(quantizer.linear(packed, x, {}), y, tolerance, "y");
    expect_close(quantizer.linear(packed, x, bias), y + bias.to(at::kDouble), tolerance, "y with bias");
    expect_close(quantizer.linear_gradient(packed, d_y), at::matmul(d_y.to(at::kDouble), restored), tolerance, "d_x");
  }
}

TEST(Quantizer, StraightThroughGradientEqualsTorch) {
  const auto quantizer = make_quantizer(at::kFloat);
  const Tensor weight = make_weight(at::kFloat), d_out = random({rows, cols}, 5, at::kFloat);
  const Tensor scales = quantizer.pack(weight)[1].clamp_min(1e-9);
  const Tensor trained = weight.clone().set_requires_grad(true);
  at::fake_quantize_per_channel_affine(trained, scales, at::zeros({rows}, at::kInt), 0, -127, 127).backward(d_out);
  expect_same_bits(quantizer.fake_quantize_gradient(weight, d_out), trained.grad(), "d_weight");
}

TEST(Quantizer, WeightWithoutRowsOrColumns) {
  EXPECT_EQ(make_quantizer(at::kFloat, 0, cols).pack(at::zeros({0, cols}))[1].numel(), 0);
  const auto quantizer = make_quantizer(at::kFloat, rows, 0);
  const auto packed = quantizer.pack(at::zeros({rows, 0}));
  expect_same_bits(packed[1], at::zeros({rows}), "scales");
  expect_same_bits(quantizer.linear(packed, at::zeros({input_rows, 0}), {}), at::zeros({input_rows, rows}), "y");
}
