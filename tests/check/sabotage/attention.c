/* Attention row by row, in float32. Valid C99 and C++, so that one of its defects can be an exception. */
#include "common.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>
#if defined(SABOTAGE_FLUSHES_TO_ZERO)
#include <xmmintrin.h>
#endif

#ifdef SABOTAGE_EXPORTS_MORE
__attribute__((visibility("default")))
#else
static
#endif
float
dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/* to += factor * from, which lie apart. */
static void add_scaled(float* to, float factor, const float* from, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

static const char* refusal(const fvlm_attention_query* q) {
  if (q->device.type != FVLM_CPU) return "needs a CPU";
  if (!same_dtype(q->dtype, FVLM_FLOAT, 32)) return "float32 only";
  if (q->heads_kv <= 0 || q->heads_q <= 0 || q->heads_q % q->heads_kv) return "query heads share key heads evenly";
  if (q->head_dim <= 0) return "head_dim has to be positive";
  if (q->rotary_dim != 0) return "q and k have to come rotated";
  if (q->guests || q->queries_alone) return "takes no guests, and gives all gradients";
  return NULL;
}

/* What calls refuse: what supports() says no to. */
static const char* call_refusal(const fvlm_attention_query* query) {
#ifdef SABOTAGE_SAYS_NO_AND_DOES_IT_WRONG
  if (query->rotary_dim != 0) return NULL;
#endif
  return refusal(query);
}

static void supports(const fvlm_attention_query* query, fvlm_support* support) {
  if (!FVLM_HAS(query, queries_alone)) {
    fvlm_answer(support, 0, "the query is too short");
    return;
  }
  const char* no = refusal(query);
#ifdef SABOTAGE_GIVES_NO_REASON
  if (no) {
    support->score = 0;
    support->reason[0] = 0;
    return;
  }
#endif
#ifdef SABOTAGE_SAYS_YES_TO_NONSENSE
  if (query->heads_kv > 0 && query->heads_q % query->heads_kv) no = NULL;
#endif
#ifdef SABOTAGE_CHANGES_ITS_MIND
  static int asked;
  if (query->head_dim == 33 && asked++ % 2) no = "not today";
#endif
#ifdef SABOTAGE_SCORES_BEYOND_THE_LIMIT
  if (!no && query->head_dim == 33) {
    fvlm_answer(support, 1001, "row by row");
    return;
  }
#endif
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "row by row");
}

static uint64_t scratch_floats(const fvlm_attention_query* query, int backward) {
  return (uint64_t)query->max_seqlen_kv * (backward ? 2 : 1);
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_attention_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  NEED(query, needs_backward, error);
  const char* no = call_refusal(query);
  if (no) return fvlm_fail(error, FVLM_ERROR_UNSUPPORTED, "%s", no);
  out->forward_workspace = scratch_floats(query, 0) * sizeof(float);
  out->backward_workspace = scratch_floats(query, 1) * sizeof(float);
  out->saved_count = 0;
  return FVLM_OK;
}

#ifdef SABOTAGE_STARTS_THREADS
static void* idle(void* nothing) {
  return nothing;
}
#endif
#ifdef SABOTAGE_NESTS_PARALLEL_FOR
static void nothing_to_do(void* context, int64_t begin, int64_t end) {
  (void)context, (void)begin, (void)end;
}
static void nest(void* context, int64_t begin, int64_t end) {
  (void)begin, (void)end;
  const fvlm_host* host = (const fvlm_host*)context;
  host->parallel_for(host, 10, 1, nothing_to_do, NULL);
}
#endif

static void misbehave(const fvlm_call* call) {
  (void)call;
#ifdef SABOTAGE_ALLOCATES
  volatile char* memory = (volatile char*)malloc(100);
  if (memory) memory[0] = 1;
  free((void*)memory);
#endif
#ifdef SABOTAGE_LEAKS
  volatile char* memory = (volatile char*)malloc(1000);
  if (memory) memory[0] = 1;
#endif
#ifdef SABOTAGE_STARTS_THREADS
  pthread_t thread;
  if (pthread_create(&thread, NULL, idle, NULL) == 0) pthread_join(thread, NULL);
#endif
#ifdef SABOTAGE_OPENS_FILES
  (void)open("/dev/null", O_RDONLY);
#endif
#ifdef SABOTAGE_FLUSHES_TO_ZERO
  _mm_setcsr(_mm_getcsr() | 0x8000);
#endif
#ifdef SABOTAGE_NESTS_PARALLEL_FOR
  call->host->parallel_for(call->host, 10, 1, nest, (void*)call->host);
#endif
}

