// cuda_boxes.h: which matrices the copy engine reads and writes, and how it is told of them. See cuda_hopper.cuh.
#pragma once

#include <fvlm/cuda.hpp>

#include <cstdint>
#include <cuda.h>

namespace fvlm::plugins {

// Whether kernels for sm_90a were built and run on it.
inline bool is_hopper(fvlm_device device) {
#ifdef FVLM_HAS_SM_90A
  return sdk::check_device(device, 9, 0).score > 0 && sdk::check_device(device, 9, 1).score == 0;
#else
  (void)device;
  return false;
#endif
}

// `row`: elements from a row to the next, of 16 bits each.
inline bool copy_engine_takes(const void* data, std::int64_t row) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row > 0 && row % 8 == 0;
}

// Boxes of so many rows, and of as many columns as 128 bytes hold: 64 of 16 bits.
inline CUtensorMap boxes_of(fvlm_dtype dtype, void* data, std::int64_t row, std::int64_t rows, std::int64_t columns,
                            int rows_of_box) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    sdk::check_cuda(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result),
        "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const auto type = dtype == sdk::float32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                    : dtype == sdk::bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const auto element = static_cast<cuuint64_t>(sdk::bytes_of(dtype));
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(row) * element};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(128 / element), static_cast<cuuint32_t>(rows_of_box)},
                   every[] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, type, 2, data, sizes, row_bytes, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw sdk::Failure(FVLM_ERROR_DEVICE, "cuTensorMapEncodeTiled: error %d", static_cast<int>(result));
  return map;
}

} // namespace fvlm::plugins
