/* @NAME@: attention in plain C, one row and one head at a time, on the engine's CPU threads. Correct, short and slow: a
 * starting point. fvlm/attention.h specifies each function. */
#include <fvlm/attention.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a task of parallel_for reads and writes. */
typedef struct work {
  const fvlm_attention_query* query;
  const fvlm_tensor *q, *k, *v, *out_read, *d_out;
  const int32_t *cu_q, *cu_kv;
  fvlm_tensor *out, *d_q, *d_k, *d_v;
  float* logsumexp; /* [tokens_q, heads_q], saved by forward */
  float* delta;     /* the same shape: out . d_out of each row, in the workspace */
} work;

typedef struct range {
  int64_t begin, end;
} range;

static float* at(const fvlm_tensor* tensor, int64_t row, int64_t head) {
  return (float*)tensor->data + row * tensor->strides[0] + head * tensor->strides[1];
}

static float dot(const float* a, const float* b, int64_t count) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

static void add_scaled(float* sum, float factor, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += factor * values[i];
}

/* The key rows that a query row attends to; none for padding. */
static range keys_of(const work* w, int64_t row) {
  const range none = {0, 0};
  for (int64_t s = 0; s < w->query->segments; ++s) {
    if (row >= w->cu_q[s + 1]) continue;
    range keys = {w->cu_kv[s], w->cu_kv[s + 1]};
    if (w->query->causal) keys.end -= w->cu_q[s + 1] - 1 - row; /* the last query attends to the last key */
    return keys.end > keys.begin ? keys : none;
  }
  return none;
}

/* The query rows that attend to a key row; none for padding. */
static range queries_of(const work* w, int64_t row) {
  const range none = {0, 0};
  for (int64_t s = 0; s < w->query->segments; ++s) {
    if (row >= w->cu_kv[s + 1]) continue;
    range queries = {w->cu_q[s], w->cu_q[s + 1]};
    if (w->query->causal) {
      const int64_t first = queries.end - (w->cu_kv[s + 1] - row);
      if (first > queries.begin) queries.begin = first;
    }
    return queries;
  }
  return none;
}

static void forward_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const int64_t heads = w->query->heads_q, group = heads / w->query->heads_kv, dim = w->query->head_dim;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / heads, head = item % heads;
    const range keys = keys_of(w, row);
    float* out = at(w->out, row, head);
    memset(out, 0, (size_t)dim * sizeof *out);
    if (keys.begin == keys.end) continue;

    const float* q = at(w->q, row, head);
    float largest = -INFINITY, sum = 0;
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      largest = fmaxf(largest, w->query->scale * dot(q, at(w->k, j, head / group), dim));
    }
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const float p = expf(w->query->scale * dot(q, at(w->k, j, head / group), dim) - largest);
      sum += p;
      add_scaled(out, p, at(w->v, j, head / group), dim);
    }
    for (int64_t d = 0; d < dim; ++d) out[d] /= sum;
    if (w->logsumexp) w->logsumexp[item] = largest + logf(sum);
  }
}

static void backward_queries(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const int64_t heads = w->query->heads_q, group = heads / w->query->heads_kv, dim = w->query->head_dim;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / heads, head = item % heads;
    const range keys = keys_of(w, row);
    float* d_q = at(w->d_q, row, head);
    memset(d_q, 0, (size_t)dim * sizeof *d_q);
    if (keys.begin == keys.end) continue;

    const float *q = at(w->q, row, head), *d_out = at(w->d_out, row, head);
    w->delta[item] = dot(at(w->out_read, row, head), d_out, dim);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const float* k = at(w->k, j, head / group);
      const float p = expf(w->query->scale * dot(q, k, dim) - w->logsumexp[item]);
      const float d_p = dot(d_out, at(w->v, j, head / group), dim);
      add_scaled(d_q, p * (d_p - w->delta[item]) * w->query->scale, k, dim);
    }
  }
}

/* Each key row sums over the queries that attend to it, so no two tasks write the same element: the result is
 * deterministic. */
static void backward_keys(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const int64_t heads = w->query->heads_kv, group = w->query->heads_q / heads, dim = w->query->head_dim;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / heads, head = item % heads;
    const range queries = queries_of(w, row);
    const float *k = at(w->k, row, head), *v = at(w->v, row, head);
    float *d_k = at(w->d_k, row, head), *d_v = at(w->d_v, row, head);
    memset(d_k, 0, (size_t)dim * sizeof *d_k);
    memset(d_v, 0, (size_t)dim * sizeof *d_v);
    for (int64_t i = queries.begin; i < queries.end; ++i) {
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        const int64_t query = i * w->query->heads_q + h;
        const float *q = at(w->q, i, h), *d_out = at(w->d_out, i, h);
        const float p = expf(w->query->scale * dot(q, k, dim) - w->logsumexp[query]);
        add_scaled(d_v, p, d_out, dim);
        add_scaled(d_k, p * (dot(d_out, v, dim) - w->delta[query]) * w->query->scale, q, dim);
      }
    }
  }
}