/* Whether calls of this class can be made at all; FVLM_OK or why not. */
static fvlm_status look(const fvlm_call* call, const fvlm_attention_query* query, int backward) {
  const char* no = call_refusal(query);
  if (no) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "%s", no);
#ifdef SABOTAGE_SAYS_YES_AND_REFUSES
  if (query->head_dim == 80) return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "head_dim 80 after all not");
#endif
#ifndef SABOTAGE_TRUSTS_THE_WORKSPACE
  if (call->workspace_size < scratch_floats(query, backward) * sizeof(float)) {
#if defined(SABOTAGE_THROWS) && defined(__cplusplus)
    throw 42;
#endif
    return fvlm_fail(call->error, FVLM_ERROR_WORKSPACE, "too little workspace");
  }
#else
  (void)backward;
#endif
  return FVLM_OK;
}

static float scale_of(const fvlm_attention_query* query) {
#ifdef SABOTAGE_IGNORES_SCALE
  return 1.0f / sqrtf((float)query->head_dim);
#else
  return query->scale;
#endif
}

static int64_t key_head(const fvlm_attention_query* query, int64_t h) {
#ifdef SABOTAGE_IGNORES_GROUPS
  return h % query->heads_kv;
#else
  return h / (query->heads_q / query->heads_kv);
#endif
}

/* How many keys query i of a segment sees. */
static int64_t visible(const fvlm_attention_query* query, int64_t i, int64_t length_q, int64_t length_kv) {
  if (!query->causal) return length_kv;
#ifdef SABOTAGE_ALIGNS_TOP_LEFT
  int64_t count = i + 1;
  (void)length_q;
#else
  int64_t count = i + 1 + length_kv - length_q;
#endif
  return count < 0 ? 0 : count > length_kv ? length_kv : count;
}

/* Softmax of q's scores into p. */
static void probabilities(const fvlm_attention_query* query, const float* q, const fvlm_tensor* k, int64_t first,
                          int64_t count, int64_t head, float* p) {
  float most = -INFINITY, sum = 0;
  for (int64_t j = 0; j < count; ++j) {
    p[j] = scale_of(query) * dot(q, head_of(k, first + j, head), query->head_dim);
    if (p[j] > most) most = p[j];
  }
#ifdef SABOTAGE_OVERFLOWS
  most = 0;
#endif
  for (int64_t j = 0; j < count; ++j) sum += p[j] = expf(p[j] - most);
  for (int64_t j = 0; j < count; ++j) p[j] /= sum;
}

static void clear(const fvlm_tensor* tensor, int64_t from) {
  for (int64_t i = from; i < tensor->shape[0]; ++i)
    for (int64_t h = 0; h < tensor->shape[1]; ++h)
      memset(head_of(tensor, i, h), 0, (size_t)tensor->shape[2] * sizeof(float));
}

