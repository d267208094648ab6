/* @NAME@: two of the small operations in plain C: rmsnorm and swiglu. fvlm/kernels.h specifies each function.
 * To add an operation, set its pointers in the table and accept its op in supports(). */
#include <fvlm/kernels.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a task of parallel_for reads and writes. */
typedef struct norm {
  int64_t rows, width;
  float epsilon;
  const fvlm_tensor *x, *residual, *d_y, *d_sum, *s;
  const float* weight;
  fvlm_tensor *y, *sum, *d_x;
  float *rstd, *d_weight; /* rstd: 1 / sqrt(mean(s^2) + epsilon) of each row, saved by forward for backward */
  int accumulate;
} norm;

static float* row_of(const fvlm_tensor* tensor, int64_t row) {
  return (float*)tensor->data + row * tensor->strides[0];
}

static void norm_rows(void* context, int64_t begin, int64_t end) {
  const norm* w = (const norm*)context;
  for (int64_t row = begin; row < end; ++row) {
    const float* s = row_of(w->x, row);
    if (w->residual) {
      const float *x = s, *residual = row_of(w->residual, row);
      float* sum = row_of(w->sum, row);
      for (int64_t i = 0; i < w->width; ++i) sum[i] = x[i] + residual[i];
      s = sum;
    }
    float squares = 0;
    for (int64_t i = 0; i < w->width; ++i) squares += s[i] * s[i];
    const float rstd = 1 / sqrtf(squares / (float)w->width + w->epsilon);
    float* y = row_of(w->y, row);
    for (int64_t i = 0; i < w->width; ++i) y[i] = s[i] * rstd * w->weight[i];
    if (w->rstd) w->rstd[row] = rstd;
  }
}

/* d_x may alias d_y or d_sum: each element is read before it is written. */
static void norm_backward_rows(void* context, int64_t begin, int64_t end) {
  const norm* w = (const norm*)context;
  for (int64_t row = begin; row < end; ++row) {
    const float *s = row_of(w->s, row), *d_y = row_of(w->d_y, row);
    const float* d_sum = w->d_sum ? row_of(w->d_sum, row) : NULL;
    const float rstd = w->rstd[row];
    float product = 0;
    for (int64_t i = 0; i < w->width; ++i) product += d_y[i] * w->weight[i] * s[i];
    product *= rstd * rstd / (float)w->width;
    float* d_x = row_of(w->d_x, row);
    for (int64_t i = 0; i < w->width; ++i) {
      d_x[i] = (d_y[i] * w->weight[i] - product * s[i]) * rstd + (d_sum ? d_sum[i] : 0);
    }
  }
}

static void norm_backward_columns(void* context, int64_t begin, int64_t end) {
  const norm* w = (const norm*)context;
  for (int64_t i = begin; i < end; ++i) {
    float sum = 0;
    for (int64_t row = 0; row < w->rows; ++row) sum += row_of(w->d_y, row)[i] * row_of(w->s, row)[i] * w->rstd[row];
    w->d_weight[i] = (w->accumulate ? w->d_weight[i] : 0) + sum;
  }
}

typedef struct gate {
  int64_t width;
  const fvlm_tensor *gate, *up, *d_y;
  fvlm_tensor *y, *d_gate, *d_up;
} gate;

static void swiglu_rows(void* context, int64_t begin, int64_t end) {
  const gate* w = (const gate*)context;
  for (int64_t row = begin; row < end; ++row) {
    const float *x = row_of(w->gate, row), *up = row_of(w->up, row);
    for (int64_t i = 0; i < w->width; ++i) row_of(w->y, row)[i] = x[i] / (1 + expf(-x[i])) * up[i];
  }
}

/* d_gate and d_up may alias gate and up. */
static void swiglu_backward_rows(void* context, int64_t begin, int64_t end) {
  const gate* w = (const gate*)context;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t i = 0; i < w->width; ++i) {
      const float x = row_of(w->gate, row)[i], up = row_of(w->up, row)[i], d_y = row_of(w->d_y, row)[i];
      const float sigmoid = 1 / (1 + expf(-x));
      row_of(w->d_gate, row)[i] = d_y * up * sigmoid * (1 + x * (1 - sigmoid));
      row_of(w->d_up, row)[i] = d_y * x * sigmoid;
    }
  }
}

static int is_matrix(const fvlm_tensor* tensor) {
  return fvlm_is_rows(tensor, FVLM_FLOAT, 32, 2);
}

static int is_matrix_or_null(const fvlm_tensor* tensor) {
  return !tensor || is_matrix(tensor);
}

static fvlm_status wrong_tensor(const fvlm_call* call) {
  return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "float32 with contiguous rows only");
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
static const char* refusal(const fvlm_kernels_query* query) {
  if (query->op != FVLM_OP_RMSNORM && query->op != FVLM_OP_SWIGLU) return "rmsnorm and swiglu only";
  if (query->device.type != FVLM_CPU) return "runs on the CPU only";
  if (!fvlm_is_dtype(query->dtype, FVLM_FLOAT, 32)) return "float32 only";
  if (!fvlm_is_dtype(query->gradient_dtype, FVLM_FLOAT, 32)) return "float32 gradients only";
  if (query->options & ~(uint32_t)(FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL)) return "an option is not known here";
  return NULL;
}

