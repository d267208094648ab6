// values.h: buffers of any float type, accessed as float.
#pragma once

#include "common/testing/harness.h"

#include <cstring>

namespace fvlm::testing {

// The nearest value that the dtype can represent.
inline float rounded(float value, fvlm_dtype dtype) {
  if (dtype.bits == 32) return value;
  const auto widen = dtype.code == FVLM_BFLOAT ? widen_bf16 : widen_f16;
  return widen(narrow(value, widen));
}

// A buffer of one dtype, accessed as float.
class Values {
 public:
  Values(std::int64_t count, fvlm_dtype dtype)
      : dtype_(dtype), bytes_(static_cast<std::size_t>(count) * dtype.bits / 8) {}
  float get(std::int64_t i) const {
    if (dtype_.bits == 32) {
      float value;
      std::memcpy(&value, &bytes_[static_cast<std::size_t>(i) * 4], 4);
      return value;
    }
    std::uint16_t code;
    std::memcpy(&code, &bytes_[static_cast<std::size_t>(i) * 2], 2);
    return dtype_.code == FVLM_BFLOAT ? widen_bf16(code) : widen_f16(code);
  }
  void set(std::int64_t i, float value) {
    if (dtype_.bits == 32) {
      std::memcpy(&bytes_[static_cast<std::size_t>(i) * 4], &value, 4);
    } else {
      const std::uint16_t code = narrow(value, dtype_.code == FVLM_BFLOAT ? widen_bf16 : widen_f16);
      std::memcpy(&bytes_[static_cast<std::size_t>(i) * 2], &code, 2);
    }
  }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()) * 8 / dtype_.bits; }
  Tensor tensor(std::int64_t rows, std::int64_t cols, std::int64_t stride) {
    Tensor made(bytes_.data(), dtype_, {rows, cols});
    made.set_stride(0, stride);
    return made;
  }
  Tensor tensor() { return {bytes_.data(), dtype_, {size()}}; }
  const TestVector<char>& bytes() const { return bytes_; }

 private:
  fvlm_dtype dtype_;
  TestVector<char> bytes_;
};

} // namespace fvlm::testing
