// The element types that tensors have on disk, by the names that safetensors gives them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fvlm {

// In the order by which safetensors sorts a file: the last one first, so that each tensor is aligned to its elements.
enum class DType : uint8_t { boolean, u8, i8, f8_e4m3, i16, u16, f16, bf16, i32, u32, f32, f64, i64, u64 };

size_t size_of(DType dtype);           // bytes of an element
std::string_view name_of(DType dtype); // "BF16"
bool is_floating(DType dtype);         // and a weight's numbers can be stored so: F8_E4M3 needs scales beside it
std::optional<DType> dtype_named(std::string_view name);
const char* all_dtype_names(); // "BOOL, U8, ..."

} // namespace fvlm
