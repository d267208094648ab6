// Both methods of reference/attention.h. Suffixes name dimensions: T tokens, H query heads, K key heads, G query heads
// for each key head (H = K G), N = G L, L queries of a segment, M keys of a segment, D head_dim.
#include "ops/reference/attention.h"
#include "ops/reference/common.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace fvlm::ops::reference {
namespace {

using at::Tensor;
constexpr double minus_infinity = -std::numeric_limits<double>::infinity();
constexpr double log_2 = 0.69314718055994530942;

// [L, H, D] -> [K, G L, D]: groups the queries that share a key head.
Tensor grouped(const Tensor& x_LHD, int64_t key_heads) {
  const int64_t length = x_LHD.size(0), groups = x_LHD.size(1) / key_heads, dim = x_LHD.size(2);
  return x_LHD.view({length, key_heads, groups, dim}).permute({1, 2, 0, 3}).reshape({key_heads, -1, dim});
}

// [K, G L, D] -> [L, H, D]
Tensor ungrouped(const Tensor& x_KND, int64_t length) {
  const int64_t key_heads = x_KND.size(0), dim = x_KND.size(2);
  return x_KND.view({key_heads, -1, length, dim}).permute({2, 0, 1, 3}).reshape({length, -1, dim});
}

// The products of matrices, in an accumulation type.
Tensor products(const Tensor& a, const Tensor& b) {
  return a.element_size() < 4 ? at::bmm(a, b, at::kFloat) : at::bmm(a, b);
}

struct Mask {
  Tensor hidden_LM;       // bool: keys that a query does not attend to; undefined: none
  Tensor fully_masked_L1; // bool: queries without any key, whose softmax would be 0 / 0; undefined: none
};

Tensor by_group(const Tensor& x, const Mask& mask) {
  return x.view({x.size(0), -1, mask.hidden_LM.size(0), x.size(-1)});
}

// scale q k^T, where keys that are not visible are minus infinity. [K, G L, M]
Tensor visible_scores(const AttentionShape& shape, const Tensor& q_KND, const Tensor& k_MKD, const Mask& mask) {
  const Tensor scores = products(q_KND, k_MKD.permute({1, 2, 0})).mul_(shape.scale);
  if (shape.softcap > 0) scores.div_(shape.softcap).tanh_().mul_(shape.softcap);
  if (mask.hidden_LM.defined()) by_group(scores, mask).masked_fill_(mask.hidden_LM, minus_infinity);
  return scores;
}

// Their softmax, and 0 in fully masked rows.
Tensor probabilities(const Tensor& scores, const Mask& mask) {
  Tensor weights = at::softmax(scores, -1);
  if (mask.fully_masked_L1.defined()) by_group(weights, mask).masked_fill_(mask.fully_masked_L1, 0);
  return weights;
}

// Writes the logarithms to base 2 of rows with a visible key to `to`, [L, H].
void store_log_sum_exp(const Tensor& scores, const Mask& mask, const Tensor& to) {
  const int64_t length = to.size(0);
  const Tensor sums = ungrouped(at::logsumexp(scores, -1, true) / log_2, length).squeeze(2);
  to.copy_(mask.fully_masked_L1.defined() ? at::where(mask.fully_masked_L1, to, sums) : sums);
}

// [L, H] -> [K, G L, 1]
Tensor grouped_column(const Tensor& x_LH, int64_t key_heads) {
  return grouped(x_LH.unsqueeze(2), key_heads);
}

struct DenseGradients {
  Tensor d_q_KND, d_k_MKD, d_v_MKD;
};
// `merged`: its rows are those of the queries.
DenseGradients dense_gradients(const AttentionShape& shape, const Mask& mask, const Tensor& q_KND, const Tensor& k_MKD,
                               const Tensor& v_MKD, const Tensor& d_out_KND, const MergedAttention& merged) {
  const Tensor scores = visible_scores(shape, q_KND, k_MKD, mask),
               d_weights = products(d_out_KND, v_MKD.permute({1, 2, 0}));
  Tensor weights, d_scores;
  if (merged.out.defined()) {
    const int64_t key_heads = k_MKD.size(1);
    weights = (scores - grouped_column(merged.log_sum_exp, key_heads) * log_2).exp();
    d_scores = (d_weights - (d_out_KND * grouped(merged.out, key_heads)).sum(-1, true)).mul_(weights);
  } else {
    weights = probabilities(scores, mask);
    d_scores = at::_softmax_backward_data(d_weights, weights, -1, weights.scalar_type());
  }
  if (shape.softcap > 0) // the derivative of tanh, 0 where a key is not visible
    d_scores = d_scores * (1 - (scores / shape.softcap).clamp_min(-1).square());
  d_scores = d_scores.mul_(shape.scale).to(q_KND.scalar_type());
  return {products(d_scores, k_MKD.permute({1, 0, 2})), products(d_scores.mT(), q_KND).permute({1, 0, 2}),
          products(weights.to(q_KND.scalar_type()).mT(), d_out_KND).permute({1, 0, 2})};
}

// Queries, and the keys that any of them may attend to.
struct Block {
  int64_t q_begin, q_length, kv_begin, kv_length;
};

// Rows [begin, end), in parts whose scores take little memory, each with the keys that any of its rows attends to and
// few others. Parts begin at whole multiples of a few rows, with which matrix products of 16-bit types are far faster.
template <class Body>
void each_range(const AttentionShape& shape, int64_t begin, int64_t end, int64_t min_rows, Body&& body) {
  constexpr int64_t max_rows = 1024, multiple = 8;
  const int64_t ahead = shape.longest > 0 ? shape.longest : end - begin, // with its own, as `back`
      back = shape.window > 0 && !shape.first.defined() ? std::min(shape.window, ahead) : ahead,
                rows = (std::clamp(back, min_rows, max_rows) + multiple - 1) / multiple * multiple;
  for (int64_t first = begin; first < end; first += rows) {
    const int64_t stop = std::min(first + rows, end), hidden = std::max<int64_t>(0, first - back + 1 - begin),
                  first_key = begin + hidden / multiple * multiple;
    int64_t stop_key = stop;
    if (shape.last.defined()) { // read where that needs no synchronization
      const auto* const last = shape.last.is_cpu() ? shape.last.const_data_ptr<int32_t>() : nullptr;
      stop_key = last ? *std::max_element(last + first, last + stop) + 1 : std::min(stop + ahead - 1, end);
    }
    body(Block{first, stop - first, first_key, stop_key - first_key});
  }
}

// Calls body for each segment that has queries and keys, or the parts of it. The bounds have to be in host memory.
template <class Body>
void each_segment(const AttentionShape& shape, Body&& body) {
  constexpr int64_t min_rows = 32;
  const auto* q = shape.cu_q.const_data_ptr<int32_t>();
  const auto* kv = shape.cu_kv.const_data_ptr<int32_t>();
  for (int64_t s = 0; s + 1 < shape.cu_q.numel(); ++s) {
    if (q[s + 1] == q[s] || kv[s + 1] == kv[s]) continue;
    if (shape.has_ranges())
      each_range(shape, q[s], q[s + 1], min_rows, body);
    else
      body(Block{q[s], q[s + 1] - q[s], kv[s], kv[s + 1] - kv[s]});
  }
}

// Of these rows of a buffer: which keys are not in a query's range.
Tensor outside_range(const AttentionShape& shape, const Tensor& row_of_q, const Tensor& row_of_key) {
  const Tensor last = shape.last.defined() ? shape.last.index_select(0, row_of_q) : row_of_q;
  Tensor outside = row_of_key.unsqueeze(0).gt(last.unsqueeze(1));
  if (shape.window == 0) return outside;
  Tensor before = (row_of_q.unsqueeze(1) - row_of_key.unsqueeze(0)).ge(shape.window);
  if (shape.first.defined()) before &= row_of_key.unsqueeze(0).lt(shape.first.index_select(0, row_of_q).unsqueeze(1));
  outside |= before;
  return outside;
}

Mask segment_mask(const AttentionShape& shape, const Block& segment, const Tensor& like) {
  if (!shape.causal) return {};
  if (shape.has_ranges()) {
    const auto rows = [&](int64_t begin, int64_t count) {
      return at::arange(begin, begin + count, like.options().dtype(at::kInt));
    };
    return {outside_range(shape, rows(segment.q_begin, segment.q_length), rows(segment.kv_begin, segment.kv_length)),
            Tensor()};
  }
  const int64_t shift = segment.kv_length - segment.q_length;
  const auto options = like.options().dtype(at::kBool);
  const Tensor hidden = at::ones({segment.q_length, segment.kv_length}, options).triu(shift + 1);
  return {hidden, shift < 0 ? hidden.all(1, true) : Tensor()};
}

// For each row of a packed buffer: its segment (the number of segments for padding), and its distance from the
// segment's end. The causal mask is aligned to the bottom right: a key is visible if it is no farther from the end of
// its segment than the query is.
struct Rows {
  Tensor number, segment, to_end, valid;
  Rows narrow(int64_t first, int64_t count) const {
    const auto part = [&](const Tensor& all) { return all.narrow(0, first, count); };
    return {part(number), part(segment), part(to_end), part(valid)};
  }
};
Rows rows_of(const Tensor& cu, int64_t tokens) {
  const int64_t segments = cu.numel() - 1;
  const Tensor row = at::arange(tokens, cu.options());
  const Tensor ends = cu.narrow(0, 1, segments);
  const Tensor segment = at::bucketize(row, ends, true, true);
  // The segment of a padding row is one past the last, and its end does not matter.
  const Tensor end = at::concat({ends, ends.new_zeros({1})}).index_select(0, segment);
  return {row, segment, end - row, segment < segments};
}

// The blocks of a buffer whose segments' bounds are not read.
std::vector<Block> blocks_of(const AttentionShape& shape, int64_t tokens_q, int64_t tokens_kv) {
  if (!shape.has_ranges()) return {{0, tokens_q, 0, tokens_kv}};
  constexpr int64_t min_rows = 256;
  std::vector<Block> blocks;
  each_range(shape, 0, tokens_q, min_rows, [&](const Block& block) { blocks.push_back(block); });
  return blocks;
}

struct PackedMask {
  Mask mask;
  Tensor valid_q, valid_kv;
};
PackedMask packed_mask(const AttentionShape& shape, const Rows& q, const Rows& kv) {
  Tensor visible = q.segment.unsqueeze(1).eq(kv.segment) & q.valid.unsqueeze(1);
  if (shape.causal && !shape.has_ranges()) visible &= kv.to_end.ge(q.to_end.unsqueeze(1));
  Tensor hidden = visible.logical_not();
  if (shape.has_ranges()) hidden |= outside_range(shape, q.number, kv.number);
  return {{hidden, hidden.all(1, true)}, q.valid.view({-1, 1, 1}), kv.valid.view({-1, 1, 1})};
}

// Replaces padding rows by zeros, since they may hold NaN, and 0 times NaN is NaN.
Tensor zero_padding(const Tensor& x, const Tensor& valid) {
  return at::where(valid, x, 0);
}

// Memory in which the gradient of x is summed.
Tensor zeros_for(const Tensor& x) {
  return at::zeros(x.sizes(), x.options().dtype(wide(x.scalar_type())));
}

} // namespace

