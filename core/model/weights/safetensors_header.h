// The header of one safetensors file, checked against the file that it describes.
#pragma once
#include "model/weights/tensor.h"

#include <map>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

struct SafetensorsHeader {
  std::vector<TensorView> tensors; // by offset; their data lies in the file that was given
  std::map<std::string, std::string> metadata;
};

// Throws Error(data) at `where`.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& where);

} // namespace fvlm
