// dlpack_test.cpp: fvlm_tensor is binary identical to DLPack's DLTensor, so a plugin that has dlpack.h may cast.
#include <fvlm/tensor.h>

#include <ATen/dlpack.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace {

TEST(DlPack, TensorIsBinaryIdentical) {
  static_assert(sizeof(fvlm_tensor) == sizeof(DLTensor));
  static_assert(std::alignment_of_v<fvlm_tensor> == std::alignment_of_v<DLTensor>);
  static_assert(offsetof(fvlm_tensor, data) == offsetof(DLTensor, data));
  static_assert(offsetof(fvlm_tensor, device) == offsetof(DLTensor, device));
  static_assert(offsetof(fvlm_tensor, ndim) == offsetof(DLTensor, ndim));
  static_assert(offsetof(fvlm_tensor, dtype) == offsetof(DLTensor, dtype));
  static_assert(offsetof(fvlm_tensor, shape) == offsetof(DLTensor, shape));
  static_assert(offsetof(fvlm_tensor, strides) == offsetof(DLTensor, strides));
  static_assert(offsetof(fvlm_tensor, byte_offset) == offsetof(DLTensor, byte_offset));
  static_assert(sizeof(fvlm_device) == sizeof(DLDevice) && sizeof(fvlm_dtype) == sizeof(DLDataType));

  // The same bytes, read as both.
  float value = 0;
  std::int64_t shape[] = {2, 3}, strides[] = {3, 1};
  const fvlm_tensor ours = {&value, {FVLM_CUDA, 5}, 2, {FVLM_BFLOAT, 16, 1}, shape, strides, 0};
  DLTensor theirs;
  std::memcpy(&theirs, &ours, sizeof theirs);
  EXPECT_EQ(theirs.data, &value);
  EXPECT_EQ(theirs.device.device_type, kDLCUDA);
  EXPECT_EQ(theirs.device.device_id, 5);
  EXPECT_EQ(theirs.ndim, 2);
  EXPECT_EQ(theirs.dtype.code, kDLBfloat);
  EXPECT_EQ(theirs.dtype.bits, 16);
  EXPECT_EQ(theirs.dtype.lanes, 1);
  EXPECT_EQ(theirs.shape, shape);
  EXPECT_EQ(theirs.strides, strides);
  EXPECT_EQ(theirs.byte_offset, 0U);
}

TEST(DlPack, CodesAreTheSame) {
  EXPECT_EQ(FVLM_CPU, static_cast<int>(kDLCPU));
  EXPECT_EQ(FVLM_CUDA, static_cast<int>(kDLCUDA));
  EXPECT_EQ(FVLM_INT, static_cast<int>(kDLInt));
  EXPECT_EQ(FVLM_UINT, static_cast<int>(kDLUInt));
  EXPECT_EQ(FVLM_FLOAT, static_cast<int>(kDLFloat));
  EXPECT_EQ(FVLM_BFLOAT, static_cast<int>(kDLBfloat));
}

} // namespace
