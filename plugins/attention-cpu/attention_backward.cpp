// attention_backward.cpp: the gradients of one segment and key head. Probabilities are recomputed from the saved
// log-sum-exp. One task handles all query heads of the key head, so no other task adds to its d_k and d_v.
#include "attention_tiles.h"

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

struct Buffers {
  float *keys_t, *values_t;   // tiles of [dim][tile_keys]
  float* keys;                // [keys][dim]
  float *d_keys, *d_values;   // [keys][dim]
  float *queries, *d_out;     // [queries][dim]; queries times scale * log2 e
  float* d_queries;           // [queries][dim]
  float *log_sum_exp, *delta; // [queries]; delta = d_out . out
  float *p, *d_s;             // [tile_queries][tile_keys]
};

Buffers take(Scratch& scratch, const AttentionProblem& problem) {
  const int64_t dim = padded_dim(problem), keys = round_up(problem.max_seqlen_kv, tile_keys);
  const int64_t queries = problem.max_seqlen_q;
  Buffers b{};
  b.keys_t = scratch.take(keys * dim);
  b.values_t = scratch.take(keys * dim);
  b.keys = scratch.take(keys * dim);
  b.d_keys = scratch.take(keys * dim);
  b.d_values = scratch.take(keys * dim);
  b.queries = scratch.take(queries * dim);
  b.d_out = scratch.take(queries * dim);
  b.d_queries = scratch.take(queries * dim);
  b.log_sum_exp = scratch.take(queries);
  b.delta = scratch.take(queries);
  b.p = scratch.take(tile_queries * tile_keys);
  b.d_s = scratch.take(tile_queries * tile_keys);
  return b;
}

// The query rows [first, first + count) against one tile of keys.
void backward_tile(const AttentionProblem& problem, const AttentionTask& task, const Buffers& b, int64_t first,
                   int64_t count, int64_t key) {
  const int64_t dim = padded_dim(problem), dim_vectors = dim / lanes;
  const int64_t keys = task.kv_count - key < tile_keys ? task.kv_count - key : tile_keys;
  for (int64_t r = 0; r < count; r += tile_rows) {
    const int64_t rows = count - r < tile_rows ? count - r : tile_rows;
    int64_t visible = visible_keys(problem, task, first + r + rows - 1) - key;
    visible = visible < 0 ? 0 : visible < keys ? visible : keys;
    if (visible == 0) continue; // the products below skip these rows: see first_query()
    const int64_t width = round_up(visible, lanes);
    float *p = b.p + r * tile_keys, *d_s = b.d_s + r * tile_keys;
    const float *q = b.queries + (first + r) * dim, *d_out = b.d_out + (first + r) * dim;
    multiply<false>({dim, q, dim, 1, b.keys_t + key * dim, tile_keys, p, tile_keys}, rows, width / lanes);
    multiply<false>({dim, d_out, dim, 1, b.values_t + key * dim, tile_keys, d_s, tile_keys}, rows, width / lanes);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t position = first + r + i;
      softmax_backward(p + i * tile_keys, d_s + i * tile_keys, width, visible_keys(problem, task, position) - key,
                       b.log_sum_exp[position], b.delta[position]);
      for (int64_t j = width; j < keys; j += lanes) {
        store(p + i * tile_keys + j, zero());
        store(d_s + i * tile_keys + j, zero());
      }
    }
    multiply<true>({visible, d_s, tile_keys, 1, b.keys + key * dim, dim, b.d_queries + (first + r) * dim, dim}, rows,
                   dim_vectors);
  }
  // d_v += p^T d_out and d_k += d_s^T q. Strips of keys skip the queries before the first that attends to one of them;
  // in the remaining rows, p and d_s of masked keys are 0.
  for (int64_t j = 0; j < keys; j += tile_rows) {
    const int64_t rows = keys - j < tile_rows ? keys - j : tile_rows;
    int64_t skip = first_query(problem, task, key + j) - first;
    skip = skip < 0 ? 0 : skip - skip % tile_rows;
    if (skip >= count) break;
    const float *p = b.p + skip * tile_keys + j, *d_s = b.d_s + skip * tile_keys + j;
    multiply<true>(
        {count - skip, p, 1, tile_keys, b.d_out + (first + skip) * dim, dim, b.d_values + (key + j) * dim, dim}, rows,
        dim_vectors);
    multiply<true>(
        {count - skip, d_s, 1, tile_keys, b.queries + (first + skip) * dim, dim, b.d_keys + (key + j) * dim, dim}, rows,
        dim_vectors);
  }
}

