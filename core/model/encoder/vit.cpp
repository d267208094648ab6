#include "model/encoder/vit.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

namespace fvlm::model {
namespace {

constexpr VitLayer::Names layer_names{"layer_norm1",
                                      "self_attn.q_proj",
                                      "self_attn.k_proj",
                                      "self_attn.v_proj",
                                      "self_attn.out_proj",
                                      "layer_norm2",
                                      "mlp.fc1",
                                      "mlp.fc2",
                                      nullptr,
                                      nullptr};

VitEmbedding::Names embedding_names(const Vit::Traits& traits) {
  return {traits.class_token ? "class_embedding" : nullptr, "position_embedding.weight", "patch_embedding",
          traits.patch_bias};
}

// x [n * rows, width] without the first row of each frame.
Value without_class_tokens(Tape& tape, const Value& x, int64_t rows) {
  const int64_t width = x.data.size(1);
  const auto kept = [rows, width](const at::Tensor& all) { return all.view({-1, rows, width}).narrow(1, 1, rows - 1); };
  Value y(kept(x.data).reshape({-1, width}), tape.records(x));
  if (y.requires_grad())
    tape.push([kept, in = x.gradient, shape = x.data.sizes().vec(), out = y.gradient] {
      const at::Tensor d = out->take();
      if (!d.defined()) return;
      at::Tensor d_x = at::zeros(shape, d.options());
      const at::Tensor to = kept(d_x);
      to.copy_(d.view(to.sizes()));
      in->add(std::move(d_x));
    });
  return y;
}

} // namespace

Vit::Vit(const VisionConfig& config, const Traits& traits, Parameters& parameters)
    : config_(config), traits_(traits),
      drops_class_token_(traits.class_token && config.vision_feature_select_strategy == "default"),
      embedding_(config, embedding_names(traits), parameters) {
  const auto norm = [&](const std::string& name) -> VitNorm {
    return {parameters.weight(name + ".weight"), parameters.weight(name + ".bias"), config.layer_norm_eps};
  };
  if (traits.class_token) before_layers_ = norm("vision.pre_layrnorm");
  for (int64_t i = 0; i < config.layers_used(); ++i)
    layers_.emplace_back(config, fmt::format("vision.encoder.layers.{}.", i), layer_names, parameters);
  if (traits.output_normed && !config.vision_feature_layer) output_ = norm("vision.post_layernorm");
}

Value Vit::forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens) const {
  const Tape::LightCheckpointing lean(tape, recompute.light);
  const int64_t heads = config_.num_attention_heads, width = config_.hidden_size, head_dim = config_.head_dim(),
                rows = embedding_.tokens(frames.size(2), frames.size(3));
  // `tokens` has one row less for each frame where the output lacks the class tokens.
  const auto all_rows = [&] {
    const auto options = tokens.cu_seqlens.options();
    return Segments{at::arange(0, (frames.size(0) + 1) * rows, rows, options), {}, rows, tokens.uniform_lengths};
  };
  const Segments segments = drops_class_token_ ? all_rows() : tokens;
  Value x = embedding_(tape, ops, frames);
  if (before_layers_.weight.defined()) x = before_layers_(tape, ops, x);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto block = [&ops, &layer = layers_[i], heads, width, head_dim, segments](Tape& inner,
                                                                                     const std::vector<Value>& in) {
      const Value qkv = layer.queries_keys_values(inner, ops, in[0]);
      const Value attended_rows = ops.attention(inner, {qkv, 0, heads}, {qkv, width, heads}, {qkv, 2 * width, heads},
                                                segments, segments, {head_dim});
      return std::vector<Value>{layer.finish(inner, ops, in[0], attended_rows)};
    };
    x = (recompute.layer(static_cast<int64_t>(i)) ? ops::checkpointed(tape, {x}, block) : block(tape, {x}))[0];
  }
  if (drops_class_token_) x = without_class_tokens(tape, x, rows);
  return output_.weight.defined() ? output_(tape, ops, x) : x;
}

double Vit::flops(int64_t tokens, bool trains) const {
  const int64_t rows = tokens + (drops_class_token_ ? 1 : 0), patches = rows - (traits_.class_token ? 1 : 0),
                layers = config_.layers_used();
  return vit_frame_flops(config_, rows, patches, layers, layers, trains);
}

} // namespace fvlm::model