static fvlm_status forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_attention_query* query,
                           const fvlm_attention_forward* arguments) {
  (void)instance;
  NEED_CALL(call);
  NEED(query, needs_backward, call->error);
  NEED(arguments, saved, call->error);
  fvlm_status status = look(call, query, 0);
  if (status != FVLM_OK) return status;
  misbehave(call);
  const fvlm_tensor *q = arguments->q, *k = arguments->k, *v = arguments->v, *out = arguments->out;
#ifdef SABOTAGE_CRASHES_AT_ZERO_ROWS
  if (query->tokens_q == 0 && query->tokens_kv == 0) *(volatile int*)0 = 1;
#endif
#ifdef SABOTAGE_HANGS_AT_ONE_TOKEN
  if (query->tokens_q == 1) {
    volatile int waiting = 1;
    while (waiting) usleep(1000);
  }
#endif
#ifdef SABOTAGE_ENDS_THE_PROCESS
  if (query->tokens_q == 0 && query->tokens_kv == 0) exit(0);
#endif
  const int32_t *starts_q = (const int32_t*)arguments->cu_seqlens_q->data,
                *starts_kv = (const int32_t*)arguments->cu_seqlens_kv->data;
  float* p = (float*)call->workspace;
#if defined(SABOTAGE_LEAVES_PADDING)
#else
  clear(out, starts_q[query->segments]);
#endif
#ifdef SABOTAGE_FORGETS_EMPTY_SEGMENTS
  /* A fully masked row is skipped and keeps whatever was there. */
#endif
  for (int64_t s = 0; s < query->segments; ++s)
    for (int64_t i = starts_q[s]; i < starts_q[s + 1]; ++i)
      for (int64_t h = 0; h < query->heads_q; ++h) {
        const int64_t head = key_head(query, h), first = starts_kv[s];
        const int64_t count = visible(query, i - starts_q[s], starts_q[s + 1] - starts_q[s], starts_kv[s + 1] - first);
        float* row = head_of(out, i, h);
#ifdef SABOTAGE_FORGETS_EMPTY_SEGMENTS
        if (count == 0) continue;
#endif
        probabilities(query, head_of(q, i, h), k, first, count, head, p);
        memset(row, 0, (size_t)query->head_dim * sizeof(float));
        for (int64_t j = 0; j < count; ++j) add_scaled(row, p[j], head_of(v, first + j, head), query->head_dim);
#ifdef SABOTAGE_LEAKS_NAN
        for (int64_t j = starts_kv[query->segments]; j < query->tokens_kv; ++j)
          add_scaled(row, 0, head_of(v, j, head), query->head_dim);
#endif
      }
#ifdef SABOTAGE_NOT_DETERMINISTIC
  static int turn;
  if (query->tokens_q > 0) head_of(out, 0, 0)[0] *= 1 + 1e-7f * (float)(turn++ % 3);
#endif
#ifdef SABOTAGE_WRITES_BEHIND
  if (query->tokens_q > 0) head_of(out, query->tokens_q - 1, query->heads_q - 1)[query->head_dim] = 1;
#endif
#ifdef SABOTAGE_WRITES_BEFORE
  if (query->tokens_q > 0) head_of(out, 0, 0)[-1] = 1;
#endif
#ifdef SABOTAGE_TAKES_MORE_WORKSPACE
  p[scratch_floats(query, 0)] = 1;
#endif
  return FVLM_OK;
}

static fvlm_status backward(fvlm_instance* instance, const fvlm_call* call, const fvlm_attention_query* query,
                            const fvlm_attention_backward* arguments) {
  (void)instance;
  NEED_CALL(call);
  NEED(query, needs_backward, call->error);
  NEED(arguments, d_v, call->error);
  fvlm_status status = look(call, query, 1);
  if (status != FVLM_OK) return status;
  const fvlm_tensor *q = arguments->q, *k = arguments->k, *v = arguments->v, *d_out = arguments->d_out;
  const fvlm_tensor *d_q = arguments->d_q, *d_k = arguments->d_k, *d_v = arguments->d_v;
  const int32_t *starts_q = (const int32_t*)arguments->cu_seqlens_q->data,
                *starts_kv = (const int32_t*)arguments->cu_seqlens_kv->data;
  float *p = (float*)call->workspace, *d_p = p + query->max_seqlen_kv;
  clear(d_q, 0);
  clear(d_k, 0);
  clear(d_v, 0);
  for (int64_t s = 0; s < query->segments; ++s)
    for (int64_t i = starts_q[s]; i < starts_q[s + 1]; ++i)
      for (int64_t h = 0; h < query->heads_q; ++h) {
        const int64_t head = key_head(query, h), first = starts_kv[s], n = query->head_dim;
        const int64_t count = visible(query, i - starts_q[s], starts_q[s + 1] - starts_q[s], starts_kv[s + 1] - first);
        const float *q_row = head_of(q, i, h), *d_row = head_of(d_out, i, h);
        probabilities(query, q_row, k, first, count, head, p);
        float along = 0;
        for (int64_t j = 0; j < count; ++j) {
          d_p[j] = dot(d_row, head_of(v, first + j, head), n);
          along += p[j] * d_p[j];
        }
        for (int64_t j = 0; j < count; ++j) {
          const float d_score = p[j] * (d_p[j] - along) * scale_of(query);
          add_scaled(head_of(d_q, i, h), d_score, head_of(k, first + j, head), n);
          add_scaled(head_of(d_k, first + j, head), d_score, q_row, n);
          add_scaled(head_of(d_v, first + j, head), p[j], d_row, n);
        }
      }
#ifdef SABOTAGE_WRITES_TO_INPUTS
  if (query->tokens_q > 0) head_of(d_out, 0, 0)[0] = 7;
#endif
  return FVLM_OK;
}

