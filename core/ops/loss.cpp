#include "ops/loss.h"

namespace fvlm::ops {

at::Tensor Loss::new_losses(const Inputs& inputs) const {
  const auto type = inputs.hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return output({}, inputs.targets.sizes(), type);
}

Loss::Gradients Loss::outputs(const Inputs& inputs, const Gradients& into) const {
  Gradients gradients;
  if (query().needs_d_hidden)
    gradients.hidden = output(into.hidden, inputs.hidden.sizes(), inputs.hidden.scalar_type());
  if (query().needs_d_weight)
    gradients.weight = output(into.weight, inputs.weight.sizes(), scalar_type(query().gradient_dtype));
  return gradients;
}

Loss::Output Loss::forward(const Inputs& inputs) const {
  Output output{new_losses(inputs), {}};
  if (query().needs_d_hidden || query().needs_d_weight) output.saved = make_saved();
  BoundArguments<fvlm_loss_forward> arguments;
  arguments.hidden = arguments.bind(inputs.hidden);
  arguments.weight = arguments.bind(inputs.weight);
  arguments.targets = arguments.bind(inputs.targets);
  arguments.losses = arguments.bind(output.losses);
  arguments.bind(arguments.saved, output.saved);
  run("loss forward", backend().table().forward, arguments);
  return output;
}

Loss::Gradients Loss::backward(const Inputs& inputs, const Output& output, const at::Tensor& d_losses,
                               const Gradients& into, bool accumulate) const {
  Gradients gradients = outputs(inputs, into);
  BoundArguments<fvlm_loss_backward> arguments;
  arguments.accumulate_d_weight = accumulate;
  arguments.hidden = arguments.bind(inputs.hidden);
  arguments.weight = arguments.bind(inputs.weight);
  arguments.targets = arguments.bind(inputs.targets);
  arguments.d_losses = arguments.bind(d_losses);
  arguments.bind(arguments.saved, output.saved);
  arguments.d_hidden = arguments.bind(gradients.hidden);
  arguments.d_weight = arguments.bind(gradients.weight);
  run("loss backward", backend().table().backward, arguments, &fvlm_requirements::backward_workspace);
  return gradients;
}

Loss::Fused Loss::fused(const Inputs& inputs, const at::Tensor& d_losses, const Gradients& into,
                        bool accumulate) const {
  if (!backend().table().fused) {
    const Output output = forward(inputs);
    return {output.losses, backward(inputs, output, d_losses, into, accumulate)};
  }
  Fused fused{new_losses(inputs), outputs(inputs, into)};
  BoundArguments<fvlm_loss_fused> arguments;
  arguments.accumulate_d_weight = accumulate;
  arguments.hidden = arguments.bind(inputs.hidden);
  arguments.weight = arguments.bind(inputs.weight);
  arguments.targets = arguments.bind(inputs.targets);
  arguments.d_losses = arguments.bind(d_losses);
  arguments.losses = arguments.bind(fused.losses);
  arguments.d_hidden = arguments.bind(fused.gradients.hidden);
  arguments.d_weight = arguments.bind(fused.gradients.weight);
  run("loss fused", backend().table().fused, arguments, &fvlm_requirements::backward_workspace);
  return fused;
}

} // namespace fvlm::ops
