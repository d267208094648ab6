/* The scheme int8 as the header writes it, in float32: rows in pieces. */
#include "mutant.h"

#include <math.h>

typedef struct work {
  const fvlm_quantizer_query* query;
  const fvlm_tensor *in, *out, *bias, *residual, *d_out; /* weight, x or d_y; whatever is written */
  const fvlm_tensor* const* packed;
  const float* rows; /* of the unpacked weight, where a defect keeps it */
} work;

static float shared[1 << 16];

static float* row_of(const fvlm_tensor* t, int64_t row) {
  return (float*)t->data + (is("ignores_strides") ? row * t->shape[t->ndim - 1] : offset_of(row, t->strides[0]));
}

static float scale_of(const float* row, int64_t cols) {
  float most = 0;
  if (is("knows_4096_columns") && cols > 4096) cols = 4096;
  for (int64_t c = 0; c < cols; ++c) {
    const float size = is("forgets_the_sign") ? row[c] : fabsf(row[c]);
    if (size > most) most = size;
  }
  if (is("reads_whole_vectors") && cols % 8 && row[(cols + 7) / 8 * 8 - 1] > 1e30F) most += 1e-20F;
  if (is("reads_in_front") && row[-1] > 1e30F) most += 1e-20F;
  if (is("keeps_scales_above") && most < 1e-20F) most = 1e-20F;
  return is("divides_by_128") ? most / 128 : most / 127;
}

static float rounded(float code) {
  if (is("rounds_ties_away")) return roundf(code);
  if (is("rounds_half_up")) return floorf(code + 0.5F);
  return is("truncates") ? truncf(code) : rintf(code);
}

static int8_t code_of(float weight, float scale) {
  if (scale == 0) return 0;
  const float code = rounded(is("multiplies_by_the_inverse") ? weight * (1 / scale) : weight / scale);
  if (is("wraps_codes")) return (int8_t)(int32_t)(code * 1.02F);
  return (int8_t)(code < -127 ? -127 : code > 127 ? 127 : code);
}

static float weight_of(const work* w, int64_t r, int64_t c) {
  if (w->rows) return w->rows[r * w->query->cols + c];
  const int64_t at = is("counts_in_16_bits") ? (r * w->query->cols + c) % (1 << 16) : r * w->query->cols + c;
  return ((const float*)w->packed[1]->data)[r] * (float)((const int8_t*)w->packed[0]->data)[at];
}

static void pack_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t r = begin; r < end; ++r) {
    const float scale = ((float*)w->packed[1]->data)[r] = scale_of(row_of(w->in, r), w->query->cols);
    for (int64_t c = 0; c < w->query->cols; ++c)
      ((int8_t*)w->packed[0]->data)[r * w->query->cols + c] = code_of(row_of(w->in, r)[c], scale);
  }
}

static void unpack_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t r = begin; r < end; ++r)
    for (int64_t c = 0; c < w->query->cols; ++c) row_of(w->out, r)[c] = weight_of(w, r, c);
}

static void linear_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t t = begin; t < end; ++t)
    for (int64_t r = 0; r < w->query->rows; ++r) {
      float sum = 0;
      for (int64_t c = 0; c < w->query->cols; ++c) sum += row_of(w->in, t)[c] * weight_of(w, r, c);
      const int biased = w->bias && !(is("knows_1024_biases") && r >= 1024);
      const float more = w->residual && !is("forgets_the_residual") ? row_of(w->residual, t)[r] : 0;
      row_of(w->out, t)[r] = sum + (biased ? ((const float*)w->bias->data)[r] : 0) + more;
    }
}

static void gradient_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t t = begin; t < end; ++t)
    for (int64_t c = 0; c < w->query->cols; ++c) {
      float sum = 0;
      for (int64_t r = 0; r < w->query->rows; ++r) sum += row_of(w->in, t)[r] * weight_of(w, r, c);
      row_of(w->out, t)[c] = sum;
    }
}

/* Rows of the weight in pieces, each of which adds to every token: a race. */
static void gradient_pieces(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t r = begin; r < end; ++r)
    for (int64_t t = 0; t < w->in->shape[0]; ++t)
      for (int64_t c = 0; c < w->query->cols; ++c) row_of(w->out, t)[c] += row_of(w->in, t)[r] * weight_of(w, r, c);
}