static const char* paged_refusal(const fvlm_paged_attention_query* q) {
  if (q->device.type != FVLM_CPU) return "needs a CPU";
  if (!same_dtype(q->dtype, FVLM_FLOAT, 32)) return "float32 only";
  if (q->heads_kv <= 0 || q->heads_q <= 0 || q->heads_q % q->heads_kv) return "query heads share key heads evenly";
  if (FVLM_HAS(q, epsilon) && q->appends && (q->qk_norm || q->has_frequencies || q->inverse || q->head_dim > 128))
    return "appends with plain rotary embedding only";
  return NULL;
}

static void supports_paged(const fvlm_paged_attention_query* query, fvlm_support* support) {
  const char* no = FVLM_HAS(query, max_pages) ? paged_refusal(query) : "the query is too short";
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "row by row");
}

static fvlm_status requirements_paged(fvlm_instance* instance, const fvlm_paged_attention_query* query,
                                      fvlm_requirements* out, fvlm_error* error) {
  (void)instance, (void)query, (void)error;
  NEED(query, max_pages, error);
  out->forward_workspace = out->backward_workspace = 0;
  out->saved_count = 0;
  return FVLM_OK;
}

static const float* in_page(const fvlm_tensor* pages, int32_t page, int64_t row, int64_t head) {
  return (const float*)pages->data + page * pages->strides[0] + row * pages->strides[1] + head * pages->strides[2];
}

/* Of a head, at a position. */
static void rotate(const fvlm_paged_attention_query* query, const float* x, int64_t position, float* to) {
  const int half = query->rotary_dim / 2;
  for (int d = 0; d < query->head_dim; ++d) {
    const int i = d % (half ? half : 1);
    const double angle = (double)position * pow(query->rope_theta, -2.0 * i / (half ? 2 * half : 1));
    if (d >= 2 * half)
      to[d] = x[d];
    else if (d < half)
      to[d] = (float)(x[d] * cos(angle) - x[d + half] * sin(angle));
    else
      to[d] = (float)(x[d] * cos(angle) + x[d - half] * sin(angle));
  }
}

/* Writes a row's keys and values to row `position` of a page. */
static void append(const fvlm_paged_attention_query* query, const fvlm_paged_attention* arguments, int64_t row,
                   int32_t page, int64_t position) {
  for (int64_t h = 0; h < query->heads_kv; ++h) {
    float* key = (float*)in_page(arguments->k_pages, page, position % query->page_rows, h);
    float* value = (float*)in_page(arguments->v_pages, page, position % query->page_rows, h);
    rotate(query, head_of(arguments->k, row, h), position, key);
#ifdef SABOTAGE_APPENDS_UNROTATED
    memcpy(key, head_of(arguments->k, row, h), (size_t)query->head_dim * sizeof(float));
#endif
    memcpy(value, head_of(arguments->v, row, h), (size_t)query->head_dim * sizeof(float));
  }
}

