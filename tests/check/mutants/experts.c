/* A mixture of experts in float32, one row after the other. */
#include "mutant.h"

#include <math.h>

static const char* refusal(const fvlm_kernels_query* q) {
  const uint32_t codes = FVLM_INT8_WEIGHTS | FVLM_INT4_WEIGHTS,
                 known = FVLM_WITH_BIAS | FVLM_SIGMOID_ROUTER | FVLM_NORMALIZED_ROUTER | codes;
  if (q->device.type != FVLM_CPU || q->op != FVLM_OP_EXPERTS) return "experts on a CPU only";
  if (!fvlm_is_dtype(q->dtype, FVLM_FLOAT, 32)) return "another type";
  if ((q->options & ~known) || (q->options & codes) == codes) return "an option is not known here";
  if ((q->options & codes) && (q->width % 32 || q->inner % 32)) return "codes of whole groups only";
  if (q->rows < 0 || q->width < 0 || q->chosen < 1 || q->chosen > q->experts) return "sizes are out of range";
  return NULL;
}

static void supports(const fvlm_kernels_query* query, fvlm_support* support) {
  const char* no = !FVLM_HAS(query, rope_theta)                                     ? "the query is too short"
                   : query->op == FVLM_OP_EXPERTS && !FVLM_HAS(query, router_scale) ? "the query is too short"
                                                                                    : refusal(query);
  fvlm_answer(support, no ? 0 : 1, "%s", no ? no : "row by row");
}

/* What a row needs: scores, the chosen ones, their weights, gates and ups of an expert, and sums. */
static uint64_t workspace_of(const fvlm_kernels_query* q) {
  return sizeof(double) * (uint64_t)(2 * q->experts + 2 * q->chosen + q->inner + q->width);
}

