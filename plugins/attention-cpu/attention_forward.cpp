// attention_forward.cpp: softmax(q k^T) v by tiles of keys, with an online softmax.
#include "attention_tiles.h"

namespace fvlm::plugins::FVLM_LEVEL {

namespace {

struct Buffers {
  float* keys;          // tiles of [dim][tile_keys]
  float* values;        // [keys][dim]
  float* queries;       // [tile_queries][dim], times scale * log2 e
  float* scores;        // [tile_rows][tile_keys]
  float* out;           // [tile_queries][dim], not yet divided by sum
  float *maximum, *sum; // [tile_queries]
};

Buffers take(Scratch& scratch, const AttentionProblem& problem) {
  const int64_t dim = padded_dim(problem), keys = round_up(problem.max_seqlen_kv, tile_keys);
  Buffers b{};
  b.keys = scratch.take(keys * dim);
  b.values = scratch.take(keys * dim);
  b.queries = scratch.take(tile_queries * dim);
  b.scores = scratch.take(tile_rows * tile_keys);
  b.out = scratch.take(tile_queries * dim);
  b.maximum = scratch.take(tile_queries);
  b.sum = scratch.take(tile_queries);
  return b;
}

template <class Element>
void forward_block(const AttentionProblem& problem, const AttentionTask& task, int64_t head, int64_t first,
                   int64_t count, const Buffers& b) {
  const int64_t dim = padded_dim(problem), dim_vectors = dim / lanes;
  pack_rows(at<const Element>(problem.q, task.q_begin + first, head), problem.q.row, count, problem.head_dim,
            problem.scale * log2_e, b.queries, dim, dim);
  for (int64_t r = 0; r < count; ++r) {
    b.maximum[r] = no_maximum;
    b.sum[r] = 0;
  }
  const int64_t position = task.q_offset + first;
  const int64_t block_keys = visible_keys(problem, task, position + count - 1);
  if (block_keys == 0)
    for (int64_t i = 0; i < count * dim; i += lanes) store(b.out + i, zero());
  for (int64_t key = 0; key < block_keys; key += tile_keys) {
    const float* key_tile = b.keys + key * dim;
    for (int64_t r = 0; r < count; r += tile_rows) {
      const int64_t rows = count - r < tile_rows ? count - r : tile_rows;
      const int64_t visible = visible_keys(problem, task, position + r + rows - 1) - key;
      float* out = b.out + r * dim;
      if (visible <= 0) {
        if (key == 0)
          for (int64_t i = 0; i < rows * dim; i += lanes) store(out + i, zero());
        continue;
      }
      const int64_t width = visible < tile_keys ? round_up(visible, lanes) : tile_keys;
      multiply<false>({dim, b.queries + r * dim, dim, 1, key_tile, tile_keys, b.scores, tile_keys}, rows,
                      width / lanes);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t limit = visible_keys(problem, task, position + r + i) - key;
        const float factor = online_softmax(b.scores + i * tile_keys, width, limit, b.maximum[r + i], b.sum[r + i]);
        if (key > 0 && factor != 1.0f)
          for (int64_t d = 0; d < dim; d += lanes) store(out + i * dim + d, load(out + i * dim + d) * factor);
      }
      const Product weighted{
          visible < tile_keys ? visible : tile_keys, b.scores, tile_keys, 1, b.values + key * dim, dim, out, dim};
      if (key == 0)
        multiply<false>(weighted, rows, dim_vectors);
      else
        multiply<true>(weighted, rows, dim_vectors);
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    const float total = b.sum[r];
    const int64_t row = task.q_begin + first + r;
    unpack_rows(b.out + r * dim, dim, 1, problem.head_dim, total == 0.0f ? 0.0f : 1.0f / total,
                at<Element>(problem.out, row, head), problem.out.row);
    if (problem.log_sum_exp)
      problem.log_sum_exp[row * problem.heads_q + head] =
          total == 0.0f ? __builtin_inff() : b.maximum[r] + __builtin_log2f(total);
  }
}

template <class Element>
void forward_task(const AttentionProblem& problem, const AttentionTask& task, float* memory) {
  Scratch scratch(memory);
  const Buffers b = take(scratch, problem);
  const int64_t dim = padded_dim(problem);
  const int group = problem.heads_q / problem.heads_kv;
  pack_key_tiles<Element>(problem, problem.k, task, dim, b.keys);
  each_run<Element>(problem, task, problem.v, 0, task.kv_count, [&](int64_t first, int64_t rows, const Element* from) {
    pack_rows(from, problem.v.row, rows, problem.head_dim, 1.0f, b.values + first * dim, dim, dim);
  });
  for (int h = 0; h < group; ++h)
    for (int64_t first = 0; first < task.q_count; first += tile_queries)
      forward_block<Element>(problem, task, int64_t{task.kv_head} * group + h, first,
                             task.q_count - first < tile_queries ? task.q_count - first : tile_queries, b);
}

} // namespace

int64_t forward_scratch(const AttentionProblem& problem) {
  Scratch scratch(nullptr);
  (void)take(scratch, problem);
  const int64_t few_queries = few_queries_scratch(problem, false);
  return scratch.used() > few_queries ? scratch.used() : few_queries;
}

void forward(const AttentionProblem& problem, const AttentionTask& task, float* scratch) {
  if (task.q_count == 0) return;
  if (has_few_queries(problem, task))
    few_queries_forward(problem, task, scratch);
  else if (problem.is_bfloat16)
    forward_task<Bfloat>(problem, task, scratch);
  else
    forward_task<float>(problem, task, scratch);
}

} // namespace fvlm::plugins::FVLM_LEVEL
