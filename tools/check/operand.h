// A tensor that is passed to a plugin, in guarded memory.
#pragma once
#include "check/pages.h"
#include "check/variation.h"

#include <fvlm/tensor.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace fvlm::check {

// The fvlm_dtype and fvlm_device of LibTorch's.
fvlm_dtype dtype_of(at::ScalarType dtype);
at::ScalarType scalar_type(fvlm_dtype dtype);
fvlm_device device_of(at::Device device);

// Whether rows of this placement may lie apart from each other.
bool spreads(Placement placement);

// Whether two tensors of bytes are the same; on the host by memcmp(), which takes a tenth of the time of at::equal().
bool same_bytes(const at::Tensor& a, const at::Tensor& b);

// A tensor that is passed to the plugin, inside a larger piece of guarded memory.
class Operand {
 public:
  // `gaps` scales the distance between rows where the placement spreads them, so that tensors differ in strides.
  Operand(std::string name, at::IntArrayRef shape, at::ScalarType dtype, at::Device device, Placement placement,
          int64_t gaps = 1);

  fvlm_tensor* abi() { return &descriptor_->tensor; }
  const at::Tensor& view() const { return view_; }
  const std::string& name() const { return name_; }

 private:
  friend class Workbench;
  at::Tensor window(const at::Tensor& storage) const; // the elements, as integers, in a copy of the storage
  void place_far(int64_t size);
  std::string name_;
  at::ScalarType dtype_;
  at::Tensor storage_; // bytes, guards included
  at::Tensor view_;
  int64_t offset_ = 0; // of view_, in bytes
  std::vector<int64_t> shape_, strides_;
  // The descriptor that the plugin reads, with its shape and strides.
  struct Descriptor {
    fvlm_tensor tensor;
    int64_t shape[8], strides[8];
  };
  Pages pages_{sizeof(Descriptor)};
  Descriptor* descriptor_ = reinterpret_cast<Descriptor*>(pages_.data());
  at::Tensor reordered_; // content during a reordered prior call; undefined: the same numbers in reverse order
};

} // namespace fvlm::check
