#include "ops/ring_attention.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>

namespace fvlm::ops {
namespace {

// Keys and values of one rank as they are sent.
at::Tensor together(const at::Tensor& k, const at::Tensor& v) {
  return at::concat({k, v}, 1).contiguous();
}

} // namespace

at::Tensor RingBounds::of(const at::Tensor& cu_seqlens, int64_t rows, int64_t ranks) {
  const int64_t chunk = rows / (2 * ranks);
  const auto within = [&](int64_t index) {
    return cu_seqlens.clamp(index * chunk, (index + 1) * chunk).sub_(index * chunk);
  };
  std::vector<at::Tensor> of_ranks;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const at::Tensor first = within(rank), second = within(2 * ranks - 1 - rank);
    of_ranks.push_back(at::stack({first, second, first + second}));
  }
  return at::stack(of_ranks);
}

at::Tensor RingBounds::own(const at::Tensor& all, const ContextGroup& context) {
  const int64_t chunk = all.size(0) / (2 * context.ranks), last = 2 * context.ranks - 1;
  return at::concat({all.narrow(0, context.rank * chunk, chunk), all.narrow(0, (last - context.rank) * chunk, chunk)});
}

RingAttention::RingAttention(const ContextGroup& context, const Query& query, at::Tensor bounds,
                             const std::function<const Attention&(const Query&)>& prepared)
    : context_(context), bounds_(std::move(bounds)), causal_(query.causal != 0), rows_(query.tokens_q) {
  const auto longest = [](int32_t of_sequence, int64_t rows) {
    return static_cast<int32_t>(std::min<int64_t>(of_sequence, rows));
  };
  Query own = query;
  own.partial = own.needs_backward = 1;
  own.even = own.guests = own.queries_alone = own.rotary_dim = 0;
  own.max_seqlen_q = own.max_seqlen_kv = longest(query.max_seqlen_q, rows_);
  own_ = &prepared(own);
  if (!causal_) {
    earlier_ = later_ = own_;
    return;
  }
  Query earlier = own, later = own;
  earlier.causal = later.causal = 0;
  earlier.tokens_kv = later.tokens_q = rows_ / 2;
  earlier.max_seqlen_kv = later.max_seqlen_q = longest(query.max_seqlen_q, rows_ / 2);
  if (context_.rank > 0) earlier_ = &prepared(earlier);
  if (context_.rank + 1 < context_.ranks) later_ = &prepared(later);
}

RingAttention::Part RingAttention::part_of(int64_t step) const {
  const int64_t from = (context_.rank - step + context_.ranks) % context_.ranks;
  const auto bounds = [&](int64_t rank, RingBounds::Rows rows) { return bounds_[rank][rows]; };
  if (causal_ && from < context_.rank)
    return {earlier_,
            0,
            rows_ / 2,
            {bounds(context_.rank, RingBounds::both_chunks), bounds(from, RingBounds::first_chunk), {}, {}}};
  if (causal_ && from > context_.rank)
    return {later_,
            rows_ / 2,
            rows_,
            {bounds(context_.rank, RingBounds::second_chunk), bounds(from, RingBounds::both_chunks), {}, {}}};
  return {
      own_, 0, rows_, {bounds(context_.rank, RingBounds::both_chunks), bounds(from, RingBounds::both_chunks), {}, {}}};
}

dist::PendingPointer RingAttention::pass_on(const at::Tensor& sent, const at::Tensor& received) const {
  return context_.group->send_receive(sent, (context_.rank + 1) % context_.ranks, received,
                                      (context_.rank + context_.ranks - 1) % context_.ranks);
}

MergedOutput RingAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const at::Tensor& into) const {
  const int64_t heads = k.size(1);
  at::Tensor kv = together(k, v);
  std::optional<MergedOutputs> merge;
  for (int64_t step = 0; step < context_.ranks; ++step) {
    at::Tensor next;
    dist::PendingPointer coming;
    if (step + 1 < context_.ranks) coming = pass_on(kv, next = at::empty_like(kv));
    const Part part = part_of(step);
    const at::Tensor keys = kv.narrow(0, 0, part.keys);
    const auto output = part.op->forward(q.narrow(0, part.first_query, rows_ - part.first_query),
                                         keys.narrow(1, 0, heads), keys.narrow(1, heads, heads), part.packing);
    if (merge)
      merge->add(output, part.first_query);
    else
      merge.emplace(output);
    if (!coming) break;
    coming->wait();
    kv = std::move(next);
  }
  return merge->finish(q, into);
}

void RingAttention::backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MergedOutput& output,
                             const at::Tensor& d_out, const Attention::Gradients& into) const {
  const int64_t heads = k.size(1);
  at::Tensor kv = together(k, v);
  const at::Tensor d_q = at::zeros_like(q, q.options().dtype(type_of_sums(q)), at::MemoryFormat::Contiguous);
  // Of the keys and values that are here; what previous ranks added to it arrives while this one computes its part.
  at::Tensor d_kv = at::zeros_like(kv, kv.options().dtype(type_of_sums(kv))), arriving;
  dist::PendingPointer d_coming;
  for (int64_t step = 0; step < context_.ranks; ++step) {
    at::Tensor next;
    dist::PendingPointer coming;
    if (step + 1 < context_.ranks) coming = pass_on(kv, next = at::empty_like(kv));
    const Part part = part_of(step);
    const int64_t queries = rows_ - part.first_query;
    const auto of_queries = [&](const at::Tensor& all) { return all.narrow(0, part.first_query, queries); };
    const at::Tensor keys = kv.narrow(0, 0, part.keys);
    const auto d =
        part.op->backward(of_queries(q), keys.narrow(1, 0, heads), keys.narrow(1, heads, heads), part.packing,
                          {of_queries(output.out), {of_queries(output.log_sum_exp)}}, of_queries(d_out));
    of_queries(d_q).add_(d.q);
    if (d_coming) {
      d_coming->wait();
      d_kv = std::move(arriving);
    }
    const at::Tensor d_keys = d_kv.narrow(0, 0, part.keys);
    d_keys.narrow(1, 0, heads).add_(d.k);
    d_keys.narrow(1, heads, heads).add_(d.v);
    d_coming = pass_on(d_kv, arriving = at::empty_like(d_kv));
    if (!coming) break;
    coming->wait();
    kv = std::move(next);
  }
  d_coming->wait();
  into.q.copy_(d_q);
  into.k.copy_(arriving.narrow(1, 0, heads));
  into.v.copy_(arriving.narrow(1, heads, heads));
}

} // namespace fvlm::ops
