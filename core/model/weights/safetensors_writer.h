// Writes a safetensors file that appears whole or not at all, as the Python library would have written it.
#pragma once
#include "base/atomic_file.h"
#include "base/hash.h"
#include "model/weights/tensor.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace fvlm {

class SafetensorsWriter {
 public:
  // The tensors in any order. "format": "pt" is what transformers wants to see.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  // The order in which the file wants its tensors.
  const std::vector<TensorInfo>& order() const { return order_; }
  // The next bytes of the next tensor: all of them or a piece, never of two tensors.
  void append(std::span<const std::byte> bytes);
  // XXH64 of each tensor's bytes, in order(). Throws Error(internal) when bytes are missing.
  std::vector<uint64_t> commit();

 private:
  void next_tensor();
  std::vector<TensorInfo> order_;
  std::vector<uint64_t> checksums_;
  AtomicFile file_;
  uint64_t missing_ = 0; // bytes of the tensor that comes next
  Xxh64 hash_;
};

} // namespace fvlm
