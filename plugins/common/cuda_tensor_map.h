// cuda_tensor_map.h: tensor maps (CUtensorMap) for TMA: which matrices it can access, and how they are encoded on the
// host. The device side is in cuda_hopper.cuh.
#pragma once

#include <fvlm/cuda.hpp>

#include <cstdint>
#include <cuda.h>

namespace fvlm::plugins {

// TMA needs a base address and a row stride that are multiples of 16 bytes. `row_stride` counts elements of 16 bits.
inline bool tma_compatible(const void* data, std::int64_t row_stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row_stride > 0 && row_stride % 8 == 0;
}

// What the L2 reads at once where a box's rows are shorter.
constexpr auto usual_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;

// A matrix of two to four dimensions, innermost dimension first. `strides` holds the byte strides of the outer
// dimensions.
struct TensorMapShape {
  CUtensorMapDataType type;
  int dimensions;
  cuuint64_t sizes[4], strides[3];
  cuuint32_t box[4];
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion promotion = usual_promotion;

  CUtensorMap encode(void* data) const {
    static const auto encode_tiled = [] {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult result;
      sdk::check_cuda(
          cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
          "cuTensorMapEncodeTiled");
      return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
    }();
    const cuuint32_t element_strides[] = {1, 1, 1, 1};
    CUtensorMap map;
    const CUresult result =
        encode_tiled(&map, type, static_cast<cuuint32_t>(dimensions), data, sizes, strides, box, element_strides,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
      throw sdk::Failure(FVLM_ERROR_DEVICE, "cuTensorMapEncodeTiled: error %d", static_cast<int>(result));
    return map;
  }
};

inline CUtensorMapDataType tensor_map_type(fvlm_dtype dtype) {
  return dtype.bits == 8          ? CU_TENSOR_MAP_DATA_TYPE_UINT8
         : dtype == sdk::float32  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
         : dtype == sdk::bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                  : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

// A matrix in boxes of `box_rows` rows and 128 bytes of columns (64 elements of 16 bits), with the 128-byte swizzle.
inline CUtensorMap make_tensor_map(fvlm_dtype dtype, void* data, std::int64_t row_stride, std::int64_t rows,
                                   std::int64_t columns, int box_rows,
                                   CUtensorMapL2promotion promotion = usual_promotion) {
  const auto element = static_cast<cuuint64_t>(sdk::bytes_of(dtype));
  return TensorMapShape{tensor_map_type(dtype),
                        2,
                        {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                        {static_cast<cuuint64_t>(row_stride) * element},
                        {static_cast<cuuint32_t>(128 / element), static_cast<cuuint32_t>(box_rows)},
                        CU_TENSOR_MAP_SWIZZLE_128B,
                        promotion}
      .encode(data);
}

} // namespace fvlm::plugins
