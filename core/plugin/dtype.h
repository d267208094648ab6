// Names of the ABI's element types.
#pragma once
#include <fvlm/tensor.h>

#include <string>

namespace fvlm {

// "float" for FVLM_FLOAT; nullptr for an unknown code. Async-signal-safe.
inline const char* dtype_code_name(fvlm_dtype dtype) {
  switch (dtype.code) {
  case FVLM_FLOAT:
    return "float";
  case FVLM_BFLOAT:
    return "bfloat";
  case FVLM_INT:
    return "int";
  case FVLM_UINT:
    return "uint";
  default:
    return nullptr;
  }
}

// "float32", "bfloat16"; "(code 9, 8 bits, 1 lanes)" for an unknown one.
std::string dtype_name(fvlm_dtype dtype);

} // namespace fvlm