Tensor attention_by_segment(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& log_sum_exp) {
  Tensor out = at::zeros_like(q, at::MemoryFormat::Contiguous);
  each_segment(shape, [&](const Block& s) {
    const Tensor q_s = grouped(q.narrow(0, s.q_begin, s.q_length), k.size(1));
    const Mask mask = segment_mask(shape, s, q);
    const Tensor scores = visible_scores(shape, q_s, k.narrow(0, s.kv_begin, s.kv_length), mask);
    if (log_sum_exp.defined()) store_log_sum_exp(scores, mask, log_sum_exp.narrow(0, s.q_begin, s.q_length));
    const Tensor weights = probabilities(scores, mask);
    const Tensor v_s = v.narrow(0, s.kv_begin, s.kv_length).permute({1, 0, 2});
    out.narrow(0, s.q_begin, s.q_length).copy_(ungrouped(products(weights, v_s), s.q_length));
  });
  return out;
}

AttentionGradients attention_gradients_by_segment(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                                                  const Tensor& v, const Tensor& d_out, const MergedAttention& merged) {
  AttentionGradients result = {at::zeros_like(q, at::MemoryFormat::Contiguous),
                               at::zeros_like(k, at::MemoryFormat::Contiguous),
                               at::zeros_like(v, at::MemoryFormat::Contiguous)};
  each_segment(shape, [&](const Block& s) {
    const Tensor q_s = grouped(q.narrow(0, s.q_begin, s.q_length), k.size(1));
    const Tensor d_out_s = grouped(d_out.narrow(0, s.q_begin, s.q_length), k.size(1));
    MergedAttention merged_s;
    if (merged.out.defined())
      merged_s = {merged.out.narrow(0, s.q_begin, s.q_length), merged.log_sum_exp.narrow(0, s.q_begin, s.q_length)};
    const auto [d_q, d_k, d_v] =
        dense_gradients(shape, segment_mask(shape, s, q), q_s, k.narrow(0, s.kv_begin, s.kv_length),
                        v.narrow(0, s.kv_begin, s.kv_length), d_out_s, merged_s);
    result[0].narrow(0, s.q_begin, s.q_length).copy_(ungrouped(d_q, s.q_length));
    result[1].narrow(0, s.kv_begin, s.kv_length).add_(d_k);
    result[2].narrow(0, s.kv_begin, s.kv_length).add_(d_v);
  });
  return result;
}

