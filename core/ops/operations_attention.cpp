// Attention over heads that are columns of wider values, and the rotary embedding before it.
#include "base/error.h"
#include "ops/dry_run.h"
#include "ops/operations.h"
#include "ops/reference/attention.h"
#include "ops/reference/common.h"

#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

namespace fvlm::ops {
namespace {

at::Tensor heads_of(const at::Tensor& rows, const Heads& heads, int64_t head_dim) {
  return rows.narrow(1, heads.column, heads.count * head_dim).unflatten(1, {heads.count, head_dim});
}

Gradient::Columns columns_of(const Heads& heads, int64_t head_dim) {
  return {heads.column, heads.count * head_dim};
}

// Whether v lies behind k in one value.
bool are_adjacent(const Heads& k, const Heads& v, int64_t head_dim) {
  return k.value.gradient == v.value.gradient && v.column == k.column + k.count * head_dim;
}

// The columns of k, and of v where it is adjacent.
Gradient::Columns keys_of(const Heads& k, const Heads& v, int64_t head_dim) {
  return {k.column, (k.count + (are_adjacent(k, v, head_dim) ? v.count : 0)) * head_dim};
}

void announce(const Heads& q, const Heads& k, const Heads& v, int64_t head_dim) {
  if (q.value.requires_grad()) q.value.gradient->announce(columns_of(q, head_dim));
  if (k.value.requires_grad()) k.value.gradient->announce(keys_of(k, v, head_dim));
  if (v.value.requires_grad() && !are_adjacent(k, v, head_dim)) v.value.gradient->announce(columns_of(v, head_dim));
}

// Memory for the gradients of q, k and v, which are columns of two or three values. Where nothing was added to a
// value's gradient yet, the kernel writes into its columns directly; else into temporary memory, which is added
// afterwards.
class GradientDestinations {
 public:
  GradientDestinations(const Heads& q, const Heads& k, const Heads& v, int64_t head_dim) : heads_{&q, &k, &v} {
    std::array<bool, 3> direct{};
    for (size_t i = 0; i < 3; ++i) {
      const Value& value = heads_[i]->value;
      if (!value.requires_grad()) continue;
      const auto columns = i == 1 ? keys_of(k, v, head_dim) : columns_of(*heads_[i], head_dim);
      direct[i] = i == 2 && are_adjacent(k, v, head_dim)
                      ? direct[1]
                      : value.gradient->destination(columns, value.data.sizes(), value.data.options()).second;
      is_temporary_[i] = !direct[i];
    }
    for (size_t i = 0; i < 3; ++i) {
      const Value& value = heads_[i]->value;
      if (value.requires_grad()) totals_[i] = value.gradient->sum();
      memory_[i] = direct[i] ? heads_of(totals_[i], *heads_[i], head_dim)
                             : at::empty({value.data.size(0), heads_[i]->count, head_dim}, value.data.options());
    }
    if (!is_temporary_[2] || !totals_[2].is_same(totals_[1]) || k.column != 0 || v.column != k.count * head_dim ||
        totals_[1].size(1) != (k.count + v.count) * head_dim)
      return;
    kv_temporary_ = at::empty_like(totals_[1]);
    memory_[1] = heads_of(kv_temporary_, k, head_dim);
    memory_[2] = heads_of(kv_temporary_, v, head_dim);
  }
  Attention::Gradients into() const { return {memory_[0], memory_[1], memory_[2]}; }
  void add_temporaries(int64_t head_dim) const {
    if (kv_temporary_.defined()) totals_[1].add_(kv_temporary_);
    for (size_t i = 0; i < (kv_temporary_.defined() ? 1 : 3); ++i)
      if (is_temporary_[i]) heads_of(totals_[i], *heads_[i], head_dim).add_(memory_[i]);
  }