static void supports(const fvlm_kernels_query* query, fvlm_support* support) {
  if (!FVLM_HAS(support, reason)) return;
  const char* no = FVLM_HAS(query, rope_theta) ? refusal(query) : "query: struct_size is too small";
  if (no) {
    fvlm_answer(support, 0, "%s", no);
  } else {
    fvlm_answer(support, 10, "plain loops"); /* the reference has 1; raise it as this gets faster */
  }
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_kernels_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  if (!FVLM_HAS(query, rope_theta) || !FVLM_HAS(out, saved)) {
    return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "requirements: struct_size is too small");
  }
  const fvlm_tensor_spec rstd = {{FVLM_FLOAT, 32, 1}, 1, {query->rows, 0, 0, 0}};
  out->forward_workspace = 0;
  out->backward_workspace = 0;
  out->saved_count = query->op == FVLM_OP_RMSNORM && (query->options & FVLM_WITH_BACKWARD) ? 1 : 0;
  out->saved[0] = rstd;
  return FVLM_OK;
}

#define CHECK(last)                                                                                                    \
  if (!FVLM_HAS(call, error) || !FVLM_HAS(query, rope_theta) || !FVLM_HAS(arguments, last)) {                          \
    return fvlm_fail(fvlm_sink(call), FVLM_ERROR_ARGUMENT, "%s: struct_size is too small", __func__);                  \
  }                                                                                                                    \
  if (refusal(query)) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", refusal(query));                     \
  (void)instance

static fvlm_status rmsnorm_forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                   const fvlm_norm_forward* arguments) {
  CHECK(saved);
  if (!is_matrix(arguments->x) || !is_matrix(arguments->y) || !is_matrix_or_null(arguments->residual) ||
      !is_matrix_or_null(arguments->sum)) {
    return wrong_tensor(call);
  }
  norm w = {0};
  w.rows = query->rows;
  w.width = query->width;
  w.epsilon = query->epsilon;
  w.x = arguments->x;
  w.residual = arguments->residual;
  w.weight = (const float*)arguments->weight->data;
  w.y = arguments->y;
  w.sum = arguments->sum;
  w.rstd = arguments->saved[0] ? (float*)arguments->saved[0]->data : NULL;
  call->host->parallel_for(call->host, w.rows, 16, norm_rows, &w);
  return FVLM_OK;
}

static fvlm_status rmsnorm_backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                    const fvlm_norm_backward* arguments) {
  CHECK(d_bias);
  if (!is_matrix(arguments->d_y) || !is_matrix(arguments->s) || !is_matrix(arguments->d_x) ||
      !is_matrix_or_null(arguments->d_sum)) {
    return wrong_tensor(call);
  }
  norm w = {0};
  w.rows = query->rows;
  w.width = query->width;
  w.d_y = arguments->d_y;
  w.d_sum = arguments->d_sum;
  w.s = arguments->s;
  w.weight = (const float*)arguments->weight->data;
  w.rstd = (float*)arguments->saved[0]->data;
  w.d_x = arguments->d_x;
  w.d_weight = arguments->d_weight ? (float*)arguments->d_weight->data : NULL;
  w.accumulate = arguments->accumulate;
  /* The weight's gradient first: it reads d_y, which d_x may overwrite. */
  if (w.d_weight) call->host->parallel_for(call->host, w.width, 16, norm_backward_columns, &w);
  call->host->parallel_for(call->host, w.rows, 16, norm_backward_rows, &w);
  return FVLM_OK;
}

static fvlm_status swiglu_forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                  const fvlm_swiglu_forward* arguments) {
  CHECK(y);
  if (!is_matrix(arguments->gate) || !is_matrix(arguments->up) || !is_matrix(arguments->y)) return wrong_tensor(call);
  gate w = {query->width, arguments->gate, arguments->up, NULL, arguments->y, NULL, NULL};
  call->host->parallel_for(call->host, query->rows, 16, swiglu_rows, &w);
  return FVLM_OK;
}

static fvlm_status swiglu_backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                   const fvlm_swiglu_backward* arguments) {
  CHECK(d_up);
  if (!is_matrix(arguments->gate) || !is_matrix(arguments->up) || !is_matrix(arguments->d_y) ||
      !is_matrix(arguments->d_gate) || !is_matrix(arguments->d_up)) {
    return wrong_tensor(call);
  }
  gate w = {query->width, arguments->gate, arguments->up, arguments->d_y, NULL, arguments->d_gate, arguments->d_up};
  call->host->parallel_for(call->host, query->rows, 16, swiglu_backward_rows, &w);
  return FVLM_OK;
}

/* Operations that the plugin does not have stay NULL. */
static const fvlm_kernels_v1 table = {
    .base = {sizeof(fvlm_kernels_v1), create, destroy},
    .supports = supports,
    .requirements = requirements,
    .rmsnorm_forward = rmsnorm_forward,
    .rmsnorm_backward = rmsnorm_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
};

static const void* find_table(const char* kind) {
  return strcmp(kind, FVLM_KERNELS_KIND) == 0 ? &table : NULL;
}

const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
  static const fvlm_plugin plugin = {
      sizeof(fvlm_plugin), FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "@NAME@", "0.1.0", find_table,
  };
  return FVLM_HAS(host, parallel_threads) && host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;
}