Tensor attention_by_mask(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& log_sum_exp) {
  if (q.numel() == 0 || k.numel() == 0) return at::zeros_like(q, at::MemoryFormat::Contiguous);
  const Rows rows_q = rows_of(shape.cu_q, q.size(0)), rows_kv = rows_of(shape.cu_kv, k.size(0));
  std::vector<Tensor> parts;
  for (const Block& s : blocks_of(shape, q.size(0), k.size(0))) {
    const auto keys = [&s](const Tensor& x) { return x.narrow(0, s.kv_begin, s.kv_length); };
    const auto [mask, valid_q, valid_kv] =
        packed_mask(shape, rows_q.narrow(s.q_begin, s.q_length), rows_kv.narrow(s.kv_begin, s.kv_length));
    const Tensor q_s = grouped(zero_padding(q.narrow(0, s.q_begin, s.q_length), valid_q), k.size(1));
    const Tensor scores = visible_scores(shape, q_s, zero_padding(keys(k), valid_kv), mask);
    if (log_sum_exp.defined()) store_log_sum_exp(scores, mask, log_sum_exp.narrow(0, s.q_begin, s.q_length));
    const Tensor weights = probabilities(scores, mask).to(v.scalar_type()),
                 v_s = zero_padding(keys(v), valid_kv).permute({1, 0, 2});
    parts.push_back(ungrouped(products(weights, v_s), s.q_length));
  }
  return parts.size() == 1 ? parts[0] : at::concat(parts);
}

