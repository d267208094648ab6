// Attention over heads that lie in wider values, and the rotation before it.
#include "base/error.h"
#include "ops/operations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace fvlm::ops {
namespace {

at::Tensor heads_of(const at::Tensor& rows, const Heads& heads, int64_t head_dim) {
  return rows.narrow(1, heads.column, heads.count * head_dim).unflatten(1, {heads.count, head_dim});
}

// Where the gradients of q, k and v go: straight into their values' gradients where nothing lies there yet, else beside
// and added afterwards. k and v are columns of one value, or of two.
class Destinations {
 public:
  Destinations(const Heads& q, const Heads& k, const Heads& v, int64_t head_dim) : heads_{&q, &k, &v} {
    for (size_t i = 0; i < 3; ++i) {
      const Value& value = heads_[i]->value;
      const auto shape = std::vector<int64_t>{value.data.size(0), heads_[i]->count, head_dim};
      bool direct = false;
      if (i == 2 && value.wants_gradient() && value.gradient == heads_[1]->value.gradient) {
        wholes_[2] = wholes_[1];
        direct = !beside_[1];
      } else if (value.wants_gradient()) {
        direct = value.gradient->empty();
        if (direct) value.gradient->add(memory_for(i, head_dim));
        wholes_[i] = value.gradient->whole(value.data.sizes(), value.data.options());
      }
      memory_[i] = direct ? heads_of(wholes_[i], *heads_[i], head_dim) : at::empty(shape, value.data.options());
      beside_[i] = !direct && value.wants_gradient();
    }
    if (!beside_[2] || !wholes_[2].is_same(wholes_[1]) || k.column != 0 || v.column != k.count * head_dim ||
        wholes_[1].size(1) != (k.count + v.count) * head_dim)
      return;
    both_ = at::empty_like(wholes_[1]);
    memory_[1] = heads_of(both_, k, head_dim);
    memory_[2] = heads_of(both_, v, head_dim);
  }
  Attention::Gradients into() const { return {memory_[0], memory_[1], memory_[2]}; }
  void add_what_lies_beside(int64_t head_dim) const {
    if (both_.defined()) wholes_[1].add_(both_);
    for (size_t i = 0; i < (both_.defined() ? 1 : 3); ++i)
      if (beside_[i]) heads_of(wholes_[i], *heads_[i], head_dim).add_(memory_[i]);
  }

 private:
  // For the gradient of the value of q, or of k and v: zeros in the columns where nothing will be written.
  at::Tensor memory_for(size_t i, int64_t head_dim) const {
    at::Tensor memory = at::empty_like(heads_[i]->value.data);
    const bool both = i == 1 && heads_[2]->value.gradient == heads_[1]->value.gradient;
    const int64_t width = memory.size(1), begin = heads_[i]->column;
    int64_t end = begin + heads_[i]->count * head_dim;
    if (both && heads_[2]->column == end) end += heads_[2]->count * head_dim;
    if (both && heads_[2]->column + heads_[2]->count * head_dim > end) return memory.zero_();
    memory.narrow(1, 0, begin).zero_();
    memory.narrow(1, end, width - end).zero_();
    return memory;
  }

  std::array<const Heads*, 3> heads_;
  std::array<at::Tensor, 3> wholes_, memory_;
  std::array<bool, 3> beside_{};
  at::Tensor both_; // memory of k and v beside, where they fill their value: added at once
};

bool lie_together(const Heads& q, const Heads& k, const Heads& v, int64_t head_dim) {
  return q.value.wants_gradient() && q.value.gradient == k.value.gradient && k.value.gradient == v.value.gradient &&
         (q.count + k.count + v.count) * head_dim == q.value.data.size(1);
}

} // namespace

// Where the plugin does not rotate. q and k lie side by side in one value, or each at the beginning of its own.
void Operations::rotate_before(Tape& tape, Heads& q, Heads& k, Heads& v, const Segments& of_q, const Segments& of_kv,
                               const AttentionShape& shape) {
  const bool together = q.value.data.is_same(k.value.data);
  if (q.column != 0 || k.column != (together ? q.count * shape.head_dim : 0))
    throw Error(ErrorKind::internal, "rotation wants q and k at the beginning of their rows");
  const Value before = k.value;
  q.value = rotate(tape, q.value, together ? q.count + k.count : q.count, shape.head_dim, shape.rotary, of_q.positions);
  k.value = together ? q.value : rotate(tape, k.value, k.count, shape.head_dim, shape.rotary, of_kv.positions);
  if (v.value.data.is_same(before.data)) v.value = k.value;
}

