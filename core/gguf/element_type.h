// The element types of a GGUF file. Those below a byte a weight come in blocks of 32 with a scale each.
#pragma once
#include "model/weights/dtype.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fvlm::gguf {

struct ElementType {
  const char* name;    // as llama.cpp and --gguf have it: "q8_0"
  uint32_t id;         // in a file
  uint32_t file_type;  // general.file_type of a model that consists of it
  int64_t block;       // elements that are stored together; rows consist of whole blocks
  int64_t block_bytes; // of these
  DType dtype;         // of a type whose blocks are single numbers

  bool is_quantized() const { return block > 1; }
  uint64_t bytes(int64_t elements) const { return static_cast<uint64_t>(elements / block * block_bytes); }
};

const ElementType& element_type(const std::string& name); // throws Error(usage) for another name
extern const ElementType f32, f16, q8_0;

// Whole blocks. Returns how many finite numbers became infinite.
uint64_t encode(const ElementType& type, std::span<const float> numbers, std::vector<std::byte>& out);

} // namespace fvlm::gguf
