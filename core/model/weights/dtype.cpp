#include "model/weights/dtype.h"

#include <array>

namespace fvlm {
namespace {

struct Row {
  std::string_view name;
  size_t size;
  bool floating;
};

// At the place of its enumerator.
constexpr std::array<Row, 14> rows{{{"BOOL", 1, false},
                                    {"U8", 1, false},
                                    {"I8", 1, false},
                                    {"F8_E4M3", 1, false},
                                    {"I16", 2, false},
                                    {"U16", 2, false},
                                    {"F16", 2, true},
                                    {"BF16", 2, true},
                                    {"I32", 4, false},
                                    {"U32", 4, false},
                                    {"F32", 4, true},
                                    {"F64", 8, true},
                                    {"I64", 8, false},
                                    {"U64", 8, false}}};

const Row& row(DType dtype) {
  return rows[static_cast<size_t>(dtype)];
}

} // namespace

size_t size_of(DType dtype) {
  return row(dtype).size;
}

std::string_view name_of(DType dtype) {
  return row(dtype).name;
}

bool is_floating(DType dtype) {
  return row(dtype).floating;
}

std::optional<DType> dtype_named(std::string_view name) {
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

const char* all_dtype_names() {
  return "BOOL, U8, I8, F8_E4M3, I16, U16, F16, BF16, I32, U32, F32, F64, I64, U64";
}

} // namespace fvlm
