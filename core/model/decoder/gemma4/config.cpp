// The family of Gemma 4's decoders (transformers' Gemma4ForCausalLM, without a mixture of experts): Gemma 3's layers
// with heads of two sizes, layers that read the keys and values of an earlier one, and tables of tokens for each layer.
#include "model/weights/model_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace fvlm {
namespace {

constexpr const char *layer_types_key = "layer_types", *full_attention = "full_attention",
                     *sliding_attention = "sliding_attention", *by_layer_key = "per_layer_config",
                     *activation_key = "hidden_activation", *activation = "gelu_pytorch_tanh",
                     *cap_key = "final_logit_softcapping";
constexpr int64_t most_positions = int64_t{1} << 30;

void read_layer_types(ConfigReader& config, DecoderConfig& out) {
  const std::vector<std::string> layers = config.texts(layer_types_key);
  const auto count = static_cast<size_t>(out.num_hidden_layers);
  config.refuse_unless(layers.empty() || layers.size() == count, layer_types_key,
                       fmt::format("there are {} layers, and each has an entry", count));
  config.refuse_unless(
      std::ranges::all_of(layers, [](const auto& one) { return one == full_attention || one == sliding_attention; }),
      layer_types_key, fmt::format("an entry is {} or {}", full_attention, sliding_attention));
  for (size_t i = 0; i < count; ++i)
    out.sliding_layers.push_back(layers.size() == count ? layers[i] == sliding_attention : (i + 1) % 6 != 0);
  out.sliding_layers.back() = 0; // whatever the config says
}

// The size of the heads of layers without a window: `global_head_dim`, or what transformers 5.20 and later write for
// each layer.
int64_t read_global_head_dim(ConfigReader& config, const DecoderConfig& decoder) {
  const nlohmann::json* by_layer = config.object(by_layer_key);
  if (!by_layer) return config.whole("global_head_dim", 512, 2, most_heads);
  const auto own_of = [&](int64_t layer) { // keys are numbers, with zeros before them or without
    static const nlohmann::json nothing = nlohmann::json::object();
    for (const auto& [key, own] : by_layer->items())
      if (std::atoll(key.c_str()) == layer && own.is_object()) return own;
    return nothing;
  };
  int64_t size = 0;
  for (int64_t i = 0; i < decoder.num_hidden_layers; ++i) {
    const nlohmann::json own = own_of(i);
    ConfigReader layer(own, config.where());
    const int64_t dim = layer.whole("head_dim", decoder.head_dim, 2, most_heads);
    if (size == 0 && !decoder.has_window(i)) size = dim;
    layer.refuse_unless(dim == (decoder.has_window(i) ? decoder.head_dim : size), "head_dim",
                        "layers of one type have heads of one size");
    layer.refuse_unless(layer.whole("num_key_value_heads", decoder.num_key_value_heads, 1, most_heads) ==
                            decoder.num_key_value_heads,
                        "num_key_value_heads", "all layers have as many");
    for (const std::string& problem : layer.problems().list())
      config.problems().add("{}: {}: {}", by_layer_key, i, problem);
  }
  return size;
}

void check_heads(ConfigReader& config, const DecoderConfig& decoder) {
  if (decoder.head_dim % 2 || decoder.global_head_dim % 2)
    config.problems().add("heads of {} and {} features: rotary positions turn pairs of features", decoder.head_dim,
                          decoder.global_head_dim);
  if (decoder.num_attention_heads % decoder.num_key_value_heads)
    config.problems().add("'num_key_value_heads' = {} is no divisor of 'num_attention_heads' = {}",
                          decoder.num_key_value_heads, decoder.num_attention_heads);
  for (int64_t i = 0; i < decoder.num_hidden_layers; ++i)
    if (decoder.kv_layer(i) < 0)
      return config.problems().add("'num_kv_shared_layers' = {}: layer {} would read the keys of a layer of its type "
                                   "before those, and there is none",
                                   decoder.num_kv_shared_layers, i);
}

void refuse_unsupported(ConfigReader& config) {
  config.refuse_unless(config.text(activation_key, activation) == activation, activation_key,
                       fmt::format("only {} is", activation));
  config.refuse_unless(config.number("attention_dropout", 0, 0, 1) == 0, "attention_dropout",
                       "towers are trained without dropout; set it to 0");
  config.refuse_unless(!config.flag("attention_k_eq_v", false), "attention_k_eq_v",
                       "values have a product of their own, as in E2B and E4B");
  config.refuse_unless(!config.flag("enable_moe_block", false), "enable_moe_block",
                       "the MLP is one, not a mixture of experts, as in E2B and E4B");
  config.refuse_unless(!config.has("use_bidirectional_attention"), "use_bidirectional_attention",
                       "a row attends to itself and those before it, as in E2B and E4B");
}

DecoderConfig read(ConfigReader& config, const std::string& model_type) {
  DecoderConfig out;
  out.model_type = model_type;
  out.vocab_size = config.whole("vocab_size", 262144, 1);
  out.hidden_size = config.whole("hidden_size", 2304, 1, most_features);
  out.intermediate_size = config.whole("intermediate_size", 9216, 1, most_features);
  out.num_hidden_layers = config.whole("num_hidden_layers", 30, 1, most_layers);
  out.num_attention_heads = config.whole("num_attention_heads", 8, 1, most_heads);
  out.num_key_value_heads = config.whole("num_key_value_heads", 4, 1, most_heads);
  out.head_dim = config.whole("head_dim", 256, 2, most_heads);
  out.max_position_embeddings = config.whole("max_position_embeddings", int64_t{1} << 17, 1, most_positions);
  read_layer_types(config, out);
  out.sliding_window = config.whole("sliding_window", 512, 1, most_positions);
  out.global_head_dim = read_global_head_dim(config, out);
  out.local_rope_theta = Rope::default_theta;
  Rope rope{.theta = 1e6, .scaling = {.rotated_part = 0.25}};
  read_sliding_rope(config, *out.local_rope_theta);
  read_proportional_rope(config, rope);
  out.rope_theta = rope.theta;
  out.rope_scaling = rope.scaling;
  out.num_kv_shared_layers = config.whole("num_kv_shared_layers", 0, 0, out.num_hidden_layers - 1);
  out.use_double_wide_mlp = config.flag("use_double_wide_mlp", false);
  out.hidden_size_per_layer_input = config.whole("hidden_size_per_layer_input", 256, 0, most_features);
  out.vocab_size_per_layer_input = config.whole("vocab_size_per_layer_input", 262144, 1);
  if (out.hidden_size_per_layer_input > 0) {
    if (out.vocab_size_per_layer_input < out.vocab_size)
      config.problems().add("'vocab_size_per_layer_input' = {} is less than 'vocab_size' = {}",
                            out.vocab_size_per_layer_input, out.vocab_size);
    if (config.has("pad_token_id"))
      config.refuse_unless(config.whole("pad_token_id", 0, 0) == 0, "pad_token_id",
                           "rows that are no tokens read the row 0 of the layers' tables");
  }
  out.rms_norm_eps = config.number("rms_norm_eps", 1e-6, 0, 1);
  out.initializer_range = config.number("initializer_range", 0.02, 0, 1);
  out.tie_word_embeddings = config.flag("tie_word_embeddings", true);
  out.eos_token_id = config.wholes("eos_token_id", {1});
  out.qkv_bias = out.out_bias = config.flag("attention_bias", false);
  if (config.has(cap_key)) out.final_logit_softcapping = config.number(cap_key, std::nullopt, 1e-3, 1e6);
  out.qk_norm = out.post_norms = out.gelu_gate = out.scaled_tokens = true;
  check_heads(config, out);
  refuse_unsupported(config);
  return out;
}

nlohmann::json write(const DecoderConfig& config) {
  nlohmann::json out{{"vocab_size", config.vocab_size},
                     {"hidden_size", config.hidden_size},
                     {"intermediate_size", config.intermediate_size},
                     {"num_hidden_layers", config.num_hidden_layers},
                     {"num_attention_heads", config.num_attention_heads},
                     {"num_key_value_heads", config.num_key_value_heads},
                     {"head_dim", config.head_dim},
                     {"global_head_dim", config.global_head_dim},
                     {"max_position_embeddings", config.max_position_embeddings},
                     {"sliding_window", config.sliding_window},
                     {"num_kv_shared_layers", config.num_kv_shared_layers},
                     {"use_double_wide_mlp", config.use_double_wide_mlp},
                     {"hidden_size_per_layer_input", config.hidden_size_per_layer_input},
                     {"vocab_size_per_layer_input", config.vocab_size_per_layer_input},
                     {"rms_norm_eps", config.rms_norm_eps},
                     {"initializer_range", config.initializer_range},
                     {"tie_word_embeddings", config.tie_word_embeddings},
                     {"attention_bias", config.qkv_bias},
                     {"pad_token_id", 0},
                     {activation_key, activation}};
  out["eos_token_id"] = config.eos_token_id;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    out[layer_types_key].push_back(config.has_window(i) ? sliding_attention : full_attention);
  if (config.final_logit_softcapping != 0) out[cap_key] = config.final_logit_softcapping;
  write_proportional_rope(out, {.theta = config.rope_theta, .scaling = config.rope_scaling}, *config.local_rope_theta);
  return out;
}

WeightLayout layout(const DecoderConfig& config) {
  const int64_t width = config.hidden_size, own_width = config.hidden_size_per_layer_input;
  const Initializer normal{Initializer::Kind::normal, config.initializer_range}, one{Initializer::Kind::constant, 1},
      zero{Initializer::Kind::constant, 0};
  WeightLayout out;
  out.ignored = {"audio_tower.*", "embed_audio.*"}; // of whole models
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
    out.tensors.push_back({name + ".weight", {rows, columns}, normal});
  };
  const auto add_linear = [&](const std::string& name, int64_t rows, int64_t columns) {
    add(name, rows, columns);
    if (config.qkv_bias) out.tensors.push_back({name + ".bias", {rows}, zero});
  };
  const auto add_norm = [&](const std::string& name, int64_t size) {
    out.tensors.push_back({name + ".weight", {size}, one});
  };
  add("model.embed_tokens", config.vocab_size, width);
  if (own_width > 0) {
    add("model.embed_tokens_per_layer", config.vocab_size_per_layer_input, config.num_hidden_layers * own_width);
    add("model.per_layer_model_projection", config.num_hidden_layers * own_width, width);
    add_norm("model.per_layer_projection_norm", own_width);
  }
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i), attention = layer + "self_attn.";
    const int64_t dim = config.head_dim_of(i), mlp = config.mlp_width_of(i);
    out.tensors.push_back({.name = layer + "layer_scalar", .shape = {1}, .fill = one, .is_fixed = true});
    add_norm(layer + "input_layernorm", width);
    add_linear(attention + "q_proj", config.num_attention_heads * dim, width);
    add_norm(attention + "q_norm", dim);
    if (config.kv_layer(i) == i) {
      add_linear(attention + "k_proj", config.num_key_value_heads * dim, width);
      add_linear(attention + "v_proj", config.num_key_value_heads * dim, width);
      add_norm(attention + "k_norm", dim);
    } else {
      for (const char* unused : {"k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias", "k_norm.weight"})
        out.ignored.push_back(attention + unused);
    }
    add_linear(attention + "o_proj", width, config.num_attention_heads * dim);
    add_norm(layer + "post_attention_layernorm", width);
    add_norm(layer + "pre_feedforward_layernorm", width);
    add(layer + "mlp.gate_proj", mlp, width);
    add(layer + "mlp.up_proj", mlp, width);
    add(layer + "mlp.down_proj", width, mlp);
    add_norm(layer + "post_feedforward_layernorm", width);
    if (own_width == 0) continue;
    add(layer + "per_layer_input_gate", own_width, width);
    add(layer + "per_layer_projection", width, own_width);
    add_norm(layer + "post_per_layer_input_norm", width);
  }
  add_norm("model.norm", width);
  if (config.tie_word_embeddings)
    out.tied_copy = "lm_head.weight", out.tied_to = "model.embed_tokens.weight";
  else
    add("lm_head", config.vocab_size, width);
  return out;
}

} // namespace

DecoderFamily gemma4_family() {
  return {.name = "gemma4",
          .types = {{"gemma4_text", "Gemma4ForCausalLM"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
                            {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"},
                            {"mlp.gate_proj.weight", "mlp.up_proj.weight"}}};
}

} // namespace fvlm
