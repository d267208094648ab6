#include "model/connector/foveated/projections.h"

#include "ops/rows.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/zeros.h>

namespace fvlm::model {

Projections::Projections(double visual_scale, Parameters& parameters) : visual_scale_(visual_scale) {
  const auto linear = [&](const std::string& name) -> ops::Operations::Layer {
    return {parameters.weight(name + ".weight"), parameters.weight(name + ".bias")};
  };
  static_ = parameters.weight("q_static");
  first_ = parameters.weight("q_init");
  input_ = parameters.weight("query_input_proj.weight");
  output_ = linear("output_proj");
  to_decoder_ = linear("dino_to_llm");
  to_query_ = linear("llm_to_query");
}

Value Projections::static_query(Tape& tape, int64_t frames) const {
  return ops::broadcast_row(tape, static_, frames);
}

Value Projections::first_query(Tape& tape, int64_t frames) const {
  return ops::broadcast_row(tape, first_, frames);
}

Value Projections::query_from_hidden(Tape& tape, Operations& ops, const Value& hidden) const {
  return ops.linear(tape, hidden, to_query_.weight, to_query_.bias);
}

Value Projections::shift_right(Tape& tape, const Value& queries, const at::Tensor& source) const {
  const int64_t frames = queries.data.size(0);
  Value y(at::concat({queries.data, first_.value()}).index_select(0, source), tape.records(queries, first_));
  if (!y.requires_grad()) return y;
  tape.push([first = first_, source, frames, in = queries.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const at::Tensor d = at::zeros({frames + 1, d_y.size(1)}, d_y.options()).index_add_(0, source, d_y);
    if (in) in->add(d.narrow(0, 0, frames));
    if (first.requires_grad()) first.add_gradient(d.narrow(0, frames, 1));
  });
  return y;
}

Value Projections::project_query(Tape& tape, Operations& ops, const Value& queries) const {
  return ops.linear(tape, queries, input_);
}

Value Projections::to_visual_tokens(Tape& tape, Operations& ops, const Value& attended) const {
  const Value projected = ops.linear(tape, attended, output_.weight, output_.bias);
  return ops::scale(tape, ops.linear(tape, projected, to_decoder_.weight, to_decoder_.bias), visual_scale_);
}

} // namespace fvlm::model