Value Operations::attention(Tape& tape, Heads q, Heads k, Heads v, const Segments& of_q, const Segments& of_kv,
                            const AttentionShape& shape, const at::Tensor& into, const Value& lent) {
  const bool records = tape.records(q.value, k.value, v.value);
  fvlm_attention_query query{};
  query.struct_size = sizeof query;
  query.causal = shape.causal;
  query.device = abi_device(options_.device);
  query.dtype = abi_dtype(options_.dtype);
  query.heads_q = static_cast<int32_t>(q.count);
  query.heads_kv = static_cast<int32_t>(k.count);
  query.head_dim = static_cast<int32_t>(shape.head_dim);
  query.max_seqlen_q = static_cast<int32_t>(of_q.longest);
  query.max_seqlen_kv = static_cast<int32_t>(of_kv.longest);
  query.rotary_dim = static_cast<int32_t>(shape.rotary.dimensions);
  query.rope_theta = static_cast<float>(shape.rotary.theta);
  query.tokens_q = q.value.data.size(0);
  query.tokens_kv = k.value.data.size(0);
  query.segments = of_q.starts.size(0) - 1;
  query.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  query.needs_backward = records;
  query.even = of_q.even && of_kv.even;
  query.guests = records && lent.wants_gradient() && lie_together(q, k, v, shape.head_dim);
  const auto& of_keys = k.value.gradient;
  query.queries_alone = records && of_q.longest == 1 && of_keys && of_keys == v.value.gradient && of_keys->is_open() &&
                        q.value.data.size(1) == q.count * shape.head_dim;
  const Attention& op = attention_for(query);
  if (op.query().guests) lent.gradient->open_to_guests();
  if (op.query().queries_alone) of_keys->close();
  if (shape.rotary.dimensions > 0 && op.query().rotary_dim == 0) rotate_before(tape, q, k, v, of_q, of_kv, shape);
  const Packing packing{of_q.starts, of_kv.starts, of_q.positions, of_kv.positions};

  const auto rows = [&](const Heads& heads) { return heads_of(heads.value.data, heads, shape.head_dim); };
  Attention::Output output = op.forward(rows(q), rows(k), rows(v), packing,
                                        into.defined() ? into.unflatten(1, {q.count, shape.head_dim}) : into);
  Value y(output.out.flatten(1), records);
  if (!records) return y;
  tape.push([&op, q, k, v, packing, output, head_dim = shape.head_dim, out = y.gradient, lent = lent.gradient] {
    at::Tensor gradient = out->take();
    const Guests guests = op.query().guests ? lent->take_guests() : Guests();
    if (!gradient.defined() && guests.defined()) gradient = at::zeros_like(output.out).flatten(1);
    if (!gradient.defined()) return;
    const at::Tensor d_out = gradient.unflatten(1, {q.count, head_dim});
    const auto rows = [&](const Heads& heads) { return heads_of(heads.value.data, heads, head_dim); };
    if (lie_together(q, k, v, head_dim)) {
      at::Tensor d = q.value.gradient->memory(q.value.data);
      const auto part = [&](const Heads& heads) { return heads_of(d, heads, head_dim); };
      op.backward(rows(q), rows(k), rows(v), packing, output, d_out, {part(q), part(k), part(v)}, guests);
      q.value.gradient->add(std::move(d));
      return;
    }
    if (op.query().queries_alone) {
      k.value.gradient->leave({rows(q), d_out, packing.cu_seqlens_q});
      if (q.value.wants_gradient())
        q.value.gradient->add(op.backward(rows(q), rows(k), rows(v), packing, output, d_out).q.flatten(1));
      return;
    }
    const Destinations d(q, k, v, head_dim);
    op.backward(rows(q), rows(k), rows(v), packing, output, d_out, d.into());
    d.add_what_lies_beside(head_dim);
  });
  return y;
}

} // namespace fvlm::ops
