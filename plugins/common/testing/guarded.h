// guarded.h: tensors that detect writes outside of their elements, and comparisons with float64 values.
#pragma once

#include "common/cpu_level.h"
#include "common/testing/harness.h"

#include <random>

namespace fvlm::testing {

// A tensor of 32-bit or 16-bit floats or of integers, with canary bytes before, after and between its rows.
class GuardedTensor {
 public:
  // row_gap: unused elements between the rows of the last dimension.
  GuardedTensor(fvlm_dtype dtype, std::vector<std::int64_t> shape, std::int64_t row_gap = 0);

  fvlm_tensor* get() { return &tensor_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t count() const;

  // Indexed in the order of the shape, independent of strides.
  float value(std::int64_t index) const;
  void set(std::int64_t index, double value);
  std::vector<float> values() const;
  GuardedTensor& fill(double value);
  GuardedTensor& random(unsigned seed, float scale = 1.0f);

  // Fails the test if a byte outside of the elements has changed.
  void expect_intact(const char* name) const;
  std::vector<unsigned char> bytes() const { return {memory_.begin(), memory_.end()}; }

 private:
  std::size_t offset_of(std::int64_t index) const;
  std::vector<std::int64_t> shape_, strides_;
  TestVector<unsigned char> memory_;
  std::vector<bool> owned_;
  fvlm_tensor tensor_{};
};

// Expects |got - expected| <= tolerance * (1 + |expected|) everywhere; reports the worst element.
void expect_close(const GuardedTensor& got, const std::vector<double>& expected, double tolerance,
                  const std::string& what);

// The levels of common/cpu_level.h that this machine supports, as values of FVLM_CPU_LEVEL.
inline std::vector<std::string> cpu_levels() {
  std::vector<std::string> found{"baseline"};
  unsetenv("FVLM_CPU_LEVEL");
  if (plugins::cpu_level() >= plugins::CpuLevel::avx2) found.push_back("avx2");
  if (plugins::cpu_level() >= plugins::CpuLevel::avx512) found.push_back("avx512");
  return found;
}

inline constexpr unsigned char canary = 0xa5;

// Equals narrow(value, widen_bf16) without its search, since tensors here are large.
inline std::uint16_t rounded_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline GuardedTensor::GuardedTensor(fvlm_dtype dtype, std::vector<std::int64_t> shape, std::int64_t row_gap)
    : shape_(std::move(shape)) {
  const std::size_t width = dtype.bits / 8;
  strides_.assign(shape_.size(), 1);
  std::int64_t stride = 1;
  for (std::size_t d = shape_.size(); d-- > 0;) {
    strides_[d] = stride;
    stride *= shape_[d];
    if (d + 1 == shape_.size() && shape_.size() > 1) stride += row_gap;
  }
  const std::size_t guard = 64;
  memory_.assign(static_cast<std::size_t>(stride) * width + 2 * guard, canary);
  owned_.assign(memory_.size(), false);
  tensor_.data = count() ? memory_.data() + guard : nullptr;
  tensor_.device = test_device().device;
  tensor_.ndim = static_cast<std::int32_t>(shape_.size());
  tensor_.dtype = dtype;
  tensor_.shape = shape_.data();
  tensor_.strides = strides_.data();
  for (std::int64_t i = 0; i < count(); ++i)
    std::fill_n(owned_.begin() + static_cast<std::ptrdiff_t>(guard + offset_of(i)), width, true);
}

inline std::int64_t GuardedTensor::count() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape_) product *= size;
  return product;
}

inline std::size_t GuardedTensor::offset_of(std::int64_t index) const {
  std::int64_t offset = 0;
  for (std::size_t d = shape_.size(); d-- > 0;) {
    offset += index % shape_[d] * strides_[d];
    index /= shape_[d];
  }
  return static_cast<std::size_t>(offset) * (tensor_.dtype.bits / 8);
}

inline float GuardedTensor::value(std::int64_t index) const {
  const char* from = static_cast<const char*>(tensor_.data) + offset_of(index);
  if (tensor_.dtype.bits == 16) {
    std::uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return tensor_.dtype.code == FVLM_BFLOAT ? widen_bf16(bits) : widen_f16(bits);
  }
  float value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void GuardedTensor::set(std::int64_t index, double value) {
  char* to = static_cast<char*>(tensor_.data) + offset_of(index);
  if (tensor_.dtype.bits == 16) {
    const auto single = static_cast<float>(value);
    const std::uint16_t bits = tensor_.dtype.code == FVLM_BFLOAT ? rounded_bf16(single) : narrow(single, widen_f16);
    std::memcpy(to, &bits, sizeof bits);
  } else if (tensor_.dtype.code == FVLM_INT && tensor_.dtype.bits == 32) {
    const auto integer = static_cast<std::int32_t>(value);
    std::memcpy(to, &integer, sizeof integer);
  } else if (tensor_.dtype.code == FVLM_INT) {
    const auto integer = static_cast<std::int64_t>(value);
    std::memcpy(to, &integer, sizeof integer);
  } else if (tensor_.dtype.bits == 64) {
    std::memcpy(to, &value, sizeof value);
  } else {
    const auto single = static_cast<float>(value);
    std::memcpy(to, &single, sizeof single);
  }
}

inline std::vector<float> GuardedTensor::values() const {
  std::vector<float> all(static_cast<std::size_t>(count()));
  for (std::int64_t i = 0; i < count(); ++i) all[static_cast<std::size_t>(i)] = value(i);
  return all;
}

inline GuardedTensor& GuardedTensor::fill(double value) {
  for (std::int64_t i = 0; i < count(); ++i) set(i, value);
  return *this;
}

inline GuardedTensor& GuardedTensor::random(unsigned seed, float scale) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  for (std::int64_t i = 0; i < count(); ++i) set(i, normal(generator));
  return *this;
}

inline void GuardedTensor::expect_intact(const char* name) const {
  for (std::size_t i = 0; i < memory_.size(); ++i)
    if (!owned_[i] && memory_[i] != canary) {
      ADD_FAILURE() << name << ": byte " << static_cast<std::ptrdiff_t>(i) - 64 << " lies outside and was written";
      return;
    }
}

inline void expect_close(const GuardedTensor& got, const std::vector<double>& expected, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(got.count(), static_cast<std::int64_t>(expected.size())) << what;
  double worst = 0;
  std::int64_t where = -1;
  for (std::int64_t i = 0; i < got.count(); ++i) {
    const double want = expected[static_cast<std::size_t>(i)];
    const double error = std::fabs(got.value(i) - want) / (1 + std::fabs(want));
    if (!(error <= worst)) worst = error, where = i;
  }
  EXPECT_LE(worst, tolerance) << what << ": element " << where << " is " << (where < 0 ? 0.0f : got.value(where))
                              << ", expected " << (where < 0 ? 0.0 : expected[static_cast<std::size_t>(where)]);
}

} // namespace fvlm::testing
