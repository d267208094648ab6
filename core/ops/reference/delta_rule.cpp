// The gated delta rule in plain ATen, in float32 or wider, in chunks of rows within which all is matrix products.
#include "ops/reference/common.h"
#include "ops/reference/row_chunks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace fvlm::ops::reference {
namespace {

using at::Tensor;

constexpr double length_epsilon = 1e-6;

struct Rule {
  int64_t key_heads, value_heads, key_dim, value_dim;
  Tensor log_decay, step_bias; // [value_heads], float32 or wider

  Rule(const fvlm_kernels_query& query, const fvlm_tensor* log_decay, const fvlm_tensor* step_bias)
      : key_heads(query.key_heads), value_heads(query.heads), key_dim(query.key_dim), value_dim(query.head_dim),
        log_decay(upcast(log_decay)), step_bias(upcast(step_bias)) {}

  Tensor states_before(const CarriedStates& states, int64_t segments) const {
    return states.before(segments, {value_heads, key_dim, value_dim}, log_decay.options());
  }
};

Tensor transposed(const Tensor& matrices) {
  return matrices.transpose(-1, -2);
}

// Of each matrix's rows, of which `factors` has one less dimension.
Tensor scaled(const Tensor& rows, const Tensor& factors) {
  return rows * factors.unsqueeze(-1);
}

Tensor sum_of_rows(const Tensor& x) {
  return x.sum(-1);
}

Tensor sum_in_float64(const Tensor& x, int64_t dimension) {
  return x.sum(dimension, false, at::kDouble);
}

// The diagonal blocks of this size of square matrices: [matrices, blocks, size, size], a view.
Tensor diagonal_blocks(const Tensor& matrices, int64_t size) {
  const int64_t side = matrices.size(-1);
  return matrices.view({-1, side / size, size, side / size, size}).diagonal(0, 1, 3).permute({0, 3, 1, 2});
}

// The inverses of I + what is strictly below the diagonal, by halves: the block below two inverted ones is minus their
// product with the one that was there.
Tensor inverse_of_unit_lower(const Tensor& below) {
  const int64_t side = below.size(-1);
  Tensor inverse = at::zeros_like(below);
  inverse.diagonal(0, -2, -1).fill_(1);
  for (int64_t half = 1; half < side; half *= 2) {
    const Tensor of_inverse = diagonal_blocks(inverse, 2 * half);
    const auto quarter = [half](const Tensor& blocks, int64_t row, int64_t column) {
      return blocks.narrow(2, row * half, half).narrow(3, column * half, half);
    };
    const Tensor lower = quarter(diagonal_blocks(below, 2 * half), 1, 0);
    quarter(of_inverse, 1, 0)
        .copy_(at::matmul(at::matmul(quarter(of_inverse, 1, 1), lower), quarter(of_inverse, 0, 0)).neg_());
  }
  return inverse;
}

// Rows of heads, each divided by its length.
struct UnitRows {
  Tensor unit, factor; // factor: 1 / length
  explicit UnitRows(const Tensor& rows) : factor((rows.square().sum(-1, true) + length_epsilon).rsqrt_()) {
    unit = rows * factor;
  }
  Tensor gradient(const Tensor& d_unit) const { return (d_unit - unit * (unit * d_unit).sum(-1, true)).mul_(factor); }
};

// All chunks of a pass, [chunks, value_heads, length, ...] where nothing else is said.
struct Chunked {
  Chunked(const Tensor& rows, const Tensor& gates, const Rule& rule, const RowChunks& chunks)
      : rule(rule), chunks(chunks), q(of_keys(rows, 0)), k(of_keys(rows, 1)) {
    query = by_value_head(q.unit) / std::sqrt(static_cast<double>(rule.key_dim));
    key = by_value_head(k.unit);
    value = heads(rows, 2 * rule.key_heads * rule.key_dim, rule.value_heads, rule.value_dim);
    step = of_gates(gates, 1) + rule.step_bias.unsqueeze(1);
    rate = of_gates(gates, 0).sigmoid_();
    const Tensor is_empty = chunks.empty.view({chunks.count, 1, chunks.length});
    rate.masked_fill_(is_empty, 0);
    decay = at::softplus(step).mul_(-rule.log_decay.exp().unsqueeze(1)).masked_fill_(is_empty, 0);
    const Tensor sum = decay.cumsum(-1);
    since_begin = sum.exp();
    until_end = (sum.narrow(-1, chunks.length - 1, 1) - sum).exp_();
    between = (sum.unsqueeze(-1) - sum.unsqueeze(-2)).tril_().exp_().tril_();
    reads = at::matmul(query, transposed(key)).mul_(between);
    corrections = scaled(at::matmul(key, transposed(key)).mul_(between), rate).tril_(-1);
    solved = inverse_of_unit_lower(corrections);
    old_keys = scaled(key, rate * since_begin);
    from_state = at::matmul(solved, old_keys);
    new_values = at::matmul(solved, scaled(value, rate));
    query_of_state = scaled(query, since_begin);
    key_of_state = scaled(key, until_end);
  }

