// A tensor as a file holds it: name, element type, shape, and its bytes where they lie.
#pragma once
#include "base/text.h"
#include "model/weights/dtype.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

class WeightReader;

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape; // row-major; empty: a scalar

  uint64_t elements() const {
    uint64_t product = 1;
    for (int64_t size : shape) product *= static_cast<uint64_t>(size);
    return product;
  }
  uint64_t byte_size() const { return elements() * size_of(dtype); }
  bool operator==(const TensorInfo&) const = default;
};

// `data` has byte_size() bytes, little-endian, and need not be aligned to the element type. It lives as long as what
// the view came from.
struct TensorView : TensorInfo {
  std::span<const std::byte> data;
  // Where the file has the numbers otherwise than one after the other: reads them, and `data` is empty. See
  // quantized_folder.h and stacked_experts.h.
  std::shared_ptr<const WeightReader> reader = nullptr;
};

std::string shape_text(std::span<const int64_t> shape); // "[9, 3, 64]"

} // namespace fvlm
