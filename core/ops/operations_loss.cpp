// The language model's head with cross-entropy.
#include "ops/operations.h"

#include <ATen/core/Tensor.h>

namespace fvlm::ops {

// Kept from pack to pack, since converting the table of a large vocabulary takes as long as products of few rows.
const at::Tensor& Operations::head_values(const Weight& head, at::ScalarType dtype) {
  const at::Tensor& stored = head.is_quantized() ? head.packed().front() : head.value();
  if (stored.scalar_type() == dtype) return stored;
  if (!head_.stored.is_same(stored))
    head_ = {stored, (head.is_quantized() ? quantizer_for(head, 0).unpack(head.packed()) : stored).to(dtype)};
  return head_.converted;
}

Value Operations::cross_entropy(Tape& tape, const Value& hidden, const Weight& head, const at::Tensor& targets,
                                double softcap) {
  const bool records = tape.records(hidden, head);
  const Loss& op = loss_for(hidden, head, records, softcap);
  const auto dtype = hidden.data.scalar_type();
  // A head that learns changes in place.
  const at::Tensor values = head.requires_grad() ? head.value().to(dtype) : head_values(head, dtype);
  const Loss::Inputs inputs{hidden.data, values, targets};
  Loss::Output output = op.forward(inputs);
  Value losses(output.losses, records);
  if (!records) return losses;
  tape.push([&op, inputs, output, head, in = hidden.gradient, out = losses.gradient] {
    const at::Tensor d_losses = out->take();
    if (!d_losses.defined()) return;
    Loss::Gradients d = op.backward(inputs, output, d_losses, {{}, head.gradient()}, Weight::begin_write(head));
    if (in) in->add(std::move(d.hidden));
  });
  return losses;
}

at::Tensor Operations::weighted_cross_entropy(Tape& tape, const Value& hidden, const Weight& head,
                                              const at::Tensor& targets, const at::Tensor& weights, double softcap) {
  // A pass whose backward steps are discarded must not write gradients either.
  if (!tape.keeps_steps() || !tape.records(hidden, head))
    return cross_entropy(tape, hidden, head, targets, softcap).data;
  const Loss& op = loss_for(hidden, head, true, softcap);
  const at::Tensor& values = head.is_quantized() ? head_values(head, hidden.data.scalar_type()) : head.value();
  Loss::Fused fused =
      op.fused({hidden.data, values, targets}, weights, {{}, head.gradient()}, Weight::begin_write(head));
  if (hidden.requires_grad())
    tape.push([d = fused.gradients.hidden, in = hidden.gradient]() mutable { in->add(std::move(d)); });
  return fused.losses;
}

} // namespace fvlm::ops
