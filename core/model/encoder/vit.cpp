#include "model/encoder/vit.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

namespace fvlm::model {
namespace {

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

// The columns of all of them.
Value side_by_side(Tape& tape, const std::vector<Value>& parts) {
  std::vector<at::Tensor> columns;
  for (const Value& part : parts) columns.push_back(part.data);
  Value y(at::concat(columns, 1), std::ranges::any_of(parts, [&](const Value& part) { return tape.records(part); }));
  if (y.requires_grad())
    tape.push([parts, out = y.gradient] {
      const at::Tensor d = out->take();
      if (!d.defined()) return;
      int64_t first = 0;
      for (const Value& part : parts) {
        const int64_t width = part.data.size(1);
        if (part.requires_grad()) part.gradient->add(d.narrow(1, first, width).contiguous());
        first += width;
      }
    });
  return y;
}

} // namespace

Vit::Traits Vit::clip_traits(bool class_token, bool patch_bias, bool output_normed) {
  return {.embedding = {class_token ? "class_embedding" : nullptr, "position_embedding.weight", "patch_embedding",
                        patch_bias},
          .input_norm = class_token ? "pre_layrnorm" : nullptr,
          .layers = "encoder.layers.",
          .layer = {.before_attention = "layer_norm1",
                    .query = "self_attn.q_proj",
                    .key = "self_attn.k_proj",
                    .value = "self_attn.v_proj",
                    .out = "self_attn.out_proj",
                    .before_mlp = "layer_norm2",
                    .up = "mlp.fc1",
                    .down = "mlp.fc2"},
          .output_norm = output_normed ? "post_layernorm" : nullptr};
}

Vit::Vit(const VisionConfig& config, const Traits& traits, Parameters& parameters)
    : config_(config), has_class_token_(traits.embedding.class_token != nullptr),
      drops_class_token_(has_class_token_ && config.vision_feature_select_strategy == "default"),
      embedding_(config, traits.embedding, parameters) {
  const auto norm = [&](const std::string& name, bool bias) -> VitNorm {
    return {parameters.weight("vision." + name + ".weight"),
            bias ? parameters.weight("vision." + name + ".bias") : ops::Weight(), config.layer_norm_eps};
  };
  if (traits.input_norm) before_layers_ = norm(traits.input_norm, true);
  for (int64_t i = 0; i < config.layers_used(); ++i)
    layers_.emplace_back(config, fmt::format("vision.{}{}.", traits.layers, i), traits.layer, parameters);
  if (traits.output_norm && config.vision_feature_layers.empty())
    output_ = norm(traits.output_norm, traits.output_bias);
}

std::vector<Value> Vit::forward_with_layers(Tape& tape, Operations& ops, const at::Tensor& frames,
                                            const Segments& tokens, const PackMaps&) const {
  const Tape::LightCheckpointing lean(tape, recompute.light);
  const int64_t rows = embedding_.tokens(frames.size(2), frames.size(3));
  // `tokens` has one row less for each frame where the output lacks the class tokens.
  const auto all_rows = [&] {
    const auto options = tokens.cu_seqlens.options();
    return Segments{at::arange(0, (frames.size(0) + 1) * rows, rows, options), {}, rows, tokens.uniform_lengths};
  };
  const Segments segments = drops_class_token_ ? all_rows() : tokens;
  Value x = embedding_(tape, ops, frames);
  if (before_layers_.weight.defined()) x = before_layers_(tape, ops, x);
  std::vector<Value> features(config_.vision_feature_layers.size()), out(1);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto block = [&ops, &layer = layers_[i], segments](Tape& inner, const std::vector<Value>& in) {
      return std::vector<Value>{layer.finish(inner, ops, in[0], layer.attend(inner, ops, in[0], segments))};
    };
    x = (recompute.layer(static_cast<int64_t>(i)) ? ops::checkpointed(tape, {x}, block) : block(tape, {x}))[0];
    for (size_t place = 0; place < features.size(); ++place)
      if (config_.from_first(config_.vision_feature_layers[place]) == static_cast<int64_t>(i) + 1) features[place] = x;
    if (std::ranges::count(config_.deepstack_visual_indexes, i) > 0) out.push_back(x);
  }
  if (features.size() > 1) x = side_by_side(tape, features);
  if (drops_class_token_) x = without_class_tokens(tape, x, rows);
  out[0] = output_.weight.defined() ? output_(tape, ops, x) : x;
  return out;
}

double Vit::flops(int64_t tokens, bool trains) const {
  const int64_t rows = tokens + (drops_class_token_ ? 1 : 0), patches = rows - (has_class_token_ ? 1 : 0),
                layers = config_.layers_used();
  return vit_frame_flops(config_, rows, patches, layers, layers, trains);
}

} // namespace fvlm::model
