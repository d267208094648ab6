// attention_few_queries.cpp: segments with a few query rows and many keys, such as a visual query on the patches of a
// frame, or a decoding step. Nothing is packed: keys and values are read once, in place.
#include "attention_tiles.h"

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

struct Buffers {
  float *queries, *d_out;   // [max_few_rows][dim]; queries times scale * log2 e
  float *d_queries, *delta; // [max_few_rows][dim], [max_few_rows]
  float *p, *d_s;           // [max_few_rows][keys]
  int64_t dim, keys;
};

Buffers take(Scratch& scratch, const AttentionProblem& problem, bool backward) {
  Buffers b{};
  b.dim = padded_dim(problem);
  b.keys = round_up(problem.max_seqlen_kv, tile_keys);
  b.queries = scratch.take(max_few_rows * b.dim);
  b.p = scratch.take(max_few_rows * b.keys);
  b.delta = scratch.take(max_few_rows);
  if (!backward) return b;
  b.d_out = scratch.take(max_few_rows * b.dim);
  b.d_queries = scratch.take(max_few_rows * b.dim);
  b.d_s = scratch.take(max_few_rows * b.keys);
  return b;
}

// Row r of a task is query row r % q_count of query head r / q_count.
struct Row {
  int64_t token, head, position;
};

FVLM_INLINE Row row_of(const AttentionProblem& problem, const AttentionTask& task, int64_t r) {
  const int64_t group = problem.heads_q / problem.heads_kv;
  return {task.q_begin + r % task.q_count, task.kv_head * group + r / task.q_count, task.q_offset + r % task.q_count};
}

template <class Element>
FVLM_INLINE Vector load_at(const Element* row, int64_t d, int64_t head_dim) {
  return d + lanes <= head_dim ? load(row + d) : load_part(row + d, head_dim - d);
}

template <class Element>
FVLM_INLINE void store_at(Element* row, int64_t d, int64_t head_dim, Vector v) {
  d + lanes <= head_dim ? store(row + d, v) : store_part(row + d, v, head_dim - d);
}

// The products of a key and all rows, by lanes.
template <int Rows, class Element>
FVLM_INLINE void products_of_key(const Element* key, int64_t head_dim, const float* rows, int64_t dim,
                                 Vector (&products)[Rows]) {
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) products[r] = zero();
  for (int64_t d = 0; d < dim; d += lanes) {
    const Vector elements = load_at(key, d, head_dim);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) products[r] = fma(elements, load(rows + r * dim + d), products[r]);
  }
}

// to[r][j] = dot(rows[r], keys[j]). The lanes of as many keys as a vector has are added at once.
template <int Rows, class Element>
void dot_products(const AttentionProblem& problem, const HeadRows& keys, const AttentionTask& task, const float* rows,
                  const Buffers& b, float* to) {
  each_run<Element>(problem, task, keys, 0, task.kv_count, [&](int64_t first, int64_t count, const Element* key) {
    int64_t j = first;
    Vector products[Rows];
    for (const int64_t end = first + count; j + lanes <= end; j += lanes) {
      Vector all[Rows][lanes];
      for (int i = 0; i < lanes; ++i, key += keys.row) {
        products_of_key(key, problem.head_dim, rows, b.dim, products);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) all[r][i] = products[r];
      }
      for (int r = 0; r < Rows; ++r) store(to + r * b.keys + j, sums_of(all[r]));
    }
    for (; j < first + count; ++j, key += keys.row) {
      products_of_key(key, problem.head_dim, rows, b.dim, products);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) to[r * b.keys + j] = sum(products[r]);
    }
  });
}

template <class Element>
void dot_products(const AttentionProblem& problem, const HeadRows& keys, const AttentionTask& task, const float* rows,
                  int64_t row_count, const Buffers& b, float* to) {
  using Function =
      void (*)(const AttentionProblem&, const HeadRows&, const AttentionTask&, const float*, const Buffers&, float*);
  static constexpr Function of_rows[max_few_rows] = {dot_products<1, Element>, dot_products<2, Element>,
                                                     dot_products<3, Element>, dot_products<4, Element>,
                                                     dot_products<5, Element>, dot_products<6, Element>};
  if (row_count > 0) of_rows[row_count - 1](problem, keys, task, rows, b, to);
}

// to[d] = factor * sum over j of weights[j] values[j][d]
template <int Vectors, class Element, class To>
FVLM_INLINE void weighted_sum_of_columns(const AttentionProblem& problem, const HeadRows& values,
                                         const AttentionTask& task, int64_t d, const float* weights, float factor,
                                         To* to) {
  Vector sums[Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) sums[v] = zero();
  each_run<Element>(problem, task, values, 0, task.kv_count, [&](int64_t first, int64_t count, const Element* value) {
    for (int64_t j = first; j < first + count; ++j, value += values.row) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v)
        sums[v] = fma(splat(weights[j]), load_at(value, d + v * lanes, problem.head_dim), sums[v]);
    }
  });
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) store_at(to, d + v * lanes, problem.head_dim, sums[v] * factor);
}

template <class Element, class To>
void weighted_sum(const AttentionProblem& problem, const HeadRows& values, const AttentionTask& task,
                  const float* weights, float factor, To* to) {
  int64_t d = 0;
  for (; problem.head_dim - d > 3 * lanes; d += 4 * lanes)
    weighted_sum_of_columns<4, Element>(problem, values, task, d, weights, factor, to);
  for (; d < problem.head_dim; d += lanes)
    weighted_sum_of_columns<1, Element>(problem, values, task, d, weights, factor, to);
}