  // From chunk to chunk of all segments: the state before each, [chunks, value_heads, key_dim, value_dim], and what
  // each row adds to it at its key. `states`, of the segments, become those behind their last rows.
  void run(Tensor& states) {
    before = at::zeros({chunks.count, rule.value_heads, rule.key_dim, rule.value_dim}, value.options());
    added = new_values.clone();
    for (int64_t rank = 0; rank < chunks.by_rank.size(0); ++rank) {
      const Tensor own = chunks.by_rank[rank];
      before.index_copy_(0, own, states);
      const Tensor adds = new_values.index_select(0, own) - at::matmul(from_state.index_select(0, own), states);
      added.index_copy_(0, own, adds);
      states = states * whole_decay(own) + at::matmul(transposed(key_of_state.index_select(0, own)), adds);
    }
  }

  Tensor output() const { // [rows, value_heads * value_dim]
    return as_rows(at::matmul(query_of_state, before) + at::matmul(reads, added));
  }

  struct Gradients {
    Tensor rows, gates, log_decay, step_bias;
  };
  Gradients gradients(const Tensor& d_output) const;

 private:
  Tensor whole_decay(const Tensor& of_chunks) const { // [chunks, value_heads, 1, 1]
    return since_begin.select(-1, chunks.length - 1).index_select(0, of_chunks).unsqueeze(-1).unsqueeze(-1);
  }
  Tensor heads(const Tensor& rows, int64_t column, int64_t count, int64_t dim) const {
    return chunks.split(upcast(rows.narrow(1, column, count * dim)))
        .view({chunks.count, chunks.length, count, dim})
        .transpose(1, 2)
        .contiguous();
  }
  Tensor of_keys(const Tensor& rows, int64_t which) const {
    const int64_t width = rule.key_heads * rule.key_dim;
    return heads(rows, which * width, rule.key_heads, rule.key_dim);
  }
  Tensor of_gates(const Tensor& gates, int64_t which) const { // [chunks, value_heads, length]
    return chunks.split(upcast(gates.narrow(1, which * rule.value_heads, rule.value_heads)))
        .transpose(1, 2)
        .contiguous();
  }
  int64_t values_of_key() const { return rule.value_heads / rule.key_heads; }
  Tensor by_value_head(const Tensor& of_keys) const {
    return of_keys.unsqueeze(2)
        .expand({-1, -1, values_of_key(), -1, -1})
        .reshape({chunks.count, rule.value_heads, chunks.length, rule.key_dim});
  }
  Tensor by_key_head(const Tensor& of_values) const { // the sum
    return of_values.view({chunks.count, rule.key_heads, values_of_key(), chunks.length, rule.key_dim}).sum(2);
  }
  Tensor as_rows(const Tensor& of_heads) const {
    return chunks.joined(of_heads.transpose(1, 2).contiguous()).flatten(1);
  }

