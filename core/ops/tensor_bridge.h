// Converts between at::Tensor and fvlm_tensor without copying, and between their types and devices.
#pragma once
#include "plugin/dtype.h"

#include <fvlm/tensor.h>

#include <ATen/core/Tensor.h>

#include <array>

namespace fvlm::ops {

// All throw Error for what the ABI or LibTorch does not have (complex, bool, a device other than CPU and CUDA).
fvlm_dtype abi_dtype(at::ScalarType type);
at::ScalarType scalar_type(fvlm_dtype dtype);
bool is_known(fvlm_dtype dtype);
fvlm_device abi_device(at::Device device);
at::Device torch_device(fvlm_device device);

using fvlm::dtype_name;

// An fvlm_tensor for an at::Tensor's memory, with the shape and strides that it points to. It does not keep the tensor
// alive. An undefined tensor becomes NULL, which the ABI uses for arguments that are absent.
class AbiTensor {
 public:
  AbiTensor() = default;
  explicit AbiTensor(const at::Tensor& tensor);
  AbiTensor(const AbiTensor& other) { *this = other; }
  AbiTensor& operator=(const AbiTensor& other);

  fvlm_tensor* get() { return defined_ ? &tensor_ : nullptr; }
  const fvlm_tensor* get() const { return defined_ ? &tensor_ : nullptr; }
  double bytes() const; // of its elements

 private:
  fvlm_tensor tensor_{};
  std::array<int64_t, FVLM_MAX_DIMS> shape_{}, strides_{};
  bool defined_ = false;
};

// An at::Tensor that views the fvlm_tensor's memory and does not own it. NULL becomes an undefined tensor.
at::Tensor torch_tensor(const fvlm_tensor* tensor);

} // namespace fvlm::ops
