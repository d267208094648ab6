// Ring attention: attention within sequences whose rows are divided among the ranks of a context group. Every rank
// keeps its queries, while keys and values go from rank to rank; what a rank computes of each part of the keys is
// merged by log-sum-exp. In backward the gradients of keys and values go round with them, until they are home.
//
// The rows of a pack are cut into 2 N chunks of equal length, whatever the sequences in it; rank r has chunk r and,
// behind it, chunk 2 N - 1 - r (zigzag), so that all ranks have equally much to do under a causal mask. Each part of it
// is then a whole problem of the kind attention: of a rank's own rows a causal one; of an earlier rank's rows the first
// chunk, which all queries attend to in full; of a later rank's rows both, which the second chunk's queries attend to
// in full. A sequence that is cut has a segment in each of them, and without a query or key there it has an empty one.
#pragma once
#include "dist/ranks.h"
#include "ops/merged_outputs.h"

#include <algorithm>
#include <functional>

namespace fvlm::ops {

// The ranks that share a pack's sequences.
struct ContextGroup {
  dist::Group* group = nullptr; // null: this process has them alone
  int64_t rank = 0, ranks = 1;
  static ContextGroup of(const dist::Ranks& ranks) {
    return {ranks.context_group(), ranks.context_rank(), ranks.context_count()};
  }
  bool are_several() const { return ranks > 1; }
  bool is_capturable() const { return !group || group->is_capturable(); }
};

// The bounds of the segments in the rows of every rank: int32 [ranks, 3, segments + 1].
struct RingBounds {
  enum Rows { first_chunk, second_chunk, both_chunks };
  // `cu_seqlens` int32 [segments + 1] of all rows, whose number is a multiple of 2 * ranks. In host memory.
  static at::Tensor of(const at::Tensor& cu_seqlens, int64_t rows, int64_t ranks);
  // Which rank has a row, and the rows of a rank, of a tensor with all rows.
  static int64_t rank_of(int64_t row, int64_t rows, int64_t ranks) {
    const int64_t chunk = row * 2 * ranks / rows;
    return std::min(chunk, 2 * ranks - 1 - chunk);
  }
  static at::Tensor own(const at::Tensor& all, const ContextGroup& context);
};

class RingAttention {
 public:
  using Query = Attention::Query;
  // `query`: of the rank's own rows, without rotary embedding. `prepared` gives the operation for a problem, which it
  // keeps. Bounds: see above.
  RingAttention(const ContextGroup& context, const Query& query, at::Tensor bounds,
                const std::function<const Attention&(const Query&)>& prepared);

  // All ranks call both of them at the same time, in the same order. q [rows, heads_q, head_dim]; k, v.
  MergedOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor& into = {}) const;
  // Overwrites `into`.
  void backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MergedOutput& output,
                const at::Tensor& d_out, const Attention::Gradients& into) const;

 private:
  // What this rank computes with the keys of one rank: its queries from `first_query` on, and the first `keys` keys.
  struct Part {
    const Attention* op;
    int64_t first_query, keys;
    Packing packing;
  };
  Part part_of(int64_t step) const;
  // Sends to the next rank, and receives of the previous one what it has in place of that.
  dist::PendingPointer pass_on(const at::Tensor& sent, const at::Tensor& received) const;

  ContextGroup context_;
  at::Tensor bounds_;
  bool causal_;
  int64_t rows_;
  const Attention *own_, *earlier_ = nullptr, *later_ = nullptr; // by whose keys
};

} // namespace fvlm::ops
