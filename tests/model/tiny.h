// A tiny fVLM with seeded weights that do not degenerate, and samples for it.
#pragma once
#include "../ops/tools.h"
#include "model/connector/foveated/settings.h"
#include "model/objectives.h"

#include <ATen/Parallel.h>

#include <set>

namespace fvlm::model {

inline ModelConfig tiny_config() {
  ModelConfig config;
  config.vision.model_type = "dinov2";
  config.vision.hidden_size = 16;
  config.vision.num_hidden_layers = 3;
  config.vision.num_attention_heads = 2;
  config.vision.intermediate_size = 32;
  config.vision.image_size = 8;
  config.vision.patch_size = 4;
  config.vision.num_channels = 3;
  config.vision.layer_norm_eps = 1e-6;
  config.decoder.model_type = "llama";
  config.decoder.vocab_size = 53;
  config.decoder.hidden_size = 24;
  config.decoder.intermediate_size = 40;
  config.decoder.num_hidden_layers = 2;
  config.decoder.num_attention_heads = 4;
  config.decoder.num_key_value_heads = 2;
  config.decoder.head_dim = 6;
  config.decoder.max_position_embeddings = 512;
  config.decoder.rope_theta = 1e4;
  config.decoder.rms_norm_eps = 1e-5;
  config.decoder.tie_word_embeddings = true;
  connector::Foveated connector;
  connector.query_dim = 12;
  config.connector = connector;
  return config;
}

// A decoder of one layer with a convolution, and one with attention.
inline ModelConfig convolving_config(ModelConfig config = tiny_config()) {
  DecoderConfig& decoder = config.decoder;
  decoder.model_type = "lfm2";
  for (int64_t i = 0; i < decoder.num_hidden_layers; ++i) decoder.conv_layers.push_back(i % 2 == 0);
  decoder.conv_taps = 3;
  decoder.qk_norm = decoder.operator_names = true;
  return config;
}

// A decoder of one layer with a gated delta rule, and one with attention.
inline ModelConfig recurrent_config(ModelConfig config = tiny_config()) {
  DecoderConfig& decoder = config.decoder;
  decoder.model_type = "qwen3_5_text";
  for (int64_t i = 0; i < decoder.num_hidden_layers; ++i) decoder.delta_layers.push_back(i % 2 == 0);
  decoder.conv_taps = 4;
  decoder.delta_key_heads = 2;
  decoder.delta_value_heads = 4;
  decoder.delta_key_dim = 8;
  decoder.delta_value_dim = 12;
  decoder.rms_norm_eps = 1e-3;
  decoder.partial_rotary_factor = 4 / static_cast<double>(decoder.head_dim);
  decoder.qk_norm = decoder.unit_offset = decoder.gated_attention = true;
  return config;
}

// A later write to a gradient that was reported as complete throws (ops::Parameter::is_complete).
class CompletenessCheck : public ops::GradientMarks {
 public:
  explicit CompletenessCheck(Parameters& parameters) : parameters_(parameters) {
    for (const ops::Parameter& parameter : parameters.all())
      if (parameter.gradient.defined()) trained_.insert(&parameter);
  }
  ~CompletenessCheck() override {
    for (ops::Parameter& parameter : parameters_.all()) {
      EXPECT_EQ(parameter.is_complete, parameter.gradient.defined()) << parameter.name;
      parameter.is_complete = false;
    }
  }
  bool is_first_use(ops::Parameter& parameter) override {
    return trained_.contains(&parameter) && used_.insert(&parameter).second;
  }
  void begin_backward() override {
    for (ops::Parameter& parameter : parameters_.all())
      if (parameter.gradient.defined() && !used_.contains(&parameter)) complete(parameter);
  }
  void complete(ops::Parameter& parameter) override { parameter.is_complete = true; }

 private:
  Parameters& parameters_;
  std::set<const ops::Parameter*> trained_, used_;
};

// A model, and the operations it runs on: the references, in `dtype`.
struct Tiny {
  explicit Tiny(
      const ModelConfig& config = tiny_config(), at::ScalarType dtype = at::kDouble,
      std::function<bool(const ParameterSpec&)> trains = [](const ParameterSpec&) { return true; })
      : model(config, {at::kCPU, dtype, dtype, std::move(trains)}) {
    at::set_num_threads(1); // its tensors are too small to share
    registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
    operations.emplace(registry, ops::OperationsOptions{.dtype = dtype, .gradient_dtype = dtype});
    uint64_t seed = 1;
    for (auto& parameter : model.parameters().all()) {
      const at::Tensor noise = ops::random(parameter.value.sizes(), ++seed);
      const bool is_scale = parameter.name.ends_with("norm.weight") || parameter.name.ends_with("norm1.weight") ||
                            parameter.name.ends_with("norm2.weight") || parameter.name.ends_with("lambda1");
      const double width = static_cast<double>(parameter.value[0].numel());
      if (is_scale)
        parameter.value.copy_(noise.mul(0.2).add(0.8));
      else
        parameter.value.copy_(parameter.value.dim() < 2 ? noise.mul(0.2) : noise.mul(1 / std::sqrt(width)));
    }
  }

  Pack pack(const std::vector<Sample>& samples, const Capacity& capacity) {
    return make_pack(samples, capacity, model.frame_reader(8, 8), operations->tensor_options());
  }
  Pack pack(const std::vector<Sample>& samples) { return pack(samples, Capacity::of(samples, 1)); }

  // Forward and backward of next-token prediction. Gradients add to those of the step.
  at::Tensor losses(const Pack& pack, const at::Tensor& weights, const std::string& mode = "coarse_fine") {
    ops::Tape tape;
    CompletenessCheck check(model.parameters());
    tape.set_marks(&check);
    const auto visual = model.encode(tape, *operations, pack, mode);
    const auto hidden = model.decode(tape, *operations, visual.tokens, pack, visual.next);
    at::Tensor losses = next_token_loss(tape, *operations, model, hidden, pack, weights);
    tape.backward();
    return losses;
  }
  at::Tensor ones(const Pack& pack) {
    return pack.labels.targets.ge(0).to(operations->options().dtype == at::kDouble ? at::kDouble : at::kFloat);
  }
  // A copy of every gradient; the next step begins anew.
  std::map<std::string, at::Tensor> take_gradients() {
    std::map<std::string, at::Tensor> all;
    model.parameters().zero_missing_gradients();
    for (const auto& parameter : model.parameters().all())
      if (parameter.gradient.defined()) all[parameter.name] = parameter.gradient.clone();
    model.parameters().reset_gradients();
    return all;
  }

  Registry registry{RegistryOptions{}};
  std::optional<ops::Operations> operations;
  Model model;
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  int64_t upto(int64_t least, int64_t most) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return least + static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(most - least + 1));
  }

 private:
  uint64_t state_;
};

inline Sample random_sample(Dice& dice, int64_t frames, int64_t tokens, int64_t texts = 1) {
  Sample sample;
  if (frames > 0)
    sample.frames = ops::random({frames, 3, 8, 8}, static_cast<uint64_t>(dice.upto(1, 1 << 30)), at::kFloat);
  for (int64_t which = 0; which < texts; ++which) {
    Text& text = sample.texts.emplace_back();
    for (int64_t i = 0; i < tokens; ++i) {
      text.tokens.push_back(dice.upto(0, 52));
      text.is_label.push_back(dice.upto(0, 3) > 0);
    }
  }
  return sample;
}

} // namespace fvlm::model