static int is_tensor(const fvlm_tensor* tensor) {
  return fvlm_is_rows(tensor, FVLM_FLOAT, 32, 3);
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
static const char* refusal(const fvlm_attention_query* query) {
  if (query->device.type != FVLM_CPU) return "runs on the CPU only";
  if (!fvlm_is_dtype(query->dtype, FVLM_FLOAT, 32)) return "float32 only";
  if (query->rotary_dim != 0) return "rotary_dim not supported";
  if (query->guests || query->queries_alone) return "extra queries and dq only (guests, queries_alone) not supported";
  if (query->heads_kv < 1 || query->heads_q % query->heads_kv != 0) return "query heads are no multiple of key heads";
  return NULL;
}

static void supports(const fvlm_attention_query* query, fvlm_support* support) {
  if (!FVLM_HAS(support, reason)) return;
  const char* no = FVLM_HAS(query, queries_alone) ? refusal(query) : "query: struct_size is too small";
  if (no) {
    fvlm_answer(support, 0, "%s", no);
  } else {
    fvlm_answer(support, 10, "plain loops"); /* the reference has 1; raise it as this gets faster */
  }
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_attention_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  if (!FVLM_HAS(query, queries_alone) || !FVLM_HAS(out, saved)) {
    return fvlm_fail(error, FVLM_ERROR_ARGUMENT, "requirements: struct_size is too small");
  }
  const fvlm_tensor_spec logsumexp = {{FVLM_FLOAT, 32, 1}, 2, {query->tokens_q, query->heads_q, 0, 0}};
  out->forward_workspace = 0;
  out->backward_workspace = (uint64_t)(query->tokens_q * query->heads_q) * sizeof(float);
  out->saved_count = query->needs_backward ? 1 : 0;
  out->saved[0] = logsumexp;
  return FVLM_OK;
}

static fvlm_status forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_attention_query* query,
                           const fvlm_attention_forward* arguments) {
  (void)instance;
  if (!FVLM_HAS(call, error) || !FVLM_HAS(query, queries_alone) || !FVLM_HAS(arguments, saved)) {
    return fvlm_fail(fvlm_sink(call), FVLM_ERROR_ARGUMENT, "forward: struct_size is too small");
  }
  const char* no = refusal(query);
  if (no) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", no);
  if (!is_tensor(arguments->q) || !is_tensor(arguments->k) || !is_tensor(arguments->v) || !is_tensor(arguments->out)) {
    return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "forward: float32 with a contiguous last dimension only");
  }
  work w = {0};
  w.query = query;
  w.q = arguments->q;
  w.k = arguments->k;
  w.v = arguments->v;
  w.out = arguments->out;
  w.cu_q = (const int32_t*)arguments->cu_seqlens_q->data;
  w.cu_kv = (const int32_t*)arguments->cu_seqlens_kv->data;
  w.logsumexp = arguments->saved[0] ? (float*)arguments->saved[0]->data : NULL;
  call->host->parallel_for(call->host, query->tokens_q * query->heads_q, 4, forward_rows, &w);
  return FVLM_OK;
}

static fvlm_status backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_attention_query* query,
                            const fvlm_attention_backward* arguments) {
  (void)instance;
  if (!FVLM_HAS(call, error) || !FVLM_HAS(query, queries_alone) || !FVLM_HAS(arguments, d_v)) {
    return fvlm_fail(fvlm_sink(call), FVLM_ERROR_ARGUMENT, "backward: struct_size is too small");
  }
  const char* no = refusal(query);
  if (no) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", no);
  if (!is_tensor(arguments->q) || !is_tensor(arguments->k) || !is_tensor(arguments->v) || !is_tensor(arguments->out) ||
      !is_tensor(arguments->d_out) || !is_tensor(arguments->d_q) || !is_tensor(arguments->d_k) ||
      !is_tensor(arguments->d_v)) {
    return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "backward: float32 with a contiguous last dimension only");
  }
  const int64_t items = query->tokens_q * query->heads_q;
  if (call->workspace_size < (uint64_t)items * sizeof(float)) {
    return fvlm_fail(call->error, FVLM_ERROR_WORKSPACE, "backward: the workspace is too small");
  }
  work w = {0};
  w.query = query;
  w.q = arguments->q;
  w.k = arguments->k;
  w.v = arguments->v;
  w.out_read = arguments->out;
  w.d_out = arguments->d_out;
  w.d_q = arguments->d_q;
  w.d_k = arguments->d_k;
  w.d_v = arguments->d_v;
  w.cu_q = (const int32_t*)arguments->cu_seqlens_q->data;
  w.cu_kv = (const int32_t*)arguments->cu_seqlens_kv->data;
  w.logsumexp = (float*)arguments->saved[0]->data;
  w.delta = (float*)call->workspace;
  call->host->parallel_for(call->host, items, 4, backward_queries, &w);
  call->host->parallel_for(call->host, query->tokens_kv * query->heads_kv, 4, backward_keys, &w);
  return FVLM_OK;
}

static const fvlm_attention_v1 table = {
    .base = {sizeof(fvlm_attention_v1), create, destroy},
    .supports = supports,
    .requirements = requirements,
    .forward = forward,
    .backward = backward,
};

static const void* find_table(const char* kind) {
  return strcmp(kind, FVLM_ATTENTION_KIND) == 0 ? &table : NULL;
}

const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
  static const fvlm_plugin plugin = {
      sizeof(fvlm_plugin), FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "@NAME@", "0.1.0", find_table,
  };
  return FVLM_HAS(host, parallel_threads) && host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;
}
