#include "ops/tensor_bridge.h"

#include "base/error.h"
#include "ops/dry_run.h"

#include <ATen/dlpack.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Device.h>
#include <fmt/format.h>

#include <cstddef>

namespace fvlm::ops {

// fvlm_tensor has the layout of DLPack's DLTensor.
static_assert(sizeof(fvlm_tensor) == sizeof(DLTensor));
static_assert(offsetof(fvlm_tensor, data) == offsetof(DLTensor, data));
static_assert(offsetof(fvlm_tensor, device) == offsetof(DLTensor, device));
static_assert(offsetof(fvlm_tensor, ndim) == offsetof(DLTensor, ndim));
static_assert(offsetof(fvlm_tensor, dtype) == offsetof(DLTensor, dtype));
static_assert(offsetof(fvlm_tensor, shape) == offsetof(DLTensor, shape));
static_assert(offsetof(fvlm_tensor, strides) == offsetof(DLTensor, strides));
static_assert(offsetof(fvlm_tensor, byte_offset) == offsetof(DLTensor, byte_offset));
static_assert(sizeof(fvlm_device) == sizeof(DLDevice) && offsetof(fvlm_device, id) == offsetof(DLDevice, device_id));
static_assert(sizeof(fvlm_dtype) == sizeof(DLDataType) && offsetof(fvlm_dtype, bits) == offsetof(DLDataType, bits) &&
              offsetof(fvlm_dtype, lanes) == offsetof(DLDataType, lanes));
static_assert(int{FVLM_CPU} == int{kDLCPU} && int{FVLM_CUDA} == int{kDLCUDA});
static_assert(int{FVLM_INT} == int{kDLInt} && int{FVLM_UINT} == int{kDLUInt} && int{FVLM_FLOAT} == int{kDLFloat} &&
              int{FVLM_BFLOAT} == int{kDLBfloat});

namespace {

struct TypePair {
  at::ScalarType torch;
  fvlm_dtype abi;
};

constexpr TypePair types[] = {
    {at::kFloat, {FVLM_FLOAT, 32, 1}},  {at::kBFloat16, {FVLM_BFLOAT, 16, 1}}, {at::kHalf, {FVLM_FLOAT, 16, 1}},
    {at::kDouble, {FVLM_FLOAT, 64, 1}}, {at::kInt, {FVLM_INT, 32, 1}},         {at::kLong, {FVLM_INT, 64, 1}},
    {at::kChar, {FVLM_INT, 8, 1}},      {at::kShort, {FVLM_INT, 16, 1}},       {at::kByte, {FVLM_UINT, 8, 1}},
    {at::kUInt16, {FVLM_UINT, 16, 1}},  {at::kUInt32, {FVLM_UINT, 32, 1}},     {at::kUInt64, {FVLM_UINT, 64, 1}},
};

Error refusal(std::string what) {
  return {ErrorKind::internal, std::move(what)};
}

const TypePair* find_type(fvlm_dtype dtype) {
  for (const auto& type : types)
    if (type.abi.code == dtype.code && type.abi.bits == dtype.bits && dtype.lanes == 1) return &type;
  return nullptr;
}

} // namespace

fvlm_dtype abi_dtype(at::ScalarType type) {
  for (const auto& pair : types)
    if (pair.torch == type) return pair.abi;
  throw refusal(fmt::format("a tensor of {} cannot be passed to a plugin", c10::toString(type)))
      .advise("convert it to a float or integer type first");
}

at::ScalarType scalar_type(fvlm_dtype dtype) {
  if (const auto* type = find_type(dtype)) return type->torch;
  throw refusal(fmt::format("dtype {} is not supported by the engine", dtype_name(dtype)));
}

bool is_known(fvlm_dtype dtype) {
  return find_type(dtype) != nullptr;
}

fvlm_device abi_device(at::Device given) {
  const at::Device device = real_device(given);
  if (device.is_cpu()) return {FVLM_CPU, 0};
  if (device.is_cuda() && device.has_index()) return {FVLM_CUDA, device.index()};
  throw refusal(fmt::format("a tensor on '{}' cannot be passed to a plugin", device.str()))
      .advise("move it to cpu or to a numbered cuda device");
}

at::Device torch_device(fvlm_device device) {
  if (is_dry_run(at::kMeta)) return at::kMeta;
  if (device.type == FVLM_CPU) return at::Device(at::kCPU);
  if (device.type == FVLM_CUDA && device.id >= 0 && device.id < 128)
    return {at::kCUDA, static_cast<c10::DeviceIndex>(device.id)};
  throw refusal(fmt::format("device (type {}, id {}) is not supported by the engine", device.type, device.id));
}

AbiTensor::AbiTensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_nested() || !tensor.has_storage())
    throw refusal("only plain strided tensors can be passed to a plugin").advise("make the tensor dense first");
  if (tensor.is_conj() || tensor.is_neg())
    throw refusal("a lazily conjugated or negated view cannot be passed to a plugin")
        .advise("call resolve_conj() or resolve_neg() first");
  if (tensor.dim() > FVLM_MAX_DIMS)
    throw refusal(fmt::format("a tensor of {} dimensions cannot be passed to a plugin: the limit is {}", tensor.dim(),
                              FVLM_MAX_DIMS));
  tensor_.device = abi_device(tensor.device());
  tensor_.dtype = abi_dtype(tensor.scalar_type());
  tensor_.ndim = static_cast<int32_t>(tensor.dim());
  tensor_.data = tensor.numel() == 0 ? nullptr : tensor.data_ptr();
  std::copy_n(tensor.sizes().begin(), tensor.dim(), shape_.begin());
  std::copy_n(tensor.strides().begin(), tensor.dim(), strides_.begin());
  tensor_.shape = shape_.data();
  tensor_.strides = strides_.data();
  defined_ = true;
}

