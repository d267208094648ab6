// A GGUF file: keys with values, and tensors.
#pragma once
#include "gguf/element_type.h"
#include "model/weights/tensor.h"
#include "model/weights/transfer.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fvlm::gguf {

using Value = std::variant<uint32_t, int32_t, float, bool, std::string, std::vector<int32_t>, std::vector<float>,
                           std::vector<bool>, std::vector<std::string>>;

// Writes numbers of a tensor from the element `first` on.
using Read = std::function<void(uint64_t first, std::span<float> out)>;

struct Tensor {
  std::string name;
  std::vector<int64_t> shape; // row-major, as in safetensors
  const ElementType* type;
  Read read;

  int64_t elements() const;
};

struct File {
  std::string name; // "model.gguf"
  std::vector<std::pair<std::string, Value>> keys;
  std::vector<Tensor> tensors;

  void set(const std::string& key, Value value); // in place of what it had
  uint64_t tensor_bytes() const;
  // Whole or not at all. Adds to `overflowed` which tensors have finite numbers that became infinite, and how many.
  // Throws Error(data) for a number that is infinite or NaN before.
  void write(const std::filesystem::path& folder, const std::function<void(uint64_t bytes)>& written,
             std::map<std::string, uint64_t>& overflowed) const;
};

// The numbers of a floating tensor, from an element on.
Read numbers_of(const TensorView& view, uint64_t begin = 0);
// All of them plus `term`.
Read shifted(Read read, float term);
// In blocks of `width` elements, of which the block `i` is that of the file at `from(i)`.
Read blocks_of(const TensorView& view, uint64_t width, std::function<uint64_t(uint64_t block)> from);
// The rows of each head in the order 0, n/2, 1, n/2+1, ... in place of 0 .. n-1: rotary positions then turn neighbours
// in place of features half a head apart.
Read neighbours(const TensorView& view, int64_t heads);
// The other way: rows 0, 2, 4, ... 1, 3, 5, ... of the first `rotated` of each head, and then its others.
Read halves(const TensorView& view, int64_t heads, int64_t rotated);

} // namespace fvlm::gguf
