/* fvlm/tensor.h: how a tensor crosses the ABI. Binary identical to DLPack's DLTensor, so a plugin that already uses
 * dlpack.h may cast. The engine owns every tensor; a plugin never keeps a pointer to one after the call.
 *
 * Strides are in elements and never negative. Each kind's header says which tensors may be strided (views of a larger
 * buffer); every tensor that it does not name is contiguous: row-major, without gaps. The stride of a dimension of size
 * 1, and all strides of an empty tensor, have no meaning and may be any number.
 *
 * Where a kind's header allows strided rows or heads, any stride is possible, not only multiples of 16 bytes, two
 * tensors of one call may have different strides, and data is aligned to its element and no further. A CPU plugin has
 * to compute all of that. A GPU plugin may refuse it as unsupported, except for row strides of slices of one wider
 * buffer.
 *
 * An empty tensor has a size of 0 in its shape and data NULL; its call is valid and writes the other outputs.
 *
 * Results of 16 bits are rounded to nearest, ties to even. */
#ifndef FVLM_TENSOR_H
#define FVLM_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The DLPack device and type codes that the engine uses. */
enum { FVLM_CPU = 1, FVLM_CUDA = 2 };
enum { FVLM_INT = 0, FVLM_UINT = 1, FVLM_FLOAT = 2, FVLM_BFLOAT = 4 };

typedef struct fvlm_device {
  int32_t type; /* FVLM_CPU or FVLM_CUDA */
  int32_t id;
} fvlm_device;

typedef struct fvlm_dtype {
  uint8_t code; /* FVLM_INT, FVLM_UINT, FVLM_FLOAT, FVLM_BFLOAT */
  uint8_t bits;
  uint16_t lanes; /* always 1 */
} fvlm_dtype;

typedef struct fvlm_tensor {
  void* data; /* device memory; NULL when the tensor is empty */
  fvlm_device device;
  int32_t ndim;
  fvlm_dtype dtype;
  int64_t* shape;
  int64_t* strides;     /* in elements; never NULL */
  uint64_t byte_offset; /* always 0 */
} fvlm_tensor;

#define FVLM_MAX_DIMS 4

/* A contiguous tensor that a plugin asks the engine to allocate. Used inside arrays, so it never grows. */
typedef struct fvlm_tensor_spec {
  fvlm_dtype dtype;
  int32_t ndim;
  int64_t shape[FVLM_MAX_DIMS];
} fvlm_tensor_spec;

/* [any thread] */
static inline int fvlm_is_dtype(fvlm_dtype dtype, int32_t code, int32_t bits) {
  return dtype.code == code && dtype.bits == bits && dtype.lanes == 1;
}

/* Whether the tensor is not NULL, has this type and rank, and a contiguous last dimension: the usual check before
 * `float* row = (float*)tensor->data + i * tensor->strides[0]`. [any thread] */
static inline int fvlm_is_rows(const fvlm_tensor* tensor, int32_t code, int32_t bits, int32_t ndim) {
  return tensor && tensor->ndim == ndim && fvlm_is_dtype(tensor->dtype, code, bits) &&
         (tensor->shape[ndim - 1] <= 1 || tensor->strides[ndim - 1] == 1);
}

#ifdef __cplusplus
}
#endif
#endif