template <class Element>
void pack_head(const AttentionProblem& problem, const AttentionTask& task, int64_t head, const Buffers& b) {
  const int64_t dim = padded_dim(problem);
  pack_rows(at<const Element>(problem.q, task.q_begin, head), problem.q.row, task.q_count, problem.head_dim,
            problem.scale * log2_e, b.queries, dim, dim);
  pack_rows(at<const Element>(problem.d_out, task.q_begin, head), problem.d_out.row, task.q_count, problem.head_dim,
            1.0f, b.d_out, dim, dim);
  for (int64_t r = 0; r < task.q_count; ++r) {
    const Element* out = at<const Element>(problem.out, task.q_begin + r, head);
    const float* d_out = b.d_out + r * dim;
    Vector products = zero();
    int64_t d = 0;
    for (; d + lanes <= problem.head_dim; d += lanes) products = fma(load(out + d), load(d_out + d), products);
    if (d < problem.head_dim) products = fma(load_part(out + d, problem.head_dim - d), load(d_out + d), products);
    b.delta[r] = sum(products);
    b.log_sum_exp[r] = problem.log_sum_exp[(task.q_begin + r) * problem.heads_q + head];
  }
  for (int64_t i = 0; i < task.q_count * dim; i += lanes) store(b.d_queries + i, zero());
}

template <class Element>
void backward_task(const AttentionProblem& problem, const AttentionTask& task, float* memory) {
  Scratch scratch(memory);
  const Buffers b = take(scratch, problem);
  const int64_t dim = padded_dim(problem);
  const int group = problem.heads_q / problem.heads_kv;
  pack_key_tiles<Element>(problem, problem.k, task, dim, b.keys_t);
  pack_key_tiles<Element>(problem, problem.v, task, dim, b.values_t);
  pack_rows(at<const Element>(problem.k, task.kv_begin, task.kv_head), problem.k.row, task.kv_count, problem.head_dim,
            1.0f, b.keys, dim, dim);
  for (int64_t i = 0; i < task.kv_count * dim; i += lanes) {
    store(b.d_keys + i, zero());
    store(b.d_values + i, zero());
  }
  for (int h = 0; h < group; ++h) {
    const int64_t head = int64_t{task.kv_head} * group + h;
    pack_head<Element>(problem, task, head, b);
    for (int64_t key = 0; key < task.kv_count; key += tile_keys) {
      const int64_t start = first_query(problem, task, key);
      for (int64_t first = start - start % tile_queries; first < task.q_count; first += tile_queries)
        backward_tile(problem, task, b, first,
                      task.q_count - first < tile_queries ? task.q_count - first : tile_queries, key);
    }
    unpack_rows(b.d_queries, dim, task.q_count, problem.head_dim, problem.scale,
                at<Element>(problem.d_q, task.q_begin, head), problem.d_q.row);
  }
  // The packed queries are multiplied by scale * log2 e, but d_k has only the factor scale.
  unpack_rows(b.d_keys, dim, task.kv_count, problem.head_dim, log_2,
              at<Element>(problem.d_k, task.kv_begin, task.kv_head), problem.d_k.row);
  unpack_rows(b.d_values, dim, task.kv_count, problem.head_dim, 1.0f,
              at<Element>(problem.d_v, task.kv_begin, task.kv_head), problem.d_v.row);
}

} // namespace

int64_t backward_scratch(const AttentionProblem& problem) {
  Scratch scratch(nullptr);
  (void)take(scratch, problem);
  const int64_t few_queries = few_queries_scratch(problem, true);
  return scratch.used() > few_queries ? scratch.used() : few_queries;
}

void backward(const AttentionProblem& problem, const AttentionTask& task, float* scratch) {
  if (has_few_queries(problem, task))
    few_queries_backward(problem, task, scratch);
  else if (problem.is_bfloat16)
    backward_task<Bfloat>(problem, task, scratch);
  else
    backward_task<float>(problem, task, scratch);
}

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels kernels{&forward_scratch, &backward_scratch, &forward, &backward};
  return kernels;
}

} // namespace fvlm::plugins::FVLM_LEVEL