AttentionGradients attention_gradients_by_mask(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                                               const Tensor& v, const Tensor& d_out, const MergedAttention& merged) {
  if (q.numel() == 0 || k.numel() == 0) return {at::zeros_like(q), at::zeros_like(k), at::zeros_like(v)};
  const Rows rows_q = rows_of(shape.cu_q, q.size(0)), rows_kv = rows_of(shape.cu_kv, k.size(0));
  const std::vector<Block> blocks = blocks_of(shape, q.size(0), k.size(0));
  AttentionGradients sums;
  for (const Block& s : blocks) {
    const auto queries = [&s](const Tensor& x) { return x.narrow(0, s.q_begin, s.q_length); };
    const auto keys = [&s](const Tensor& x) { return x.narrow(0, s.kv_begin, s.kv_length); };
    const auto [mask, valid_q, valid_kv] =
        packed_mask(shape, rows_q.narrow(s.q_begin, s.q_length), rows_kv.narrow(s.kv_begin, s.kv_length));
    const Tensor q_s = grouped(zero_padding(queries(q), valid_q), k.size(1));
    const Tensor d_out_s = grouped(zero_padding(queries(d_out), valid_q), k.size(1));
    MergedAttention merged_s;
    if (merged.out.defined()) merged_s = {zero_padding(queries(merged.out), valid_q), queries(merged.log_sum_exp)};
    const auto [d_q, d_k, d_v] = dense_gradients(shape, mask, q_s, zero_padding(keys(k), valid_kv),
                                                 zero_padding(keys(v), valid_kv), d_out_s, merged_s);
    const AttentionGradients part{ungrouped(d_q, s.q_length), d_k, d_v};
    if (blocks.size() == 1) return part;
    if (!sums[0].defined()) sums = {zeros_for(q), zeros_for(k), zeros_for(v)};
    queries(sums[0]).add_(part[0]);
    for (const size_t i : {1, 2}) keys(sums[i]).add_(part[i]);
  }
  return sums;
}

} // namespace fvlm::ops::reference
