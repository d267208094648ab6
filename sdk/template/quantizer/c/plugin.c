/* @NAME@: int8 with one scale per row, in plain C. fvlm/quantizer.h specifies each function and the int8 scheme.
 * For a scheme of your own, change SCHEME here and the kind in plugin.toml, then the packed form. */
#include <fvlm/quantizer.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCHEME "int8"

/* What a task of parallel_for reads and writes. */
typedef struct work {
  int64_t rows, cols;
  const fvlm_tensor *read, *bias; /* weight, x or d_y */
  fvlm_tensor* write;             /* weight, y, d_x, out or d_weight */
  const fvlm_tensor *codes_in, *scales_in;
  fvlm_tensor *codes_out, *scales_out;
} work;

static float* row_of(const fvlm_tensor* tensor, int64_t row) {
  return (float*)tensor->data + row * tensor->strides[0];
}

static const int8_t* codes_of(const work* w, int64_t row) {
  return (const int8_t*)w->codes_in->data + row * w->codes_in->strides[0];
}

static float scale_of(const float* weight, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = fmaxf(largest, fabsf(weight[i]));
  return largest / 127;
}

static float code_of(float weight, float scale) {
  return scale > 0 ? fmaxf(-127, fminf(127, rintf(weight / scale))) : 0; /* rintf rounds half to even */
}

static void pack_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t row = begin; row < end; ++row) {
    const float* weight = row_of(w->read, row);
    int8_t* codes = (int8_t*)w->codes_out->data + row * w->codes_out->strides[0];
    const float scale = scale_of(weight, w->cols);
    for (int64_t i = 0; i < w->cols; ++i) codes[i] = (int8_t)code_of(weight[i], scale);
    ((float*)w->scales_out->data)[row] = scale;
  }
}

static void unpack_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const float* scales = (const float*)w->scales_in->data;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t i = 0; i < w->cols; ++i) row_of(w->write, row)[i] = codes_of(w, row)[i] * scales[row];
  }
}

/* y = x weight^T + bias, one token at a time */
static void linear_tokens(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const float* scales = (const float*)w->scales_in->data;
  for (int64_t token = begin; token < end; ++token) {
    const float* x = row_of(w->read, token);
    for (int64_t row = 0; row < w->rows; ++row) {
      const int8_t* codes = codes_of(w, row);
      float sum = 0;
      for (int64_t i = 0; i < w->cols; ++i) sum += x[i] * codes[i];
      row_of(w->write, token)[row] = sum * scales[row] + (w->bias ? ((const float*)w->bias->data)[row] : 0);
    }
  }
}

/* d_x = d_y weight, one token at a time */
static void gradient_tokens(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const float* scales = (const float*)w->scales_in->data;
  for (int64_t token = begin; token < end; ++token) {
    float* d_x = row_of(w->write, token);
    memset(d_x, 0, (size_t)w->cols * sizeof *d_x);
    for (int64_t row = 0; row < w->rows; ++row) {
      const float factor = row_of(w->read, token)[row] * scales[row];
      for (int64_t i = 0; i < w->cols; ++i) d_x[i] += factor * codes_of(w, row)[i];
    }
  }
}

static void fake_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t row = begin; row < end; ++row) {
    const float* weight = row_of(w->read, row);
    const float scale = scale_of(weight, w->cols);
    for (int64_t i = 0; i < w->cols; ++i) row_of(w->write, row)[i] = code_of(weight[i], scale) * scale;
  }
}

/* The largest weight sets the scale, so nothing is clipped and every gradient passes. */
static void copy_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t row = begin; row < end; ++row) {
    memmove(row_of(w->write, row), row_of(w->read, row), (size_t)w->cols * sizeof(float));
  }
}

static int is_matrix(const fvlm_tensor* tensor) {
  return fvlm_is_rows(tensor, FVLM_FLOAT, 32, 2);
}

static int is_packed(const fvlm_tensor* codes, const fvlm_tensor* scales) {
  return fvlm_is_rows(codes, FVLM_INT, 8, 2) && fvlm_is_rows(scales, FVLM_FLOAT, 32, 1);
}

static fvlm_status run(const fvlm_call* call, int right, int64_t count, void (*task)(void*, int64_t, int64_t),
                       work* w) {
  if (!right) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "float32 with contiguous rows only");
  call->host->parallel_for(call->host, count, 1, task, w);
  return FVLM_OK;
}

/* The functions of the table. */

struct fvlm_instance {
  fvlm_device device;
};

static fvlm_status create(const fvlm_instance_config* config, fvlm_instance** instance, fvlm_error* error) {
  if (!FVLM_HAS(config, host)) return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "config: struct_size is too small");
  if (config->device.type != FVLM_CPU) return fvlm_fail(error, FVLM_ERROR_UNSUPPORTED, "runs on the CPU only");
  *instance = (fvlm_instance*)calloc(1, sizeof **instance);
  if (!*instance) return fvlm_fail(error, FVLM_ERROR_MEMORY, "out of memory");
  (*instance)->device = config->device;
  return FVLM_OK;
}

static void destroy(fvlm_instance* instance) {
  free(instance);
}

/* The reason why this class is not supported; NULL if it is. */
static const char* refusal(const fvlm_quantizer_query* query) {
  if (query->device.type != FVLM_CPU) return "runs on the CPU only";
  if (!fvlm_is_dtype(query->dtype, FVLM_FLOAT, 32)) return "float32 only";
  return NULL;
}

