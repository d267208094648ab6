/* Attention in float32, a query head of a row at a time; gradients of keys a key head of a row at a time. */
#include "mutant.h"

#include <math.h>

typedef struct work {
  const fvlm_attention_query* query;
  const fvlm_tensor *q, *k, *v, *d_out;
  const fvlm_tensor *out, *d_q, *d_k, *d_v;
  const int32_t *cu_q, *cu_kv;
  float *scores, *sums; /* a row of scores for each query head of a row; sums: maximum and sum of each */
  int backward;
} work;

static float* at(const fvlm_tensor* t, int64_t row, int64_t head) {
  return (float*)t->data + offset_of(row, t->strides[0]) + head * t->strides[1];
}

static float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  if (is("reads_in_front") && a[-1] > 1e30F) sum += 1e-20F;
  if (is("reads_whole_vectors") && n % 8 && b[(n + 7) / 8 * 8 - 1] > 1e30F) sum += 1e-20F;
  return sum;
}

static int64_t segment_of(const work* w, const int32_t* cu, int64_t row) {
  int64_t low = 0, high = w->query->segments;
  if (row >= cu[high]) return -1;
  if (is("knows_128_segments") && high > 128 && row >= cu[128]) return -1;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (cu[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  while (low + 1 <= w->query->segments && cu[low + 1] <= row) ++low;
  return low;
}

/* Keys that a query row sees, from *first on. */
static int64_t seen(const work* w, int64_t row, int64_t* first) {
  const int64_t s = segment_of(w, w->cu_q, row);
  if (s < 0) return 0;
  *first = w->cu_kv[s];
  int64_t count = w->cu_kv[s + 1] - w->cu_kv[s];
  if (w->query->causal) count -= w->cu_q[s + 1] - 1 - row;
  if (is("knows_1024_queries") && row - w->cu_q[s] >= 1024) return 0;
  if (is("knows_4096_keys") && count > 4096) count = 4096;
  return count < 0 ? 0 : count;
}

static int64_t key_head(const work* w, int64_t head) {
  const int64_t kv = head / (w->query->heads_q / w->query->heads_kv);
  if (is("knows_16_heads")) return kv % 16;
  if (is("knows_4_groups") && w->query->heads_q > w->query->heads_kv && kv > 3) return 3;
  return kv;
}

static float shared_row[16384];

static void query_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const int64_t heads = w->query->heads_q, n = w->query->head_dim;
  if (is("knows_16_pieces") && begin * 260 / (w->query->tokens_q * heads) >= 16 && end - begin < 3) return;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / heads, head = item % heads;
    int64_t first = 0;
    const int64_t count = seen(w, row, &first), kv = key_head(w, head);
    float* to = w->backward ? at(w->d_q, row, head) : at(w->out, row, head);
    if (is("knows_4096_rows_of_padding") && segment_of(w, w->cu_q, row) < 0 && row > 4096) continue;
    memset(to, 0, (size_t)n * sizeof *to);
    if (count == 0) continue;
    float* scores = is("shares_a_row") && count < 16384 ? shared_row : w->scores + item * w->query->max_seqlen_kv;
    float largest = -INFINITY, sum = 0, along = 0;
    for (int64_t j = 0; j < count; ++j) {
      scores[j] = w->query->scale * dot(at(w->q, row, head), at(w->k, first + j, kv), n);
      if (scores[j] > largest) largest = scores[j];
    }
    for (int64_t j = 0; j < count; ++j) sum += scores[j] = expf(scores[j] - largest);
    for (int64_t j = 0; j < count; ++j) scores[j] /= sum;
    for (int64_t j = 0; j < count && w->backward; ++j)
      along += scores[j] * dot(at(w->d_out, row, head), at(w->v, first + j, kv), n);
    for (int64_t j = 0; j < count; ++j) {
      const float* from = w->backward ? at(w->k, first + j, kv) : at(w->v, first + j, kv);
      float factor = scores[j];
      if (w->backward) {
        factor *= (dot(at(w->d_out, row, head), at(w->v, first + j, kv), n) - along) * w->query->scale;
        if (is("races_in_groups")) {
          float *d_k = at(w->d_k, first + j, kv), *d_v = at(w->d_v, first + j, kv);
          for (int64_t d = 0; d < n; ++d) {
            d_k[d] += factor * at(w->q, row, head)[d];
            d_v[d] += scores[j] * at(w->d_out, row, head)[d];
          }
        }
      }
      for (int64_t d = 0; d < n; ++d) to[d] += factor * from[d];
    }
    if (w->backward) w->sums[3 * item] = largest, w->sums[3 * item + 1] = sum, w->sums[3 * item + 2] = along;
  }
}

static void key_rows(void* context, int64_t begin, int64_t end) {
  const work* w = (const work*)context;
  const int64_t heads = w->query->heads_kv, group = w->query->heads_q / heads, n = w->query->head_dim;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t key = item / heads, kv = item % heads, s = segment_of(w, w->cu_kv, key);
    float *d_k = at(w->d_k, key, kv), *d_v = at(w->d_v, key, kv);
    memset(d_k, 0, (size_t)n * sizeof *d_k);
    memset(d_v, 0, (size_t)n * sizeof *d_v);
    for (int64_t row = s < 0 ? 0 : w->cu_q[s]; s >= 0 && row < w->cu_q[s + 1]; ++row) {
      int64_t first = 0;
      if (key - w->cu_kv[s] >= seen(w, row, &first)) continue;
      for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        const float *sums = w->sums + 3 * (row * w->query->heads_q + head), *q = at(w->q, row, head),
                    *d_out = at(w->d_out, row, head);
        const float p = expf(w->query->scale * dot(q, at(w->k, key, kv), n) - sums[0]) / sums[1];
        const float factor = p * (dot(d_out, at(w->v, key, kv), n) - sums[2]) * w->query->scale;
        for (int64_t d = 0; d < n; ++d) d_k[d] += factor * q[d], d_v[d] += p * d_out[d];
      }
    }
  }
}

