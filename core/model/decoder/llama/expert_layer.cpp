#include "model/decoder/llama/expert_layer.h"

#include "model/decoder/llama/config.h"
#include "ops/gates.h"
#include "ops/pointwise.h"

namespace fvlm::model {

ExpertLayer::ExpertLayer(const DecoderConfig& config, Parameters& parameters, const std::string& stem) {
  const llama::TensorNames names = llama::names_of(config);
  const auto fused = [&](std::vector<std::string> behind_stem) {
    for (std::string& name : behind_stem) name.insert(0, stem);
    return parameters.fused(behind_stem);
  };
  const auto [gate_up, down] = llama::expert_names(config);
  router_ = fused({names.router + std::string(".weight")});
  routing_.chosen = config.num_experts_per_tok;
  routing_.sigmoid = config.sigmoid_router;
  routing_.normalized = config.norm_topk_prob;
  routing_.epsilon = config.topk_sum_epsilon;
  routing_.scale = config.routed_scaling_factor;
  if (config.use_expert_bias) routing_.bias = fused({names.expert_bias});
  experts_ = {config.num_experts, fused(gate_up), fused(down)};
  const at::Tensor& numbers = router_.value(); // those of quantized experts have no memory
  products_ = ops::expert_products(numbers.device(), numbers.scalar_type(), config.num_experts, config.hidden_size,
                                   config.moe_intermediate_size);
  if (config.shared_expert_intermediate_size == 0) return;
  const std::string shared = names.shared;
  shared_gate_ = fused({names.shared_gate + std::string(".weight")});
  shared_up_.weight = fused({shared + "gate_proj.weight", shared + "up_proj.weight"});
  shared_down_.weight = fused({shared + "down_proj.weight"});
}

Value ExpertLayer::forward(Tape& tape, Operations& ops, const Value& x) const {
  const Value chosen = ops::mixture(tape, ops, x, ops.linear(tape, x, router_), routing_, experts_, products_);
  if (!shared_up_.weight.defined()) return chosen;
  Value shared = ops.swiglu_mlp(tape, x, shared_up_, shared_down_, {});
  shared = ops::gated_by_sigmoid(tape, shared, ops.linear(tape, x, shared_gate_));
  return ops::add(tape, shared, chosen);
}

} // namespace fvlm::model
