// attention_tiles.h: tile sizes, scratch, causal masks and softmax, shared by forward and backward.
#pragma once

#include "attention_kernels.h"
#include "common/microkernel.h"
#include "common/transpose.h"
#include "common/vector_math.h"

namespace fvlm::plugins::FVLM_LEVEL {

// Keys and query rows per tile. A tile of k^T, one of v and a strip of everything else fit into the L1 cache.
constexpr int64_t tile_keys = 64;
constexpr int64_t tile_queries = 48; // a multiple of tile_rows

// With at most this many query rows per key head, packing keys and values would cost more than reading them in
// place.
constexpr int64_t max_few_rows = 6;

constexpr float no_maximum = -1e30f;
constexpr float log2_e = 1.44269504088896341f, log_2 = 0.693147180559945309f;

// A bump allocator for the scratch area of a worker; without memory it only counts.
class Scratch {
 public:
  explicit Scratch(float* base) : base_(base) {}
  float* take(int64_t floats) {
    float* piece = base_ ? base_ + used_ : nullptr;
    used_ += round_up(floats, 16);
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

inline int64_t padded_dim(const AttentionProblem& problem) {
  return round_up(problem.head_dim, lanes);
}

template <class Element>
FVLM_INLINE Element* at(const HeadRows& rows, int64_t row, int64_t head) {
  return static_cast<Element*>(rows.data) + row * rows.row + head * rows.head;
}

// Calls body(first, count, element) for each run of keys that are adjacent in memory, from key `begin` to `end` of the
// task's: their number in the task, how many they are, and the first one's first element.
template <class Element, class Body>
FVLM_INLINE void each_run(const AttentionProblem& problem, const AttentionTask& task, const HeadRows& keys,
                          int64_t begin, int64_t end, const Body& body) {
  if (!task.pages) {
    body(begin, end - begin, at<const Element>(keys, task.kv_begin + begin, task.kv_head));
    return;
  }
  for (int64_t page = begin / problem.page_rows; begin < end; ++page) {
    const int64_t row = begin - page * problem.page_rows, left = problem.page_rows - row;
    const int64_t count = left < end - begin ? left : end - begin;
    body(begin, count, at<const Element>(keys, row, task.kv_head) + task.pages[page] * keys.page);
    begin += count;
  }
}

// Number of keys that the query at this position of its segment attends to.
FVLM_INLINE int64_t visible_keys(const AttentionProblem& problem, const AttentionTask& task, int64_t position) {
  if (!problem.causal) return task.kv_count;
  const int64_t keys = position + 1 + task.kv_count - task.q_total;
  return keys < 0 ? 0 : keys < task.kv_count ? keys : task.kv_count;
}

// Position of the first query of the segment that attends to `key`; the inverse of visible_keys.
FVLM_INLINE int64_t first_query(const AttentionProblem& problem, const AttentionTask& task, int64_t key) {
  if (!problem.causal) return 0;
  const int64_t position = key - (task.kv_count - task.q_total);
  return position < 0 ? 0 : position;
}

// Packs the keys of one head as transposed tiles: tile t is [dim][tile_keys] at t * dim * tile_keys, padded with 0.
// A page begins at a whole vector of keys.
template <class Element>
inline void pack_key_tiles(const AttentionProblem& problem, const HeadRows& keys, const AttentionTask& task,
                           int64_t dim, float* to) {
  for (int64_t key = 0; key < task.kv_count; key += tile_keys) {
    const int64_t count = task.kv_count - key < tile_keys ? task.kv_count - key : tile_keys;
    each_run<Element>(problem, task, keys, key, key + count, [&](int64_t first, int64_t rows, const Element* from) {
      pack_transposed(from, keys.row, rows, problem.head_dim, to + (first - key), tile_keys, dim);
    });
    for (int64_t pad = round_up(count, lanes); pad < tile_keys; pad += lanes)
      for (int64_t d = 0; d < dim; ++d) store(to + d * tile_keys + pad, zero());
    to += dim * tile_keys;
  }
}

// x where its position is before `limit`, else -infinity. `position` is the position of the first lane.
FVLM_INLINE Vector mask_after(Vector x, int64_t position, int64_t limit) {
  const Integers places = iota() + static_cast<int32_t>(position);
  return places < static_cast<int32_t>(limit) ? x : splat(-__builtin_inff());
}

// One step of the online softmax: replaces a row of scores by exponentials, updates the running maximum and sum, and
// returns the factor that rescales older sums. `limit` of the tile's `width` keys are visible; the others become 0.
FVLM_INLINE float online_softmax(float* scores, int64_t width, int64_t limit, float& running_maximum,
                                 float& running_sum) {
  Vector largest_lanes = splat(no_maximum);
  if (limit < width) {
    for (int64_t j = 0; j < width; j += lanes) {
      const Vector s = mask_after(load(scores + j), j, limit);
      store(scores + j, s);
      largest_lanes = maximum(largest_lanes, s);
    }
  } else {
    for (int64_t j = 0; j < width; j += lanes) largest_lanes = maximum(largest_lanes, load(scores + j));
  }
  const float tile_maximum = largest(largest_lanes);
  const float old = running_maximum;
  const float updated = tile_maximum > old ? tile_maximum : old;
  const Vector shift = splat(updated);
  Vector sums = zero();
  for (int64_t j = 0; j < width; j += lanes) {
    const Vector p = exp2(load(scores + j) - shift);
    store(scores + j, p);
    sums += p;
  }
  const float factor = updated == old ? 1.0f : exp2(splat(old - updated))[0];
  running_maximum = updated;
  running_sum = running_sum * factor + sum(sums);
  return factor;
}

// The backward of softmax: scores -> p = 2^(scores - log_sum_exp), d_p -> d_s = p (d_p - delta). Keys at and after
// `limit` are 0 in both.
FVLM_INLINE void softmax_backward(float* p, float* d_s, int64_t width, int64_t limit, float log_sum_exp, float delta) {
  const Vector shift = splat(log_sum_exp), d = splat(delta);
  for (int64_t j = 0; j < width; j += lanes) {
    Vector s = load(p + j);
    if (limit < j + lanes) s = mask_after(s, j, limit);
    const Vector e = exp2(s - shift);
    store(p + j, e);
    store(d_s + j, e * (load(d_s + j) - d));
  }
}

// See attention_few_queries.cpp.
int64_t few_queries_scratch(const AttentionProblem& problem, bool backward);
void few_queries_forward(const AttentionProblem& problem, const AttentionTask& task, float* scratch);
void few_queries_backward(const AttentionProblem& problem, const AttentionTask& task, float* scratch);

int64_t forward_scratch(const AttentionProblem& problem);
void forward(const AttentionProblem& problem, const AttentionTask& task, float* scratch);
int64_t backward_scratch(const AttentionProblem& problem);
void backward(const AttentionProblem& problem, const AttentionTask& task, float* scratch);

FVLM_INLINE bool has_few_queries(const AttentionProblem& problem, const AttentionTask& task) {
  return task.q_count * (problem.heads_q / problem.heads_kv) <= max_few_rows;
}

} // namespace fvlm::plugins::FVLM_LEVEL
