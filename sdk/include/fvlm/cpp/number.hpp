// fvlm/cpp/number.hpp: element types: BFloat16, Half, and the mapping between C++ types and fvlm_dtype.
#ifndef FVLM_CPP_NUMBER_HPP
#define FVLM_CPP_NUMBER_HPP

#include <fvlm/cpp/failure.hpp>

#include <cstdint>
#include <type_traits>

// Marks functions that CUDA kernels can call too.
#if defined(__CUDACC__)
#define FVLM_BOTH __host__ __device__
#else
#define FVLM_BOTH
#endif

#pragma GCC visibility push(hidden)
inline constexpr bool operator==(fvlm_dtype a, fvlm_dtype b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
inline constexpr bool operator!=(fvlm_dtype a, fvlm_dtype b) {
  return !(a == b);
}
inline constexpr bool operator==(fvlm_device a, fvlm_device b) {
  return a.type == b.type && a.id == b.id;
}
inline constexpr bool operator!=(fvlm_device a, fvlm_device b) {
  return !(a == b);
}
#pragma GCC visibility pop

FVLM_SDK_BEGIN

template <class To, class From>
FVLM_BOTH inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// Rounds to nearest even and preserves NaN. Branch-free, so that loops over it vectorize.
struct BFloat16 {
  std::uint16_t bits;

  BFloat16() = default;
  FVLM_BOTH explicit BFloat16(float value) {
    const auto wide = bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
    bits = static_cast<std::uint16_t>((wide & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  }
  FVLM_BOTH operator float() const { return bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

// IEEE binary16 with subnormals. Scaling by powers of two leaves the rounding to float arithmetic.
struct Half {
  std::uint16_t bits;

  Half() = default;
  FVLM_BOTH explicit Half(float value) {
    const auto wide = bit_cast<std::uint32_t>(value);
    const std::uint32_t doubled = wide + wide;
    const std::uint32_t exponent = (doubled & 0xff000000u) < 0x71000000u ? 0x71000000u : doubled & 0xff000000u;
    float magnitude = bit_cast<float>(wide & 0x7fffffffu) * 0x1p+112f * 0x1p-110f;
    magnitude += bit_cast<float>((exponent >> 1) + 0x07800000u);
    const auto rounded = bit_cast<std::uint32_t>(magnitude);
    const std::uint32_t narrow = ((rounded >> 13) & 0x7c00u) + (rounded & 0x0fffu);
    bits = static_cast<std::uint16_t>(((wide >> 16) & 0x8000u) | (doubled > 0xff000000u ? 0x7e00u : narrow));
  }
  FVLM_BOTH operator float() const {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    const std::uint32_t doubled = wide + wide;
    const float normal = bit_cast<float>((doubled >> 4) + (0xe0u << 23)) * 0x1p-112f;
    const float subnormal = bit_cast<float>((doubled >> 17) | (126u << 23)) - 0.5f;
    const auto magnitude = bit_cast<std::uint32_t>(doubled < (1u << 27) ? subnormal : normal);
    return bit_cast<float>((wide & 0x80000000u) | magnitude);
  }
};

inline constexpr fvlm_dtype float64{FVLM_FLOAT, 64, 1}, float32{FVLM_FLOAT, 32, 1}, float16{FVLM_FLOAT, 16, 1},
    bfloat16{FVLM_BFLOAT, 16, 1}, int64{FVLM_INT, 64, 1}, int32{FVLM_INT, 32, 1}, int8{FVLM_INT, 8, 1},
    uint8{FVLM_UINT, 8, 1};

template <class Element>
constexpr fvlm_dtype find_dtype() {
  if constexpr (std::is_same_v<Element, double>) return float64;
  if constexpr (std::is_same_v<Element, float>) return float32;
  if constexpr (std::is_same_v<Element, Half>) return float16;
  if constexpr (std::is_same_v<Element, BFloat16>) return bfloat16;
  if constexpr (std::is_same_v<Element, std::int64_t>) return int64;
  if constexpr (std::is_same_v<Element, std::int32_t>) return int32;
  if constexpr (std::is_same_v<Element, std::int8_t>) return int8;
  if constexpr (std::is_same_v<Element, std::uint8_t>) return uint8;
}

// dtype_of<float> == float32. The attribute is needed because gcc's visibility pragma skips variable templates.
template <class Element>
__attribute__((visibility("hidden"))) inline constexpr fvlm_dtype dtype_of = find_dtype<std::remove_const_t<Element>>();

inline constexpr std::size_t bytes_of(fvlm_dtype dtype) {
  return dtype.bits / 8u;
}

inline const char* name_of(fvlm_dtype dtype) {
  return dtype == float64    ? "float64"
         : dtype == float32  ? "float32"
         : dtype == float16  ? "float16"
         : dtype == bfloat16 ? "bfloat16"
         : dtype == int64    ? "int64"
         : dtype == int32    ? "int32"
         : dtype == int8     ? "int8"
         : dtype == uint8    ? "uint8"
                             : "an unknown dtype";
}

// is_one_of<float, BFloat16>(query.dtype)
template <class... Elements>
constexpr bool is_one_of(fvlm_dtype dtype) {
  return ((dtype == dtype_of<Elements>) || ...);
}

template <class Element>
struct Type {
  using type = Element;
};

// dispatch<float, BFloat16>(dtype, [&](auto element) { using T = typename decltype(element)::type; ... });
template <class... Elements, class Body>
void dispatch(fvlm_dtype dtype, const Body& body) {
  const bool found = ((dtype == dtype_of<Elements> ? (body(Type<Elements>{}), true) : false) || ...);
  if (!found) throw Failure(FVLM_ERROR_UNSUPPORTED, "dtype %s not supported", name_of(dtype));
}

FVLM_SDK_END

#endif