static fvlm_status requirements(fvlm_instance* instance, const fvlm_kernels_query* query, fvlm_requirements* out,
                                fvlm_error* error) {
  (void)instance;
  NEED(query, router_scale, error);
  if (refusal(query)) return refuse(error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  out->forward_workspace = workspace_of(query);
  out->backward_workspace = 0;
  out->saved_count = 0;
  return FVLM_OK;
}

static const float* row_of(const fvlm_tensor* t, int64_t row) {
  return (const float*)t->data + row * t->strides[0];
}

static void score(const fvlm_kernels_query* q, const float* logits, double* scores) {
  double largest = -INFINITY, sum = 0;
  for (int64_t e = 0; e < q->experts; ++e) largest = fmax(largest, logits[e]);
  for (int64_t e = 0; e < q->experts; ++e)
    sum += scores[e] = q->options & FVLM_SIGMOID_ROUTER ? 1 / (1 + exp(-(double)logits[e])) : exp(logits[e] - largest);
  for (int64_t e = 0; e < q->experts; ++e) scores[e] /= q->options & FVLM_SIGMOID_ROUTER ? 1 : sum;
}

/* `by`: scores with the bias, of which those of chosen experts are overwritten. */
static void choose_experts(const fvlm_kernels_query* q, const fvlm_experts_forward* a, double* scores, double* by,
                           double* chosen, double* weights) {
  const int64_t known = is("knows_64_experts") && q->experts > 64 ? 64 : q->experts;
  double sum = q->epsilon;
  for (int64_t e = 0; e < q->experts; ++e) by[e] = scores[e] + (a->bias ? ((const float*)a->bias->data)[e] : 0);
  for (int32_t k = 0; k < q->chosen; ++k) {
    int64_t best = 0;
    for (int64_t e = 1; e < known; ++e)
      if (by[e] > by[best] || (is("takes_the_last_of_equals") && by[e] == by[best])) best = e;
    chosen[k] = (double)best, weights[k] = scores[best], by[best] = -INFINITY;
    sum += scores[best];
  }
  for (int32_t k = 0; k < q->chosen; ++k)
    weights[k] *= q->router_scale / (q->options & FVLM_NORMALIZED_ROUTER || is("always_normalizes") ? sum : 1);
}

/* Number `col` of a row of a matrix, of which there are as many rows behind each other as all experts have. */
static double number(const fvlm_kernels_query* q, const fvlm_tensor* matrix, const fvlm_tensor* scales, int64_t row,
                     int64_t cols, int64_t col) {
  if (q->options & FVLM_INT8_WEIGHTS) {
    const int8_t* codes = matrix->data;
    const double code = codes[row * cols + col];
    return (code < 0 && is("forgets_signs") ? code + 256 : code) * ((const float*)scales->data)[row];
  }
  if (q->options & FVLM_INT4_WEIGHTS) {
    const uint8_t byte = ((const uint8_t*)matrix->data)[(row * cols + col) / 2];
    const int64_t groups = scales->shape[2], group = is("knows_one_group") ? 0 : col / (cols / groups);
    return ((col % 2 ? byte >> 4 : byte & 15) - 8) * (double)((const float*)scales->data)[row * groups + group];
  }
  return ((const float*)matrix->data)[row * cols + col];
}

/* Row `row` of gate and up with x. */
static double product(const fvlm_kernels_query* q, const fvlm_experts_forward* a, int64_t row, const float* x) {
  double sum = 0;
  for (int64_t i = 0; i < q->width && (!is("knows_1024_features") || i < 1024); ++i)
    sum += number(q, a->gate_up, a->gate_up_scales, row, q->width, i) * x[i];
  return sum;
}

static fvlm_status experts_forward(fvlm_instance* instance, const fvlm_call* call, const fvlm_kernels_query* query,
                                   const fvlm_experts_forward* a) {
  if (!FVLM_HAS(call, error)) return FVLM_ERROR_ARGUMENT;
  NEED(query, router_scale, call->error);
  NEED(a, down_scales, call->error);
  (void)instance;
  if (refusal(query)) return refuse(call->error, FVLM_ERROR_UNSUPPORTED, refusal(query));
  if (call->workspace_size < workspace_of(query)) return refuse(call->error, FVLM_ERROR_WORKSPACE, "no room");
  double *scores = (double*)call->workspace, *by = scores + query->experts, *chosen = by + query->experts,
         *weights = chosen + query->chosen, *hidden = weights + query->chosen, *sums = hidden + query->inner;
  const int64_t width = query->width, inner = query->inner;
  int64_t of_first = 0; /* rows of expert 0 so far */
  for (int64_t r = 0; r < query->rows; ++r) {
    score(query, row_of(a->logits, r), scores);
    choose_experts(query, a, scores, by, chosen, weights);
    for (int64_t c = 0; c < width; ++c) sums[c] = 0;
    for (int32_t k = 0; k < query->chosen; ++k) {
      const int64_t e = (int64_t)chosen[k];
      const float* x = row_of(a->x, r);
      if (e == 0 && is("knows_16_rows_of_an_expert") && of_first++ >= 16) continue;
      for (int64_t i = 0; i < inner; ++i) {
        const double gate = product(query, a, 2 * e * inner + i, x);
        hidden[i] = gate / (1 + exp(-gate)) * product(query, a, (2 * e + 1) * inner + i, x);
      }
      for (int64_t c = 0; c < width; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < inner; ++i)
          sum += number(query, a->down, a->down_scales, e * width + c, inner, i) * hidden[i];
        sums[c] += weights[k] * sum;
      }
    }
    for (int64_t c = 0; c < width; ++c) ((float*)a->y->data)[r * a->y->strides[0] + c] = (float)sums[c];
  }
  return FVLM_OK;
}

static const fvlm_kernels_v1 kernels = {.base = {sizeof kernels, create, destroy},
                                        .supports = supports,
                                        .requirements = requirements,
                                        .experts_forward = experts_forward};

PLUGIN("experts_mutant", FVLM_KERNELS_KIND, kernels)
