#include "ops/bidirectional_attention.h"

#include <utility>

namespace fvlm::ops {

BidirectionalAttention::BidirectionalAttention(const Query& query, BidirectionalBlocks blocks,
                                               const std::function<const Attention&(const Query&)>& prepared)
    : blocks_(std::move(blocks)) {
  Query behind = query;
  behind.partial = behind.needs_backward = 1;
  behind.even = behind.guests = behind.queries_alone = behind.rotary_dim = 0;
  Query ahead = behind;
  ahead.window = 0; // it hides what is before a row alone
  ahead.tokens_q = ahead.tokens_kv = blocks_.rows.size(0);
  ahead.segments = blocks_.cu_seqlens_q.size(0) - 1;
  ahead.max_seqlen_q = ahead.max_seqlen_kv = static_cast<int32_t>(blocks_.max_length);
  behind_ = &prepared(behind);
  ahead_ = &prepared(ahead);
}

bool BidirectionalAttention::has_plugins() const {
  return !behind_->backend().instance().computes_with_aten() && !ahead_->backend().instance().computes_with_aten();
}

MergedOutput BidirectionalAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const Packing& packing, const at::Tensor& into) const {
  MergedOutputs merged(behind_->forward(q, k, v, packing));
  const auto of_blocks = ahead_->forward(queries_of(q), keys_of(k), keys_of(v), block_packing());
  const auto of_all = [this](const at::Tensor& x) { return x.index_select(0, blocks_.place); };
  merged.add({of_all(of_blocks.out), {of_all(of_blocks.saved.front())}}, 0);
  return merged.finish(q, into);
}

void BidirectionalAttention::backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const Packing& packing, const MergedOutput& output, const at::Tensor& d_out,
                                      const Attention::Gradients& into) const {
  (void)behind_->backward(q, k, v, packing, {output.out, {output.log_sum_exp}}, d_out, into);
  const auto d = ahead_->backward(queries_of(q), keys_of(k), keys_of(v), block_packing(),
                                  {queries_of(output.out), {queries_of(output.log_sum_exp)}}, queries_of(d_out));
  into.q.add_(d.q.index_select(0, blocks_.place));
  into.k.add_(d.k.index_select(0, blocks_.key_place));
  into.v.add_(d.v.index_select(0, blocks_.key_place));
}

} // namespace fvlm::ops