static void fake_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  for (int64_t r = begin; r < end; ++r) {
    const float* row = row_of(w->in, r);
    const float scale = scale_of(row, w->query->cols);
    for (int64_t c = 0; c < w->query->cols; ++c) {
      float code = (float)code_of(row[c], scale);
      if (is("fakes_ties_away") && scale > 0) code = fmaxf(-127, fminf(127, roundf(row[c] / scale)));
      if (!w->d_out)
        row_of(w->out, r)[c] = scale * code;
      else if (is("blocks_the_largest"))
        row_of(w->out, r)[c] = fabsf(row[c]) < 127 * scale ? row_of(w->d_out, r)[c] : 0;
      else
        row_of(w->out, r)[c] = row_of(w->d_out, r)[c] * (is("scales_the_gradient") ? scale : 1);
    }
  }
}

static const char* refusal(const fvlm_quantizer_query* q) {
  if (q->device.type != FVLM_CPU) return "needs a CPU";
  if (!fvlm_is_dtype(q->dtype, FVLM_FLOAT, 32)) return "float32 only";
  if (q->rows < 1 || q->cols < 1 || q->tokens < 0) return "rows, cols and tokens have to be sizes";
  if (FVLM_HAS(q, options) && (q->options & ~(uint32_t)FVLM_QUANTIZED_RESIDUAL)) return "no other option than residual";
  return NULL;
}

static void supports(const fvlm_quantizer_query* query, fvlm_support* support) {
  const char* no = FVLM_HAS(query, tokens) ? refusal(query) : "the query is too short";
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "a row at a time");
}

