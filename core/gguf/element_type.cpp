#include "gguf/element_type.h"

#include "base/error.h"
#include "base/text.h"
#include "model/weights/convert.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fvlm::gguf {

const ElementType f32{"f32", 0, 0, 1, 4, DType::f32}, f16{"f16", 1, 1, 1, 2, DType::f16},
    q8_0{"q8_0", 8, 7, 32, 34, DType::u8};

namespace {

const ElementType bf16{"bf16", 30, 32, 1, 2, DType::bf16}, q4_0{"q4_0", 2, 2, 32, 18, DType::u8};
const ElementType* const all_types[] = {&f32, &f16, &bf16, &q8_0, &q4_0};

uint64_t put_scale(float scale, std::byte* out) {
  return convert(std::as_bytes(std::span(&scale, 1)), DType::f32, std::span(out, 2), DType::f16);
}

// Codes from -127 to 127, of which the largest number has one.
uint64_t encode_q8_0(const float* numbers, std::byte* out) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(numbers[i]));
  const float scale = largest / 127, inverse = scale == 0 ? 0 : 1 / scale;
  for (int i = 0; i < 32; ++i) {
    const auto code = static_cast<int8_t>(std::round(numbers[i] * inverse));
    std::memcpy(out + 2 + i, &code, 1);
  }
  return put_scale(scale, out);
}

// Codes from 0 to 15, of which 8 is zero and 0 the number that is farthest from it. The first half of a block has the
// lower bits of the bytes.
uint64_t encode_q4_0(const float* numbers, std::byte* out) {
  float farthest = 0;
  for (int i = 0; i < 32; ++i)
    if (std::abs(numbers[i]) > std::abs(farthest)) farthest = numbers[i];
  const float scale = farthest / -8, inverse = scale == 0 ? 0 : 1 / scale;
  const auto code = [&](int i) {
    return static_cast<uint8_t>(std::clamp(std::fma(numbers[i], inverse, 8.5F), 0.0F, 15.0F));
  };
  for (int i = 0; i < 16; ++i) out[2 + i] = std::byte(code(i) | code(i + 16) << 4);
  return put_scale(scale, out);
}

} // namespace

const ElementType& element_type(const std::string& name) {
  std::vector<std::string> names;
  for (const ElementType* type : all_types) {
    if (name == type->name) return *type;
    names.emplace_back(type->name);
  }
  throw Error(ErrorKind::usage, "--gguf: expected {}, got '{}'", join_or(names), name);
}

uint64_t encode(const ElementType& type, std::span<const float> numbers, std::vector<std::byte>& out) {
  out.resize(type.bytes(static_cast<int64_t>(numbers.size())));
  if (!type.is_quantized()) return convert(std::as_bytes(numbers), DType::f32, out, type.dtype);
  uint64_t overflowed = 0;
  std::byte* to = out.data();
  for (size_t i = 0; i < numbers.size(); i += 32, to += type.block_bytes)
    overflowed += (type.id == q8_0.id ? encode_q8_0 : encode_q4_0)(numbers.data() + i, to);
  return overflowed;
}

} // namespace fvlm::gguf