 private:
  std::array<const Heads*, 3> heads_;
  std::array<at::Tensor, 3> totals_, memory_;
  std::array<bool, 3> is_temporary_{};
  at::Tensor kv_temporary_; // of k and v together, where they fill their value, so that a single call adds it
};

// Whether q, k and v are all columns of one value, so that the kernel writes all of its gradient.
bool is_packed_qkv(const Heads& q, const Heads& k, const Heads& v, int64_t head_dim) {
  return q.value.requires_grad() && q.value.gradient == k.value.gradient && k.value.gradient == v.value.gradient &&
         (q.count + k.count + v.count) * head_dim == q.value.data.size(1);
}

// Adds the gradients of q, k and v, which `compute` writes into the memory that it is given.
template <class Compute>
void add_gradients(const Heads& q, const Heads& k, const Heads& v, int64_t head_dim, const Compute& compute) {
  if (is_packed_qkv(q, k, v, head_dim)) {
    at::Tensor d = q.value.gradient->allocate_like(q.value.data);
    const auto part = [&](const Heads& heads) { return heads_of(d, heads, head_dim); };
    compute(Attention::Gradients{part(q), part(k), part(v)});
    q.value.gradient->add(std::move(d));
    return;
  }
  const GradientDestinations d(q, k, v, head_dim);
  compute(d.into());
  d.add_temporaries(head_dim);
}

// Rows of whole words of 8 bytes are written as such, which is faster than as many numbers.
void write_rows(const at::Tensor& pages, const c10::List<std::optional<at::Tensor>>& places, const at::Tensor& rows) {
  const int64_t word = 8 / pages.element_size();
  const auto has_words = [word](const at::Tensor& tensor) {
    const auto strides = tensor.strides();
    return tensor.size(-1) % word == 0 && tensor.storage_offset() % word == 0 &&
           std::all_of(strides.begin(), strides.end() - 1, [word](int64_t stride) { return stride % word == 0; });
  };
  if (word > 1 && has_words(pages) && has_words(rows))
    pages.view(at::kLong).index_put_(places, rows.view(at::kLong));
  else
    pages.index_put_(places, rows);
}

} // namespace

fvlm_paged_attention_query Operations::paged_query(int64_t rows, int64_t heads_q, const PagedKeys& keys,
                                                   const AttentionShape& shape) const {
  fvlm_paged_attention_query query{};
  query.struct_size = sizeof query;
  query.device = abi_device(options_.device);
  query.dtype = abi_dtype(options_.dtype);
  query.heads_q = static_cast<int32_t>(heads_q);
  query.heads_kv = static_cast<int32_t>(keys.k_pages.size(2));
  query.head_dim = static_cast<int32_t>(shape.head_dim);
  query.page_rows = static_cast<int32_t>(keys.k_pages.size(1));
  query.scale = static_cast<float>(shape.score_factor / std::sqrt(static_cast<double>(shape.head_dim)));
  query.rows = rows;
  query.sequences = keys.page_table.size(0);
  query.pages = keys.k_pages.size(0);
  query.max_pages = keys.page_table.size(1);
  if (query.max_pages * query.page_rows > shape.window) query.window = static_cast<int32_t>(shape.window);
  return query;
}

at::Tensor Operations::paged_attention(const at::Tensor& q, int64_t heads_q, const PagedKeys& keys,
                                       const AttentionShape& shape) {
  const auto query = paged_query(q.size(0), heads_q, keys, shape);
  return paged_attention_for(query).forward(q.unflatten(1, {heads_q, shape.head_dim}), keys).flatten(1);
}

// Columns that are adjacent are written together, where pages hold keys and values in the same memory.
void Operations::write_to_pages(const Heads& k, const Heads& v, const PagedKeys& keys, const at::Tensor& places) const {
  const c10::List<std::optional<at::Tensor>> rows({places.select(0, 0), places.select(0, 1)});
  const at::Tensor &k_pages = keys.k_pages, &v_pages = keys.v_pages;
  const int64_t dim = k_pages.size(3), columns = k.count * dim;
  if (k.value.data.is_same(v.value.data) && v.column == k.column + columns && k_pages.is_alias_of(v_pages) &&
      k_pages.strides() == v_pages.strides()) {
    const auto strides = k_pages.strides();
    const at::Tensor both =
        k_pages.as_strided({k_pages.size(0), k_pages.size(1), 2, k.count, dim},
                           {strides[0], strides[1], v_pages.storage_offset() - k_pages.storage_offset(), strides[2], 1},
                           k_pages.storage_offset());
    return write_rows(both, rows, k.value.data.narrow(1, k.column, 2 * columns).unflatten(1, {2, k.count, dim}));
  }
  write_rows(k_pages, rows, heads_of(k.value.data, k, dim));
  write_rows(v_pages, rows, heads_of(v.value.data, v, dim));
}

at::Tensor Operations::append_and_attend(const Value& qkv, int64_t heads_q, const PagedKeys& keys,
                                         const at::Tensor& positions, const at::Tensor& places, bool independent,
                                         const AttentionShape& shape, const HeadNorms* norms) {
  const int64_t heads_kv = keys.k_pages.size(2), dim = shape.head_dim;
  Heads q{qkv, 0, heads_q}, k{qkv, heads_q * dim, heads_kv}, v{qkv, (heads_q + heads_kv) * dim, heads_kv};
  auto query = paged_query(qkv.data.size(0), heads_q, keys, shape);
  query.appends = independent;
  query.rotary_dim = static_cast<int32_t>(shape.rotary.dimensions);
  query.has_frequencies = shape.rotary.frequencies.defined();
  query.inverse = shape.rotary.reversed;
  query.qk_norm = norms != nullptr;
  query.rope_theta = static_cast<float>(shape.rotary.theta);
  query.epsilon = norms ? static_cast<float>(norms->epsilon) : 0;
  const int64_t room = keys.page_table.size(1) * keys.k_pages.size(1);
  // A plugin counts a window back from a row's last key, which is not the row's own where it attends to keys behind it,
  // and knows no keys before it.
  const bool by_aten = shape.softcap > 0 || (query.window && keys.has_ranges);
  const PagedAttention* const op = by_aten ? nullptr : &paged_attention_for(query);
  if (op && op->query().appends) {
    AppendedKeys appended{heads_of(qkv.data, k, dim), heads_of(qkv.data, v, dim), {}, {}, shape.rotary.frequencies};
    if (norms) appended.q_norm = norms->q.value(), appended.k_norm = norms->k.value();
    return op->forward(heads_of(qkv.data, q, dim), keys, appended).flatten(1);
  }
  Tape no_grad(Tape::Mode::forward_only);
  if (norms && !norms->q.defined() && !norms->k.defined()) { // one norm of both, which are adjacent
    const Value both = rmsnorm_heads(no_grad, {qkv, 0, heads_q + heads_kv}, dim, {}, norms->epsilon);
    q.value = k.value = both;
  } else if (norms) {
    q.value = rmsnorm_heads(no_grad, q, dim, norms->q, norms->epsilon);
    k = {rmsnorm_heads(no_grad, k, dim, norms->k, norms->epsilon), 0, heads_kv};
  }
  if (shape.rotary.dimensions > 0) rotate(no_grad, q, k, v, positions, positions, dim, shape.rotary);
  write_to_pages(k, v, keys, places);
  const at::Tensor queries = heads_of(q.value.data, q, dim);
  return (op ? op->forward(queries, keys)
             : reference::paged_attention_in_window(queries, keys, positions, query.window ? query.window : room,
                                                    query.scale, shape.softcap))
      .flatten(1);
}

void Operations::rotate(Tape& tape, Heads& q, Heads& k, Heads& v, const at::Tensor& positions_q,
                        const at::Tensor& positions_kv, int64_t head_dim, const Rotary& rotary) {
  const bool together = q.value.data.is_same(k.value.data);
  if (q.column != 0 || k.column != (together ? q.count * head_dim : 0))
    throw Error(ErrorKind::internal, "rotary embedding expects q and k to be the leading columns of their values");
  const Value before = k.value;
  q.value = rotate(tape, q.value, together ? q.count + k.count : q.count, head_dim, rotary, positions_q);
  k.value = together ? q.value : rotate(tape, k.value, k.count, head_dim, rotary, positions_kv);
  if (v.value.data.is_same(before.data)) v.value = k.value;
}

fvlm_attention_query Operations::attention_query(const Heads& q, const Heads& k, const Segments& of_q,
                                                 const Segments& of_kv, const AttentionShape& shape) const {
  fvlm_attention_query query{};
  query.struct_size = sizeof query;
  query.causal = shape.causal;
  query.device = abi_device(options_.device);
  query.dtype = abi_dtype(options_.dtype);
  query.heads_q = static_cast<int32_t>(q.count);
  query.heads_kv = static_cast<int32_t>(k.count);
  query.head_dim = static_cast<int32_t>(shape.head_dim);
  query.max_seqlen_q = static_cast<int32_t>(of_q.max_length);
  query.max_seqlen_kv = static_cast<int32_t>(of_kv.max_length);
  query.rotary_dim = shape.rotary.is_plain(of_q.positions) ? static_cast<int32_t>(shape.rotary.dimensions) : 0;
  query.rope_theta = static_cast<float>(shape.rotary.theta);
  query.tokens_q = q.value.data.size(0);
  query.tokens_kv = k.value.data.size(0);
  query.segments = of_q.cu_seqlens.size(0) - 1;
  query.scale = static_cast<float>(shape.score_factor / std::sqrt(static_cast<double>(shape.head_dim)));
  if (of_q.max_length > shape.window) query.window = static_cast<int32_t>(shape.window);
  return query;
}

Value Operations::attention(Tape& tape, Heads q, Heads k, Heads v, const Segments& of_q, const Segments& of_kv,
                            const AttentionShape& shape, const at::Tensor& into, const Value& shared_kv) {
  if (of_q.ring.defined()) return ring_attention(tape, std::move(q), std::move(k), std::move(v), of_q, shape, into);
  if (Value y = bidirectional_attention(tape, q, k, v, of_q, shape, into); y.defined()) return y;
  if ((shape.causal && of_q.last.defined()) || shape.softcap > 0)
    return range_attention(tape, std::move(q), std::move(k), std::move(v), of_q, shape, into);
  const bool records = tape.records(q.value, k.value, v.value);
  fvlm_attention_query query = attention_query(q, k, of_q, of_kv, shape);
  query.needs_backward = records;
  query.even = of_q.uniform_lengths && of_kv.uniform_lengths;
  query.guests = records && shared_kv.requires_grad() && is_packed_qkv(q, k, v, shape.head_dim);
  const auto& kv_gradient = k.value.gradient;
  query.queries_alone = records && of_q.max_length == 1 && kv_gradient && kv_gradient == v.value.gradient &&
                        kv_gradient->accepts_deferred_queries() && q.value.data.size(1) == q.count * shape.head_dim;
  const Attention& op = attention_for(query);
  // Heads so wide that no plugin for GPUs attends with them: in parts of the keys that a row may see, which takes less
  // memory than one masked softmax over all of them.
  constexpr int64_t widest = 256;
  if (shape.causal && shape.head_dim > widest && op.backend().instance().computes_with_aten() &&
      !real_device(options_.device).is_cpu())
    return range_attention(tape, std::move(q), std::move(k), std::move(v), of_q, shape, into);
  if (op.query().guests) shared_kv.gradient->accept_deferred_queries();
  if (op.query().queries_alone) kv_gradient->close_to_deferred_queries();
  if (shape.rotary.dimensions > 0 && op.query().rotary_dim == 0)
    rotate(tape, q, k, v, of_q.positions, of_kv.positions, shape.head_dim, shape.rotary);
  // Positions on several axes are for the rotation before.
  const bool has_axes = of_q.positions.defined() && of_q.positions.dim() > 1;
  const Packing packing{of_q.cu_seqlens, of_kv.cu_seqlens, has_axes ? at::Tensor() : of_q.positions,
                        has_axes ? at::Tensor() : of_kv.positions};

  const auto rows = [&](const Heads& heads) { return heads_of(heads.value.data, heads, shape.head_dim); };
  Attention::Output output = op.forward(rows(q), rows(k), rows(v), packing,
                                        into.defined() ? into.unflatten(1, {q.count, shape.head_dim}) : into);
  Value y(output.out.flatten(1), records);
  if (!records) return y;
  if (!is_packed_qkv(q, k, v, shape.head_dim) && !op.query().queries_alone) announce(q, k, v, shape.head_dim);
  tape.push(
      [&op, q, k, v, packing, output, head_dim = shape.head_dim, out = y.gradient, shared_kv = shared_kv.gradient] {
        at::Tensor gradient = out->take();
        const DeferredQueries deferred = op.query().guests ? shared_kv->take_deferred_queries() : DeferredQueries();
        if (!gradient.defined() && deferred.defined()) gradient = at::zeros_like(output.out).flatten(1);
        if (!gradient.defined()) return;
        const at::Tensor d_out = gradient.unflatten(1, {q.count, head_dim});
        const auto rows = [&](const Heads& heads) { return heads_of(heads.value.data, heads, head_dim); };
        if (op.query().queries_alone) {
          k.value.gradient->defer_queries({rows(q), d_out, packing.cu_seqlens_q});
          if (q.value.requires_grad())
            q.value.gradient->add(op.backward(rows(q), rows(k), rows(v), packing, output, d_out).q.flatten(1));
          return;
        }
        add_gradients(q, k, v, head_dim, [&](const Attention::Gradients& d) {
          op.backward(rows(q), rows(k), rows(v), packing, output, d_out, d, deferred);
        });
      });
  return y;
}

// Each row attends to a range of rows.
Value Operations::range_attention(Tape& tape, Heads q, Heads k, Heads v, const Segments& segments,
                                  const AttentionShape& shape, const at::Tensor& into) {
  const bool records = tape.records(q.value, k.value, v.value);
  if (shape.rotary.dimensions > 0)
    rotate(tape, q, k, v, segments.positions, segments.positions, shape.head_dim, shape.rotary);
  const bool on_cpu = real_device(options_.device).is_cpu();
  at::Tensor bounds = segments.cu_seqlens;
  if (on_cpu && bounds.is_meta()) // in a dry run, where they are unknown: one segment, as long as any
    bounds = at::tensor({int64_t{0}, std::min(q.value.data.size(0), segments.max_length)}, at::kInt);
  reference::AttentionShape ranges{bounds, bounds, shape.score_factor / std::sqrt(static_cast<double>(shape.head_dim)),
                                   true};
  ranges.window = shape.window;
  ranges.last = segments.last;
  ranges.first = segments.first;
  ranges.softcap = shape.softcap;
  ranges.longest = segments.max_length;
  const auto operand = [on_cpu](const at::Tensor& x) { return on_cpu ? reference::upcast(x) : x; };
  const auto rows = [operand, dim = shape.head_dim](const Heads& heads) {
    return operand(heads_of(heads.value.data, heads, dim));
  };
  const at::Tensor out =
      (on_cpu ? reference::attention_by_segment : reference::attention_by_mask)(ranges, rows(q), rows(k), rows(v), {});
  Value y(into.defined() ? into.copy_(out.flatten(1)) : out.flatten(1).to(q.value.data.scalar_type()), records);
  if (!records) return y;
  if (!is_packed_qkv(q, k, v, shape.head_dim)) announce(q, k, v, shape.head_dim);
  tape.push([ranges, on_cpu, q, k, v, operand, rows, head_dim = shape.head_dim, out = y.gradient] {
    const at::Tensor gradient = out->take();
    if (!gradient.defined()) return;
    const at::Tensor d_out = operand(gradient).unflatten(1, {q.count, head_dim});
    const auto compute = on_cpu ? reference::attention_gradients_by_segment : reference::attention_gradients_by_mask;
    const auto [d_q, d_k, d_v] = compute(ranges, rows(q), rows(k), rows(v), d_out, {});
    add_gradients(q, k, v, head_dim, [&, &d_q = d_q, &d_k = d_k, &d_v = d_v](const Attention::Gradients& d) {
      d.q.copy_(d_q), d.k.copy_(d_k), d.v.copy_(d_v);
    });
  });
  return y;
}

Value Operations::bidirectional_attention(Tape& tape, Heads& q, Heads& k, Heads& v, const Segments& segments,
                                          const AttentionShape& shape, const at::Tensor& into) {
  if (!shape.causal || !segments.blocks.defined() || shape.softcap > 0) return {};
  auto query = attention_query(q, k, segments, segments, shape);
  if (query.window && segments.first.defined()) return {}; // which is outside of a window
  const BidirectionalAttention op(query, segments.blocks, [this](const fvlm_attention_query& part) -> const Attention& {
    return attention_for(part);
  });
  if (!op.has_plugins()) return {};
  const bool records = tape.records(q.value, k.value, v.value);
  if (shape.rotary.dimensions > 0)
    rotate(tape, q, k, v, segments.positions, segments.positions, shape.head_dim, shape.rotary);
  const Packing packing{segments.cu_seqlens, segments.cu_seqlens, {}, {}};
  const auto rows = [dim = shape.head_dim](const Heads& heads) { return heads_of(heads.value.data, heads, dim); };
  const auto output = op.forward(rows(q), rows(k), rows(v), packing,
                                 into.defined() ? into.unflatten(1, {q.count, shape.head_dim}) : into);
  Value y(output.out.flatten(1), records);
  if (!records) return y;
  if (!is_packed_qkv(q, k, v, shape.head_dim)) announce(q, k, v, shape.head_dim);
  tape.push([op, q, k, v, rows, packing, output, head_dim = shape.head_dim, out = y.gradient] {
    const at::Tensor gradient = out->take();
    if (!gradient.defined()) return;
    add_gradients(q, k, v, head_dim, [&](const Attention::Gradients& d) {
      op.backward(rows(q), rows(k), rows(v), packing, output, gradient.unflatten(1, {q.count, head_dim}), d);
    });
  });
  return y;
}

Value Operations::ring_attention(Tape& tape, Heads q, Heads k, Heads v, const Segments& segments,
                                 const AttentionShape& shape, const at::Tensor& into) {
  const bool records = tape.records(q.value, k.value, v.value);
  if (shape.rotary.dimensions > 0)
    rotate(tape, q, k, v, segments.positions, segments.positions, shape.head_dim, shape.rotary);
  const RingAttention ring(
      options_.context, attention_query(q, k, segments, segments, shape), segments.ring,
      [this](const fvlm_attention_query& query) -> const Attention& { return attention_for(query); });
  const auto rows = [dim = shape.head_dim](const Heads& heads) { return heads_of(heads.value.data, heads, dim); };
  MergedOutput output =
      ring.forward(rows(q), rows(k), rows(v), into.defined() ? into.unflatten(1, {q.count, shape.head_dim}) : into);
  Value y(output.out.flatten(1), records);
  if (!records) return y;
  if (!is_packed_qkv(q, k, v, shape.head_dim)) announce(q, k, v, shape.head_dim);
  tape.push([ring, q, k, v, rows, output, head_dim = shape.head_dim, out = y.gradient] {
    at::Tensor gradient = out->take();
    if (!gradient.defined()) gradient = at::zeros_like(output.out).flatten(1); // another rank may have one
    add_gradients(q, k, v, head_dim, [&](const Attention::Gradients& d) {
      ring.backward(rows(q), rows(k), rows(v), output, gradient.unflatten(1, {q.count, head_dim}), d);
    });
  });
  return y;
}

} // namespace fvlm::ops