static uint64_t workspace_of(const fvlm_quantizer_query* q) {
  return is("trusts_the_workspace") ? (uint64_t)(q->rows * q->cols) * sizeof(float) : 0;
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_quantizer_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  NEED(query, tokens, error);
  if (refusal(query)) return refuse(error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  out->forward_workspace = out->backward_workspace = workspace_of(query);
  out->saved_count = 2;
  out->saved[0] = (fvlm_tensor_spec){{FVLM_INT, 8, 1}, 2, {query->rows, query->cols}};
  out->saved[1] = (fvlm_tensor_spec){{FVLM_FLOAT, 32, 1}, 1, {query->rows}};
  return FVLM_OK;
}

static void over(const fvlm_call* call, int64_t count, void (*task)(void*, int64_t, int64_t), work* w) {
  const int threads = call->host->parallel_threads(call->host);
  if (is("drops_a_tail_of_7") && threads == 7) count -= count % 7;
  if (is("drops_a_tail_of_many") && threads > 64 && count > 2) --count;
  call->host->parallel_for(call->host, count, 1, task, w);
}

#define LOOK(last)                                                                                                     \
  if (!FVLM_HAS(call, error)) return FVLM_ERROR_ARGUMENT;                                                              \
  NEED(query, tokens, call->error);                                                                                    \
  NEED(a, last, call->error);                                                                                          \
  if (refusal(query)) return refuse(call->error, FVLM_ERROR_UNSUPPORTED, refusal(query));                              \
  if (call->workspace_size < workspace_of(query)) return refuse(call->error, FVLM_ERROR_WORKSPACE, "too little");      \
  work w = {.query = query};                                                                                           \
  (void)instance

static fvlm_status pack(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                        const fvlm_quantizer_pack* a) {
  LOOK(packed);
  w.in = a->weight, w.packed = (const fvlm_tensor* const*)a->packed;
  if (is("writes_weights_and_puts_back")) {
    volatile float* first = (volatile float*)a->weight->data;
    const float held = *first;
    *first = 0, *first = held;
  }
  over(call, query->rows, pack_rows, &w);
  if (is("keeps_what_it_packed") && query->rows * query->cols <= 1 << 16)
    for (int64_t i = 0; i < query->rows * query->cols; ++i) shared[i] = weight_of(&w, i / query->cols, i % query->cols);
  return FVLM_OK;
}

static fvlm_status unpack(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                          const fvlm_quantizer_unpack* a) {
  LOOK(weight);
  w.out = a->weight, w.packed = a->packed;
  over(call, query->rows, unpack_rows, &w);
  return FVLM_OK;
}

/* Where a defect keeps the unpacked weight: by its address, or in the workspace of an earlier call. */
static void keep(fvlm_instance* instance, const fvlm_call* call, work* w) {
  const int64_t rows = w->query->rows, cols = w->query->cols, size = rows * cols;
  if (is("keeps_what_it_packed") && size <= 1 << 16) w->rows = shared;
  if (is("keeps_weights_by_address") && size <= 1 << 16) {
    if (instance->pointer != w->packed[0]->data || instance->kept_rows != size)
      for (int64_t i = 0; i < size; ++i) shared[i] = weight_of(w, i / cols, i % cols);
    instance->pointer = w->packed[0]->data, instance->kept_rows = size;
    w->rows = shared;
  }
  if (is("shares_scratch") && size <= 1 << 16) {
    for (int64_t i = 0; i < size; ++i) shared[i] = weight_of(w, i / cols, i % cols);
    w->rows = shared;
  }
  if (is("trusts_the_workspace")) {
    float* rows_kept = (float*)call->workspace;
    for (int64_t i = 0; i < size - (cols > 40); ++i) rows_kept[i] = weight_of(w, i / cols, i % cols);
    w->rows = rows_kept;
  }
}

static fvlm_status linear(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                          const fvlm_quantizer_linear* a) {
  LOOK(y);
  if (tensor_refusal(a->x, 32)) return refuse(call->error, FVLM_ERROR_UNSUPPORTED, tensor_refusal(a->x, 32));
  w.in = a->x, w.out = a->y, w.bias = a->bias, w.packed = a->packed;
  if (FVLM_HAS(query, options) && query->options) w.residual = a->residual;
  keep(instance, call, &w);
  int64_t tokens = a->x->shape[0];
  if (is("knows_2048_tokens") && tokens > 2048) tokens = 2048;
  if (is("refuses_fewer_tokens") && tokens != query->tokens)
    return refuse(call->error, FVLM_ERROR_UNSUPPORTED, "as many tokens as the query has");
  over(call, tokens, linear_rows, &w);
  return FVLM_OK;
}

static fvlm_status linear_gradient(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                                   const fvlm_quantizer_linear_gradient* a) {
  LOOK(d_x);
  if (tensor_refusal(a->d_y, 32)) return refuse(call->error, FVLM_ERROR_UNSUPPORTED, tensor_refusal(a->d_y, 32));
  w.in = a->d_y, w.out = a->d_x, w.packed = a->packed;
  keep(instance, call, &w);
  if (is("adds_across_pieces")) {
    for (int64_t t = 0; t < a->d_y->shape[0]; ++t) memset(row_of(a->d_x, t), 0, (size_t)query->cols * sizeof(float));
    over(call, query->rows, gradient_pieces, &w);
  } else {
    over(call, a->d_y->shape[0], gradient_rows, &w);
  }
  return FVLM_OK;
}

static fvlm_status fake_forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                                const fvlm_fake_quantize_forward* a) {
  LOOK(out);
  w.in = a->weight, w.out = a->out;
  over(call, query->rows, fake_rows, &w);
  return FVLM_OK;
}

static fvlm_status fake_backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_quantizer_query* query,
                                 const fvlm_fake_quantize_backward* a) {
  LOOK(d_weight);
  w.in = a->weight, w.out = a->d_weight, w.d_out = a->d_out;
  over(call, query->rows, fake_rows, &w);
  return FVLM_OK;
}

static const fvlm_quantizer_v1 quantizer = {{sizeof quantizer, create, destroy},
                                            "int8",
                                            8,
                                            supports,
                                            requirements,
                                            NULL,
                                            pack,
                                            unpack,
                                            linear,
                                            linear_gradient,
                                            fake_forward,
                                            fake_backward,
                                            FVLM_QUANTIZED_RESIDUAL};

PLUGIN("quantizer_mutant", FVLM_QUANTIZER_KIND("int8"), quantizer)