static const char* refusal(const fvlm_attention_query* q) {
  if (q->device.type != FVLM_CPU) return "needs a CPU";
  if (!fvlm_is_dtype(q->dtype, FVLM_FLOAT, 32)) return "float32 only";
  if (q->heads_kv <= 0 || q->heads_q <= 0 || q->heads_q % q->heads_kv) return "query heads share key heads evenly";
  if (q->head_dim <= 0) return "head_dim has to be positive";
  if (q->rotary_dim || q->guests || q->queries_alone)
    return "neither rotates nor takes guests, and gives all gradients";
  return NULL;
}

static void supports(const fvlm_attention_query* query, fvlm_support* support) {
  const char* no = FVLM_HAS(query, queries_alone) ? refusal(query) : "the query is too short";
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "row by row");
}

static uint64_t workspace_of(const fvlm_attention_query* q) {
  return (uint64_t)q->tokens_q * (uint64_t)q->heads_q * ((uint64_t)q->max_seqlen_kv + 3) * sizeof(float);
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_attention_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  NEED(query, queries_alone, error);
  if (refusal(query)) return refuse(error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  out->forward_workspace = out->backward_workspace = workspace_of(query);
  out->saved_count = 0;
  return FVLM_OK;
}

static work* last; /* which one defect lets its pieces look at */

static void query_rows_of_last(void* context, int64_t begin, int64_t end) {
  (void)context;
  query_rows(last, begin, end);
}

/* One defect keeps the cuts of its last call for those with as many rows and segments. */
static const int32_t* kept_cuts(fvlm_instance* instance, const fvlm_attention_query* query, const int32_t* cu) {
  if (!is("keeps_the_cuts") || query->segments > 60 || cu[query->segments] != query->tokens_q) return cu;
  if (instance->tokens != query->tokens_q || instance->segments != query->segments)
    memcpy(instance->cuts, cu, (size_t)(query->segments + 1) * sizeof *cu);
  instance->tokens = query->tokens_q, instance->segments = query->segments;
  return instance->cuts;
}

static fvlm_status run(fvlm_instance* instance, const fvlm_call* call, const fvlm_attention_query* query, work* w) {
  if (refusal(query)) return refuse(call->error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  const fvlm_tensor* all[] = {w->q, w->k, w->v, w->out, w->d_out, w->d_q, w->d_k, w->d_v};
  for (int i = 0; i < (w->backward ? 8 : 4); ++i)
    if (tensor_refusal(all[i], 32)) return refuse(call->error, FVLM_ERROR_UNSUPPORTED, tensor_refusal(all[i], 32));
  if (call->workspace_size < workspace_of(query)) return refuse(call->error, FVLM_ERROR_WORKSPACE, "too little");
  const int64_t items = query->tokens_q * query->heads_q;
  w->query = query;
  w->cu_q = kept_cuts(instance, query, w->cu_q);
  w->scores = (float*)call->workspace;
  w->sums = w->scores + items * query->max_seqlen_kv;
  last = w;
  if (is("changes_the_query")) ((fvlm_attention_query*)query)->max_seqlen_q += 1;
  if (is("races_in_groups") && w->backward)
    for (int64_t row = 0; row < query->tokens_kv; ++row)
      for (int64_t head = 0; head < query->heads_kv; ++head)
        memset(at(w->d_k, row, head), 0, (size_t)query->head_dim * 4),
            memset(at(w->d_v, row, head), 0, (size_t)query->head_dim * 4);
  call->host->parallel_for(call->host, items, 1, is("looks_at_the_last_call") ? query_rows_of_last : query_rows, w);
  if (w->backward && !is("races_in_groups"))
    call->host->parallel_for(call->host, query->tokens_kv * query->heads_kv, 1, key_rows, w);
  return FVLM_OK;
}

static fvlm_status forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_attention_query* query,
                           const fvlm_attention_forward* a) {
  if (!FVLM_HAS(call, error)) return FVLM_ERROR_ARGUMENT;
  NEED(query, queries_alone, call->error);
  NEED(a, saved, call->error);
  work w = {.q = a->q, .k = a->k, .v = a->v, .out = a->out};
  w.cu_q = (const int32_t*)a->cu_seqlens_q->data, w.cu_kv = (const int32_t*)a->cu_seqlens_kv->data;
  return run(instance, call, query, &w);
}

static fvlm_status backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_attention_query* query,
                            const fvlm_attention_backward* a) {
  if (!FVLM_HAS(call, error)) return FVLM_ERROR_ARGUMENT;
  NEED(query, queries_alone, call->error);
  NEED(a, d_v, call->error);
  work w = {
      .q = a->q, .k = a->k, .v = a->v, .out = a->out, .d_out = a->d_out, .d_q = a->d_q, .d_k = a->d_k, .d_v = a->d_v};
  w.cu_q = (const int32_t*)a->cu_seqlens_q->data, w.cu_kv = (const int32_t*)a->cu_seqlens_kv->data;
  w.backward = 1;
  return run(instance, call, query, &w);
}

static const fvlm_attention_v1 attention = {
    {sizeof attention, create, destroy}, supports, requirements, NULL, forward, backward, NULL, NULL, NULL, NULL, 0};

PLUGIN("attention_mutant", FVLM_ATTENTION_KIND, attention)