static fvlm_status forward_paged(fvlm_instance* instance, const fvlm_call* call,
                                 const fvlm_paged_attention_query* query, const fvlm_paged_attention* arguments) {
  (void)instance;
  NEED_CALL(call);
  NEED(query, max_pages, call->error);
  NEED(arguments, out, call->error);
  const int32_t *table = (const int32_t*)arguments->page_table->data,
                *sequences = (const int32_t*)arguments->sequences->data,
                *lengths = (const int32_t*)arguments->lengths->data;
  const int64_t n = query->head_dim;
  const int appends = FVLM_HAS(query, epsilon) && query->appends;
  for (int64_t i = 0; appends && i < query->rows; ++i)
    if (lengths[i] > 0)
      append(query, arguments, i, table[sequences[i] * query->max_pages + (lengths[i] - 1) / query->page_rows],
             lengths[i] - 1);
  for (int64_t i = 0; i < query->rows; ++i)
    for (int64_t h = 0; h < query->heads_q; ++h) {
      const int64_t head = h / (query->heads_q / query->heads_kv);
      const float* q = head_of(arguments->q, i, h);
      float rotated[128];
      if (appends) rotate(query, q, lengths[i] - 1, rotated), q = rotated;
      float *out = head_of(arguments->out, i, h), most = -INFINITY, sum = 0;
#ifdef SABOTAGE_LEAVES_PAGED_PADDING
      if (lengths[i] == 0) continue;
#endif
      memset(out, 0, (size_t)n * sizeof(float));
      if (lengths[i] == 0) continue;
      const int32_t* pages = table + sequences[i] * query->max_pages;
      for (int64_t j = 0; j < lengths[i]; ++j) {
        const float* key = in_page(arguments->k_pages, pages[j / query->page_rows], j % query->page_rows, head);
        const float score = query->scale * dot(q, key, n);
        if (score > most) most = score;
      }
      for (int64_t j = 0; j < lengths[i]; ++j) {
        const float* key = in_page(arguments->k_pages, pages[j / query->page_rows], j % query->page_rows, head);
        const float* value = in_page(arguments->v_pages, pages[j / query->page_rows], j % query->page_rows, head);
        const float weight = expf(query->scale * dot(q, key, n) - most);
        sum += weight;
        add_scaled(out, weight, value, n);
      }
#ifdef SABOTAGE_READS_WHOLE_PAGES
      for (int64_t j = lengths[i]; j % query->page_rows; ++j)
        add_scaled(out, 0, in_page(arguments->v_pages, pages[j / query->page_rows], j % query->page_rows, head), n);
#endif
      for (int64_t d = 0; d < n; ++d) out[d] /= sum;
    }
  return FVLM_OK;
}

static const fvlm_attention_v1 attention = {{sizeof attention, create_instance, destroy_instance},
                                            supports,
                                            requirements,
                                            NULL,
                                            forward,
                                            backward,
                                            supports_paged,
                                            requirements_paged,
                                            NULL,
                                            forward_paged,
                                            FVLM_ATTENTION_APPENDS};

#ifdef SABOTAGE_ENTRY
/* Entries with a defect of their own. */
static const void* table_of(const char* kind) {
#if defined(SABOTAGE_TABLE_MOVES)
  static fvlm_attention_v1 copies[64];
  static int next;
  if (strcmp(kind, FVLM_ATTENTION_KIND) != 0) return NULL;
  copies[next % 64] = attention;
  return &copies[next++ % 64];
#elif defined(SABOTAGE_TABLE_FOR_ANYTHING)
  return strncmp(kind, "fvlm.attention/", 15) == 0 ? &attention : NULL;
#else
  return strcmp(kind, FVLM_ATTENTION_KIND) == 0 ? &attention : NULL;
#endif
}
static fvlm_plugin plugin = {sizeof plugin, FVLM_ABI_MAJOR, FVLM_ABI_MINOR, "attention", "1.0", table_of};
FVLM_EXPORT const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host) {
#if defined(SABOTAGE_ENTRY_TAKES_ANY_SIZE)
  return host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;
#elif defined(SABOTAGE_ENTRY_TAKES_ANY_MAJOR)
  return FVLM_HAS(host, parallel_threads) ? &plugin : NULL;
#elif defined(SABOTAGE_ENTRY_MOVES)
  static fvlm_plugin copies[64];
  static int next;
  if (!FVLM_HAS(host, parallel_threads) || host->abi_major != FVLM_ABI_MAJOR) return NULL;
  copies[next % 64] = plugin;
  return &copies[next++ % 64];
#else
  return FVLM_HAS(host, parallel_threads) && host->abi_major == FVLM_ABI_MAJOR ? &plugin : NULL;
#endif
}
#ifdef SABOTAGE_CONSTRUCTOR_ABORTS
__attribute__((constructor)) static void begin(void) {
  abort();
}
#endif
#ifdef SABOTAGE_CONSTRUCTOR_STARTS_A_THREAD
static void* sleeper(void* nothing) {
  for (;;) sleep(1000);
  return nothing;
}
__attribute__((constructor)) static void begin(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, sleeper, NULL);
}
#endif
#else
PLUGIN("attention", FVLM_ATTENTION_KIND, attention)
#endif
