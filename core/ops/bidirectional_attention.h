// Causal attention in which blocks of successive rows attend to each other in both directions, such as those of an
// image.
//
// It is two problems of the kind attention, of which both are causal and each has a part of the keys: what is at or
// before a row, and what is behind it in its block. The latter is causal where the rows of a block are in reverse: a
// row then attends to those before it in that order, its own not among them, so that the last key in that order, which
// nobody attends to, is left out, and the mask's alignment to the last key hides the row itself. What both come to is
// merged by log-sum-exp.
#pragma once
#include "ops/merged_outputs.h"

#include <functional>

namespace fvlm::ops {

struct BidirectionalBlocks {
  at::Tensor rows;         // int64 [block rows]: those of each block in reverse; the last is padding
  at::Tensor keys;         // int64 [block rows]: the same without the first row of each block
  at::Tensor cu_seqlens_q; // int32 [blocks + 1]: of `rows`
  at::Tensor cu_seqlens_kv;
  // int64 [all rows]: the place of each in `rows` and in `keys`, or that of padding.
  at::Tensor place, key_place;
  int64_t max_length = 0; // upper bound of a block's rows

  bool defined() const { return rows.defined(); }
};

class BidirectionalAttention {
 public:
  using Query = Attention::Query;
  // `query`: causal, without rotary embedding. `prepared` gives the operation for a problem, which it keeps.
  BidirectionalAttention(const Query& query, BidirectionalBlocks blocks,
                         const std::function<const Attention&(const Query&)>& prepared);
  // Whether plugins compute both parts.
  bool has_plugins() const;

  MergedOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Packing& packing,
                       const at::Tensor& into = {}) const;
  // Overwrites `into`.
  void backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Packing& packing,
                const MergedOutput& output, const at::Tensor& d_out, const Attention::Gradients& into) const;

 private:
  Packing block_packing() const { return {blocks_.cu_seqlens_q, blocks_.cu_seqlens_kv, {}, {}}; }
  at::Tensor queries_of(const at::Tensor& all) const { return all.index_select(0, blocks_.rows); }
  at::Tensor keys_of(const at::Tensor& all) const { return all.index_select(0, blocks_.keys); }

  BidirectionalBlocks blocks_;
  const Attention *behind_, *ahead_;
};

} // namespace fvlm::ops
