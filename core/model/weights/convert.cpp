#include "model/weights/convert.h"

#include "base/error.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace fvlm {
namespace {

// Each type: its bits, what they mean exactly, and the bits nearest to a number.
struct F64 {
  using Bits = uint64_t;
  static double value(Bits bits) { return std::bit_cast<double>(bits); }
  static Bits nearest(double number) { return std::bit_cast<Bits>(number); }
};

struct F32 {
  using Bits = uint32_t;
  static float value(Bits bits) { return std::bit_cast<float>(bits); }
  static Bits nearest(float number) { return std::bit_cast<Bits>(number); }
  static Bits nearest(double number) { return std::bit_cast<Bits>(static_cast<float>(number)); }
};

// A float that rounds to any type of at most 22 bits of significand as `number` itself would: cut off, and its last bit
// set where something was lost. Rounding to float first and then again would round some numbers twice.
float rounded_to_odd(double number) {
  auto near = static_cast<float>(number);
  if (static_cast<double>(near) == number || std::isnan(number)) return near;
  auto bits = std::bit_cast<uint32_t>(near);
  if (std::abs(static_cast<double>(near)) > std::abs(number)) --bits;
  return std::bit_cast<float>(bits | 1);
}

struct BF16 {
  using Bits = uint16_t;
  static float value(Bits bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static Bits nearest(float number) {
    auto bits = std::bit_cast<uint32_t>(number);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<Bits>(bits >> 16 | 0x40); // NaN stays one
    return static_cast<Bits>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  static Bits nearest(double number) { return nearest(rounded_to_odd(number)); }
};

struct F16 {
  using Bits = uint16_t;
  static float value(Bits bits) {
    uint32_t sign = uint32_t{bits & 0x8000u} << 16, rest = bits & 0x7fffu;
    float size = rest >= 0x7c00 ? std::bit_cast<float>(rest << 13 | 0x7f800000)
                 : rest < 0x400 ? static_cast<float>(rest) * 0x1p-24f
                                : std::bit_cast<float>((rest << 13) + (112u << 23));
    return std::bit_cast<float>(std::bit_cast<uint32_t>(size) | sign);
  }
  static Bits nearest(float number) {
    auto bits = std::bit_cast<uint32_t>(number);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return static_cast<Bits>(sign | 0x7e00 | (size >> 13 & 0x3ff));
    if (size >= 0x477ff000) return static_cast<Bits>(sign | 0x7c00); // 65520 and above: infinite
    if (size < 0x38800000)                                           // below 2^-14: multiples of 2^-24, as near 1/2
      return static_cast<Bits>(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000));
    return static_cast<Bits>(sign | (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13);
  }
  static Bits nearest(double number) { return nearest(rounded_to_odd(number)); }
};

template <class From, class To>
uint64_t convert_all(std::span<const std::byte> from, std::span<std::byte> to) {
  size_t count = from.size() / sizeof(typename From::Bits);
  uint64_t overflowed = 0;
  for (size_t i = 0; i < count; ++i) {
    typename From::Bits in;
    std::memcpy(&in, from.data() + i * sizeof in, sizeof in);
    auto value = From::value(in);
    typename To::Bits out = To::nearest(value);
    std::memcpy(to.data() + i * sizeof out, &out, sizeof out);
    if constexpr (!std::is_same_v<To, F64>) overflowed += std::isinf(To::value(out)) && !std::isinf(value);
  }
  return overflowed;
}

template <class Type>
uint64_t count_not_finite_of(std::span<const std::byte> numbers) {
  uint64_t count = 0;
  for (size_t i = 0; i < numbers.size(); i += sizeof(typename Type::Bits)) {
    typename Type::Bits bits;
    std::memcpy(&bits, numbers.data() + i, sizeof bits);
    count += !std::isfinite(Type::value(bits));
  }
  return count;
}

// Calls `action` with the type that `dtype` names.
template <class Action>
uint64_t with_type(DType dtype, Action action) {
  switch (dtype) {
  case DType::f64:
    return action(F64());
  case DType::f32:
    return action(F32());
  case DType::f16:
    return action(F16());
  case DType::bf16:
    return action(BF16());
  default:
    throw Error(ErrorKind::internal, "{} is not converted", name_of(dtype));
  }
}

} // namespace

uint64_t convert(std::span<const std::byte> from, DType from_type, std::span<std::byte> to, DType to_type) {
  if (from.size() / size_of(from_type) != to.size() / size_of(to_type))
    throw Error(ErrorKind::internal, "a conversion between buffers of different lengths");
  return with_type(from_type, [&](auto source) {
    return with_type(to_type, [&](auto target) { return convert_all<decltype(source), decltype(target)>(from, to); });
  });
}

uint64_t count_not_finite(std::span<const std::byte> numbers, DType type) {
  return with_type(type, [&](auto source) { return count_not_finite_of<decltype(source)>(numbers); });
}

} // namespace fvlm