  const Rule& rule;
  const RowChunks& chunks;
  UnitRows q, k; // by heads of keys
  Tensor query, key, value;
  Tensor step, rate, decay;      // [chunks, value_heads, length]: a with its bias, beta and g
  Tensor since_begin, until_end; // [chunks, value_heads, length]: the decay from before the first row, to the last one
  Tensor between;                // [.., length, length]: the decay from a row to a later one
  Tensor reads;                  // [.., length, length]: how much of what a row adds a later one reads
  Tensor corrections, solved;    // [.., length, length]: how much of it a later one takes away; the inverse of all
  Tensor old_keys, from_state, new_values, query_of_state, key_of_state;
  Tensor before, added;
};

// The pass above backwards. Gradients are called as what they are of, with d_ before it.
Chunked::Gradients Chunked::gradients(const Tensor& d_output) const {
  const Tensor d_y = heads(d_output, 0, rule.value_heads, rule.value_dim);
  const Tensor d_reads = at::matmul(d_y, transposed(added)).tril_();
  const Tensor d_query_of_state = at::matmul(d_y, transposed(before));
  const Tensor d_added_here = at::matmul(transposed(reads), d_y);
  const Tensor d_before_here = at::matmul(transposed(query_of_state), d_y);
  // From the last chunk of all segments to the first one.
  Tensor d_behind = at::zeros_like(before), d_added = d_added_here.clone();
  Tensor d_state = at::zeros({chunks.by_rank.size(1), rule.value_heads, rule.key_dim, rule.value_dim}, d_y.options());
  for (int64_t rank = chunks.by_rank.size(0) - 1; rank >= 0; --rank) {
    const Tensor own = chunks.by_rank[rank];
    d_behind.index_copy_(0, own, d_state);
    const Tensor d_adds = d_added_here.index_select(0, own) + at::matmul(key_of_state.index_select(0, own), d_state);
    d_added.index_copy_(0, own, d_adds);
    d_state = d_before_here.index_select(0, own) + d_state * whole_decay(own) -
              at::matmul(transposed(from_state.index_select(0, own)), d_adds);
  }
  const Tensor d_key_of_state = at::matmul(added, transposed(d_behind));
  const Tensor d_from_state = at::matmul(d_added, transposed(before)).neg_();
  const Tensor d_old_keys = at::matmul(transposed(solved), d_from_state),
               d_rated_values = at::matmul(transposed(solved), d_added);
  const Tensor d_corrections =
      (at::matmul(d_old_keys, transposed(from_state)) + at::matmul(d_rated_values, transposed(new_values)))
          .neg_()
          .tril_(-1);
  const Tensor d_products = scaled(d_corrections * between, rate), d_scores = d_reads * between;

  const Tensor d_query = at::matmul(d_scores, key) + scaled(d_query_of_state, since_begin);
  const Tensor d_key = at::matmul(transposed(d_scores), query) + at::matmul(d_products + transposed(d_products), key) +
                       scaled(d_old_keys, rate * since_begin) + scaled(d_key_of_state, until_end);
  const Tensor d_rate = sum_of_rows(d_corrections * at::matmul(key, transposed(key)) * between) +
                        sum_of_rows(d_old_keys * scaled(key, since_begin)) + sum_of_rows(d_rated_values * value);

  const Tensor pairs = d_corrections * corrections + d_reads * reads,
               of_end = sum_in_float64(d_key_of_state * key_of_state, -1);
  // Most of these sums cancel.
  Tensor d_sum = sum_in_float64(pairs, -1) - sum_in_float64(pairs, -2) +
                 sum_in_float64(d_query_of_state * query_of_state, -1) + sum_in_float64(d_old_keys * old_keys, -1) -
                 of_end;
  const Tensor d_whole = (before * d_behind).sum(at::IntArrayRef{-1, -2}) * since_begin.select(-1, chunks.length - 1);
  d_sum.select(-1, chunks.length - 1).add_(of_end.sum(-1)).add_(d_whole);
  const Tensor d_decay =
      (d_sum.sum(-1, true) - d_sum.cumsum(-1) + d_sum)
          .to(before.scalar_type())
          .masked_fill_(chunks.empty.view({chunks.count, 1, chunks.length}), 0); // of a row and all behind it
  const Tensor decay_factor = rule.log_decay.exp().unsqueeze(1);
  const Tensor d_step = d_decay * step.sigmoid() * -decay_factor;

  return {at::concat({as_rows(q.gradient(by_key_head(d_query) / std::sqrt(static_cast<double>(rule.key_dim)))),
                      as_rows(k.gradient(by_key_head(d_key))), as_rows(scaled(d_rated_values, rate))},
                     1),
          at::concat({as_rows(d_rate * rate * (1 - rate)), as_rows(d_step)}, 1),
          (d_decay * decay).sum(at::IntArrayRef{0, 2}), d_step.sum(at::IntArrayRef{0, 2})};
}

// Where no segment has more than one row, by the definition: a chunk is a row then.
Tensor of_single_rows(const Tensor& rows, const Tensor& gates, const Rule& rule, const RowChunks& chunks,
                      Tensor& states) {
  const Tensor own = chunks.by_rank[0], taken = chunks.rows.index_select(0, own);
  const int64_t segments = own.size(0), keys = 2 * rule.key_heads;
  const Tensor in = upcast(rows.index_select(0, taken)), of_gates = upcast(gates.index_select(0, taken));
  const Tensor is_empty = chunks.empty.index_select(0, own).unsqueeze(1);
  const auto by_value_head = [&](const Tensor& of_keys) { // [segments, value_heads, 1, key_dim]
    return of_keys.unsqueeze(2)
        .expand({-1, -1, rule.value_heads / rule.key_heads, -1})
        .reshape({segments, rule.value_heads, 1, rule.key_dim});
  };
  const Tensor unit = UnitRows(in.narrow(1, 0, keys * rule.key_dim).view({segments, keys, rule.key_dim})).unit;
  const Tensor key = by_value_head(unit.narrow(1, rule.key_heads, rule.key_heads)),
               value = in.narrow(1, keys * rule.key_dim, rule.value_heads * rule.value_dim)
                           .view({segments, rule.value_heads, 1, rule.value_dim});
  const auto as_factors = [&](const Tensor& of_heads) {
    return of_heads.masked_fill(is_empty, 0).unsqueeze(-1).unsqueeze(-1);
  };
  const Tensor rate = as_factors(of_gates.narrow(1, 0, rule.value_heads).sigmoid());
  const Tensor decay = as_factors(
      -rule.log_decay.exp() * at::softplus(of_gates.narrow(1, rule.value_heads, rule.value_heads) + rule.step_bias));
  states = states * decay.exp();
  states.add_(at::matmul(transposed(key), rate * (value - at::matmul(key, states))));
  const Tensor query = by_value_head(unit.narrow(1, 0, rule.key_heads)) / std::sqrt(static_cast<double>(rule.key_dim));
  Tensor y = at::zeros({chunks.count, 1, rule.value_heads * rule.value_dim}, in.options());
  y.index_copy_(0, own, at::matmul(query, states).view({segments, 1, -1}));
  return chunks.joined(y);
}

Tensor outputs(const Tensor& rows, const Tensor& gates, const Rule& rule, const RowChunks& chunks, Tensor& states) {
  if (chunks.length == 1) return of_single_rows(rows, gates, rule, chunks, states);
  Chunked pass(rows, gates, rule, chunks);
  pass.run(states);
  return pass.output();
}

} // namespace