static void supports(const fvlm_quantizer_query* query, fvlm_support* support) {
  if (!FVLM_HAS(support, reason)) return;
  const char* no = FVLM_HAS(query, tokens) ? refusal(query) : "query: struct_size is too small";
  if (no) {
    fvlm_answer(support, 0, "%s", no);
  } else {
    fvlm_answer(support, 10, "plain loops"); /* the reference has 1; raise it as this gets faster */
  }
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_quantizer_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  if (!FVLM_HAS(query, tokens) || !FVLM_HAS(out, saved)) {
    return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "requirements: struct_size is too small");
  }
  const fvlm_tensor_spec codes = {{FVLM_INT, 8, 1}, 2, {query->rows, query->cols, 0, 0}};
  const fvlm_tensor_spec scales = {{FVLM_FLOAT, 32, 1}, 1, {query->rows, 0, 0, 0}};
  out->forward_workspace = 0;
  out->backward_workspace = 0;
  out->saved_count = 2;
  out->saved[0] = codes;
  out->saved[1] = scales;
  return FVLM_OK;
}

#define CHECK(last)                                                                                                    \
  if (!FVLM_HAS(call, error) || !FVLM_HAS(query, tokens) || !FVLM_HAS(arguments, last)) {                              \
    return fvlm_fail(fvlm_sink(call), FVLM_ERROR_ARGUMENT, "%s: struct_size is too small", __func__);                  \
  }                                                                                                                    \
  if (refusal(query)) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", refusal(query));                     \
  (void)instance

static fvlm_status pack(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                        const fvlm_quantizer_pack* arguments) {
  CHECK(packed);
  work w = {query->rows, query->cols,          arguments->weight,   NULL, NULL, NULL,
            NULL,        arguments->packed[0], arguments->packed[1]};
  return run(call, is_matrix(w.read) && is_packed(w.codes_out, w.scales_out), w.rows, pack_rows, &w);
}

static fvlm_status unpack(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                          const fvlm_quantizer_unpack* arguments) {
  CHECK(weight);
  work w = {query->rows,          query->cols,          NULL, NULL, arguments->weight,
            arguments->packed[0], arguments->packed[1], NULL, NULL};
  return run(call, is_matrix(w.write) && is_packed(w.codes_in, w.scales_in), w.rows, unpack_rows, &w);
}

static fvlm_status linear(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                          const fvlm_quantizer_linear* arguments) {
  CHECK(y);
  work w = {query->rows,          query->cols, arguments->x, arguments->bias, arguments->y, arguments->packed[0],
            arguments->packed[1], NULL,        NULL};
  const int right = is_matrix(w.read) && is_matrix(w.write) && is_packed(w.codes_in, w.scales_in) &&
                    (!w.bias || fvlm_is_rows(w.bias, FVLM_FLOAT, 32, 1));
  return run(call, right, right ? w.read->shape[0] : 0, linear_tokens, &w);
}

static fvlm_status linear_gradient(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                                   const fvlm_quantizer_linear_gradient* arguments) {
  CHECK(d_x);
  work w = {query->rows,          query->cols,          arguments->d_y, NULL, arguments->d_x,
            arguments->packed[0], arguments->packed[1], NULL,           NULL};
  const int right = is_matrix(w.read) && is_matrix(w.write) && is_packed(w.codes_in, w.scales_in);
  return run(call, right, right ? w.read->shape[0] : 0, gradient_tokens, &w);
}

static fvlm_status fake_quantize_forward(fvlm_instance* instance, const fvlm_call* call,
                                         const fvlm_quantizer_query* query,
                                         const fvlm_fake_quantize_forward* arguments) {
  CHECK(out);
  work w = {query->rows, query->cols, arguments->weight, NULL, arguments->out, NULL, NULL, NULL, NULL};
  return run(call, is_matrix(w.read) && is_matrix(w.write), w.rows, fake_rows, &w);
}

static fvlm_status fake_quantize_backward(fvlm_instance* instance, const fvlm_call* call,
                                          const fvlm_quantizer_query* query,
                                          const fvlm_fake_quantize_backward* arguments) {
  CHECK(d_weight);
  work w = {query->rows, query->cols, arguments->d_out, NULL, arguments->d_weight, NULL, NULL, NULL, NULL};
  return run(call, is_matrix(w.read) && is_matrix(w.write), w.rows, copy_rows, &w);
}

static const fvlm_quantizer_v1 table = {
    .base = {sizeof(fvlm_quantizer_v1), create, destroy},
    .scheme = SCHEME,
    .bits = 8,
    .supports = supports,
    .requirements = requirements,
    .pack = pack,
    .unpack = unpack,
    .linear = linear,
    .linear_gradient = linear_gradient,
    .fake_quantize_forward = fake_quantize_forward,
    .fake_quantize_backward = fake_quantize_backward,
};

static const void* find_table(const char* kind) {
  return strcmp(kind, FVLM_QUANTIZER_KIND(SCHEME)) == 0 ? &table : NULL;
}

const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
  static const fvlm_plugin plugin = {
      sizeof(fvlm_plugin), FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "@NAME@", "0.1.0", find_table,
  };
  return FVLM_HAS(host, parallel_threads) && host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;
}