template <class Element>
void forward_rows(const AttentionProblem& problem, const AttentionTask& task, float* memory) {
  Scratch scratch(memory);
  const Buffers b = take(scratch, problem, false);
  const int64_t rows = task.q_count * (problem.heads_q / problem.heads_kv), width = round_up(task.kv_count, lanes);
  for (int64_t r = 0; r < rows; ++r) {
    const Row row = row_of(problem, task, r);
    pack_rows(at<const Element>(problem.q, row.token, row.head), problem.q.row, 1, problem.head_dim,
              problem.scale * log2_e, b.queries + r * b.dim, b.dim, b.dim);
  }
  dot_products<Element>(problem, problem.k, task, b.queries, rows, b, b.p);
  for (int64_t r = 0; r < rows; ++r) {
    const Row row = row_of(problem, task, r);
    float largest_score = no_maximum, total = 0;
    float* p = b.p + r * b.keys;
    (void)online_softmax(p, width, visible_keys(problem, task, row.position), largest_score, total);
    weighted_sum<Element>(problem, problem.v, task, p, total == 0.0f ? 0.0f : 1.0f / total,
                          at<Element>(problem.out, row.token, row.head));
    if (problem.log_sum_exp)
      problem.log_sum_exp[row.token * problem.heads_q + row.head] =
          total == 0.0f ? __builtin_inff() : largest_score + __builtin_log2f(total);
  }
}

// d_keys[j] = factor * sum over r of weights[r][j] rows[r]
template <class Element>
void outer_products(const HeadRows& d_keys, const AttentionTask& task, int64_t head_dim, const Buffers& b,
                    const float* weights, const float* rows, int64_t row_count, float factor) {
  for (int64_t j = 0; j < task.kv_count; ++j) {
    Element* d_key = at<Element>(d_keys, task.kv_begin + j, task.kv_head);
    for (int64_t d = 0; d < head_dim; d += lanes) {
      Vector sums = zero();
      for (int64_t r = 0; r < row_count; ++r)
        sums = fma(splat(weights[r * b.keys + j]), load(rows + r * b.dim + d), sums);
      store_at(d_key, d, head_dim, sums * factor);
    }
  }
}

template <class Element>
void backward_rows(const AttentionProblem& problem, const AttentionTask& task, float* memory) {
  Scratch scratch(memory);
  const Buffers b = take(scratch, problem, true);
  const int64_t rows = task.q_count * (problem.heads_q / problem.heads_kv), width = round_up(task.kv_count, lanes);
  for (int64_t r = 0; r < rows; ++r) {
    const Row row = row_of(problem, task, r);
    float* d_out = b.d_out + r * b.dim;
    pack_rows(at<const Element>(problem.q, row.token, row.head), problem.q.row, 1, problem.head_dim,
              problem.scale * log2_e, b.queries + r * b.dim, b.dim, b.dim);
    pack_rows(at<const Element>(problem.d_out, row.token, row.head), problem.d_out.row, 1, problem.head_dim, 1.0f,
              d_out, b.dim, b.dim);
    const Element* out = at<const Element>(problem.out, row.token, row.head);
    Vector products = zero();
    for (int64_t d = 0; d < problem.head_dim; d += lanes)
      products = fma(load_at(out, d, problem.head_dim), load(d_out + d), products);
    b.delta[r] = sum(products);
  }
  dot_products<Element>(problem, problem.k, task, b.queries, rows, b, b.p);
  dot_products<Element>(problem, problem.v, task, b.d_out, rows, b, b.d_s);
  for (int64_t r = 0; r < rows; ++r) {
    const Row row = row_of(problem, task, r);
    softmax_backward(b.p + r * b.keys, b.d_s + r * b.keys, width, visible_keys(problem, task, row.position),
                     problem.log_sum_exp[row.token * problem.heads_q + row.head], b.delta[r]);
    weighted_sum<Element>(problem, problem.k, task, b.d_s + r * b.keys, problem.scale,
                          at<Element>(problem.d_q, row.token, row.head));
  }
  // The packed queries are multiplied by scale * log2 e, but d_k has only the factor scale.
  outer_products<Element>(problem.d_k, task, problem.head_dim, b, b.d_s, b.queries, rows, log_2);
  outer_products<Element>(problem.d_v, task, problem.head_dim, b, b.p, b.d_out, rows, 1.0f);
}

} // namespace

int64_t few_queries_scratch(const AttentionProblem& problem, bool backward) {
  Scratch scratch(nullptr);
  (void)take(scratch, problem, backward);
  return scratch.used();
}

void few_queries_forward(const AttentionProblem& problem, const AttentionTask& task, float* scratch) {
  problem.is_bfloat16 ? forward_rows<Bfloat>(problem, task, scratch) : forward_rows<float>(problem, task, scratch);
}

void few_queries_backward(const AttentionProblem& problem, const AttentionTask& task, float* scratch) {
  problem.is_bfloat16 ? backward_rows<Bfloat>(problem, task, scratch) : backward_rows<float>(problem, task, scratch);
}

} // namespace fvlm::plugins::FVLM_LEVEL