AbiTensor& AbiTensor::operator=(const AbiTensor& other) {
  tensor_ = other.tensor_;
  shape_ = other.shape_;
  strides_ = other.strides_;
  defined_ = other.defined_;
  tensor_.shape = shape_.data();
  tensor_.strides = strides_.data();
  return *this;
}

double AbiTensor::bytes() const {
  if (!defined_) return 0;
  double elements = 1;
  for (int32_t i = 0; i < tensor_.ndim; ++i) elements *= static_cast<double>(shape_[static_cast<size_t>(i)]);
  return elements * tensor_.dtype.bits * tensor_.dtype.lanes / 8;
}

at::Tensor torch_tensor(const fvlm_tensor* tensor) {
  if (!tensor) return {};
  if (tensor->ndim < 0 || tensor->ndim > FVLM_MAX_DIMS || (tensor->ndim > 0 && (!tensor->shape || !tensor->strides)))
    throw refusal(fmt::format("a tensor with {} dimensions and {} is malformed", tensor->ndim,
                              tensor->shape && tensor->strides ? "its shape" : "no shape or strides"));
  if (tensor->byte_offset != 0)
    throw refusal(fmt::format("a tensor has byte_offset {}; the ABI requires 0", tensor->byte_offset));
  const at::IntArrayRef shape(tensor->shape, tensor->ndim), strides(tensor->strides, tensor->ndim);
  int64_t elements = 1;
  for (int64_t size : shape) {
    if (size < 0) throw refusal(fmt::format("a tensor has the negative size {}", size));
    elements *= size;
  }
  if (!tensor->data && elements > 0) throw refusal(fmt::format("a tensor of {} elements has no data", elements));
  const at::Device device = torch_device(tensor->device);
  const auto options = at::TensorOptions().dtype(scalar_type(tensor->dtype)).device(device);
  return at::for_blob(tensor->data, shape).strides(strides).options(options).target_device(device).make_tensor();
}

} // namespace fvlm::ops