void Kernels::delta_rule_forward(const fvlm_call&, const Query& query, const fvlm_delta_rule_forward& a) {
  if (query.rows == 0) return;
  const Rule rule(query, a.log_decay, a.step_bias);
  const RowPlaces places(torch_tensor(a.cu_seqlens), query.rows);
  const CarriedStates carried(a.states, a.slots, a.starts);
  Tensor states = rule.states_before(carried, query.segments);
  store(torch_tensor(a.y),
        outputs(torch_tensor(a.qkv), torch_tensor(a.gates), rule, RowChunks(places, query.max_seqlen), states));
  carried.replace(states, places);
}

void Kernels::delta_rule_backward(const fvlm_call&, const Query& query, const fvlm_delta_rule_backward& a) {
  const Rule rule(query, a.log_decay, a.step_bias);
  Tensor d_log_decay = at::zeros_like(rule.log_decay), d_step_bias = d_log_decay;
  if (query.rows > 0) {
    const RowChunks chunks(RowPlaces(torch_tensor(a.cu_seqlens), query.rows), query.max_seqlen);
    Chunked pass(torch_tensor(a.qkv), torch_tensor(a.gates), rule, chunks);
    Tensor states = rule.states_before(CarriedStates(), query.segments);
    pass.run(states);
    const Chunked::Gradients d = pass.gradients(torch_tensor(a.d_y));
    store(torch_tensor(a.d_qkv), d.rows), store(torch_tensor(a.d_gates), d.gates);
    d_log_decay = d.log_decay, d_step_bias = d.step_bias;
  }
  if (a.d_log_decay) store(torch_tensor(a.d_log_decay), d_log_decay, a.accumulate);
  if (a.d_step_bias) store(torch_tensor(a.d_step_bias), d_step_bias, a.accumulate);
}

} // namespace fvlm::ops::reference
