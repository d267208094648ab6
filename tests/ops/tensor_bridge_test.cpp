#include "base/error.h"
#include "ops/tensor_bridge.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::ops;

namespace {

template <class F>
std::string refusal(F&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.text();
  }
  return "not refused";
}

} // namespace

TEST(TensorBridge, RoundTripSharesMemoryShapeStridesAndType) {
  for (auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kChar, at::kShort,
                    at::kByte, at::kUInt16, at::kUInt32, at::kUInt64}) {
    const auto whole = at::zeros({4, 6, 5}, type);
    const auto view = whole.narrow(1, 2, 3).transpose(0, 1);
    AbiTensor crossing(view);
    const auto back = torch_tensor(crossing.get());
    EXPECT_EQ(back.data_ptr(), view.data_ptr()) << c10::toString(type);
    EXPECT_EQ(back.sizes(), view.sizes()) << c10::toString(type);
    EXPECT_EQ(back.strides(), view.strides()) << c10::toString(type);
    EXPECT_EQ(back.scalar_type(), type);
  }
}

TEST(TensorBridge, WritesThroughTheViewReachTheTensor) {
  const auto whole = at::zeros({3, 4}, at::kFloat);
  torch_tensor(AbiTensor(whole.narrow(1, 1, 2)).get()).fill_(7);
  EXPECT_EQ(whole.sum().item<float>(), 42.0f);
  EXPECT_EQ(whole[0][0].item<float>(), 0.0f);
}

TEST(TensorBridge, ConvertsEmptyScalarAndUndefinedTensors) {
  AbiTensor empty(at::empty({0, 5}));
  EXPECT_EQ(empty.get()->data, nullptr);
  EXPECT_EQ(torch_tensor(empty.get()).sizes(), at::IntArrayRef({0, 5}));
  AbiTensor scalar(at::zeros({}, at::kLong));
  EXPECT_EQ(scalar.get()->ndim, 0);
  EXPECT_NE(scalar.get()->strides, nullptr);
  EXPECT_EQ(torch_tensor(scalar.get()).dim(), 0);
  EXPECT_EQ(AbiTensor(at::Tensor()).get(), nullptr);
  EXPECT_FALSE(torch_tensor(nullptr).defined());
}

TEST(TensorBridge, CopyPointsToItsOwnShape) {
  auto first = std::make_unique<AbiTensor>(at::zeros({2, 3}));
  AbiTensor copy = *first;
  first.reset();
  EXPECT_EQ(torch_tensor(copy.get()).sizes(), at::IntArrayRef({2, 3}));
}

TEST(TensorBridge, RefusesUnsupportedTensorsWithAReason) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal([] { AbiTensor(at::zeros({2}, at::kComplexFloat)); }),
              HasSubstr("ComplexFloat cannot be passed"));
  EXPECT_THAT(refusal([] { AbiTensor(at::zeros({2}, at::kBool)); }), HasSubstr("Bool cannot be passed"));
  EXPECT_THAT(refusal([] { AbiTensor(at::zeros({2}).to_sparse()); }), HasSubstr("plain strided"));
  EXPECT_THAT(refusal([] { AbiTensor(at::zeros({1, 1, 1, 1, 1})); }), HasSubstr("5 dimensions"));
  EXPECT_THAT(refusal([] { AbiTensor(at::empty({2}, at::TensorOptions().device(at::kMeta))); }), HasSubstr("'meta'"));
  EXPECT_THAT(refusal([] { AbiTensor(at::zeros({2}, at::kComplexDouble).conj()); }), HasSubstr("conjugated"));
}

TEST(TensorBridge, RefusesMalformedAbiTensorsWithAReason) {
  using testing::HasSubstr;
  const auto good = at::zeros({2, 3});
  const auto broken = [&](auto change) {
    AbiTensor tensor(good);
    change(*tensor.get());
    return refusal([&] { torch_tensor(tensor.get()); });
  };
  EXPECT_EQ(broken([](fvlm_tensor&) {}), "not refused");
  EXPECT_THAT(broken([](fvlm_tensor& t) { t.ndim = -1; }), HasSubstr("-1 dimensions"));
  EXPECT_THAT(broken([](fvlm_tensor& t) { t.ndim = 9; }), HasSubstr("9 dimensions"));
  EXPECT_THAT(broken([](fvlm_tensor& t) { t.strides = nullptr; }), HasSubstr("no shape or strides"));
  EXPECT_THAT(broken([](fvlm_tensor& t) { t.byte_offset = 8; }), HasSubstr("byte_offset 8"));
  EXPECT_THAT(broken([](fvlm_tensor& t) { t.data = nullptr; }), HasSubstr("6 elements has no data"));
  EXPECT_THAT(broken([](fvlm_tensor& t) { t.shape[1] = -3; }), HasSubstr("negative size -3"));
  EXPECT_THAT(broken([](fvlm_tensor& t) { t.dtype.lanes = 4; }), HasSubstr("4 lanes"));
  EXPECT_THAT(broken([](fvlm_tensor& t) { t.dtype.bits = 8; }), HasSubstr("float8"));
  EXPECT_THAT(broken([](fvlm_tensor& t) { t.device.type = 13; }), HasSubstr("type 13"));
}
