// The Llama family (transformers' LlamaForCausalLM; SmolLM2 is one): RMSNorm, rotary positions, grouped queries,
// SwiGLU.
#include "model/weights/model_family.h"

#include <fmt/format.h>

namespace fvlm {
namespace {

// transformers 5 keeps all that is rotary in `rope_parameters`; older files have `rope_theta` and `rope_scaling`, which
// wins over `rope_parameters` as it does there.
double read_rope(ConfigReader& config) {
  double theta = config.has("rope_theta") ? config.number("rope_theta", std::nullopt, 1, 1e12) : 10000;
  auto whole_rotation = [&](ConfigReader& reader) {
    if (reader.has("partial_rotary_factor"))
      reader.refuse_unless(reader.number("partial_rotary_factor", 1, 0, 1) == 1, "partial_rotary_factor",
                           "all features of a head are rotated");
  };
  whole_rotation(config);
  const nlohmann::json* scaling = config.object("rope_scaling");
  const nlohmann::json* parameters = config.object("rope_parameters");
  const char* key = scaling && !scaling->empty() ? "rope_scaling" : "rope_parameters";
  const nlohmann::json* used = scaling && !scaling->empty() ? scaling : parameters;
  if (!used) return theta;

  ConfigReader inner(*used, config.where());
  std::string type = inner.text("rope_type", inner.text("type", "default"));
  if (type != "default")
    config.problems().add("'{}' of the kind {} is not supported: only plain rotary positions (\"default\") are", key,
                          shown(type));
  if (inner.has("rope_theta")) theta = inner.number("rope_theta", std::nullopt, 1, 1e12);
  whole_rotation(inner);
  for (const std::string& problem : inner.problems().list()) config.problems().add("{}: {}", key, problem);
  return theta;
}

DecoderConfig read(ConfigReader& config, const std::string& model_type) {
  DecoderConfig out;
  out.model_type = model_type;
  out.vocab_size = config.whole("vocab_size", 32000, 1);
  out.hidden_size = config.whole("hidden_size", 4096, 1, most_features);
  out.intermediate_size = config.whole("intermediate_size", 11008, 1, most_features);
  out.num_hidden_layers = config.whole("num_hidden_layers", 32, 1, most_layers);
  out.num_attention_heads = config.whole("num_attention_heads", 32, 1, most_heads);
  out.num_key_value_heads = config.whole_or_null("num_key_value_heads", most_heads).value_or(out.num_attention_heads);
  out.head_dim = config.whole_or_null("head_dim", most_heads).value_or(out.hidden_size / out.num_attention_heads);
  out.max_position_embeddings = config.whole("max_position_embeddings", 2048, 1, int64_t{1} << 30);
  out.rope_theta = read_rope(config);
  out.rms_norm_eps = config.number("rms_norm_eps", 1e-6, 0, 1);
  out.initializer_range = config.number("initializer_range", 0.02, 0, 1);
  out.tie_word_embeddings = config.flag("tie_word_embeddings", false);
  out.eos_token_id = config.wholes("eos_token_id", {2});

  std::string activation = config.text("hidden_act", "silu");
  config.refuse_unless(activation == "silu" || activation == "swish", "hidden_act", "only silu is");
  config.refuse_unless(config.flag("is_causal", true), "is_causal", "a row attends to itself and those before it");
  config.refuse_unless(!config.flag("attention_bias", false), "attention_bias", "attention has no bias");
  config.refuse_unless(!config.flag("mlp_bias", false), "mlp_bias", "the MLP has no bias");
  if (config.has("attention_dropout"))
    config.refuse_unless(config.number("attention_dropout", 0, 0, 1) == 0, "attention_dropout",
                         "towers are trained without dropout; set it to 0");

  if (out.hidden_size % out.num_attention_heads)
    config.problems().add("'num_attention_heads' = {} heads do not share 'hidden_size' = {} evenly",
                          out.num_attention_heads, out.hidden_size);
  else if (out.head_dim % 2)
    config.problems().add("'head_dim' = {} is odd, and rotary positions turn pairs of features", out.head_dim);
  if (out.num_attention_heads % out.num_key_value_heads)
    config.problems().add("'num_key_value_heads' = {} is no divisor of 'num_attention_heads' = {}",
                          out.num_key_value_heads, out.num_attention_heads);
  return out;
}

nlohmann::json write(const DecoderConfig& config) {
  return {{"vocab_size", config.vocab_size},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_key_value_heads},
          {"head_dim", config.head_dim},
          {"max_position_embeddings", config.max_position_embeddings},
          {"rope_theta", config.rope_theta}, // read by old and new versions of transformers alike
          {"rms_norm_eps", config.rms_norm_eps},
          {"initializer_range", config.initializer_range},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"eos_token_id", config.eos_token_id.size() == 1 ? nlohmann::json(config.eos_token_id[0])
                                                           : nlohmann::json(config.eos_token_id)},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"attention_dropout", 0.0}};
}

WeightLayout layout(const DecoderConfig& config) {
  int64_t width = config.hidden_size, mlp = config.intermediate_size;
  int64_t query = config.num_attention_heads * config.head_dim, key = config.num_key_value_heads * config.head_dim;
  Initializer weight{Initializer::Kind::normal, config.initializer_range}, one{Initializer::Kind::constant, 1};
  WeightLayout out;
  out.ignored = {"model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"}; // buffers of old files
  auto add = [&](std::string name, std::vector<int64_t> shape, Initializer fill) {
    out.tensors.push_back({std::move(name), std::move(shape), fill});
  };

  add("model.embed_tokens.weight", {config.vocab_size, width}, weight);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    std::string layer = fmt::format("model.layers.{}.", i);
    add(layer + "input_layernorm.weight", {width}, one);
    add(layer + "self_attn.q_proj.weight", {query, width}, weight);
    add(layer + "self_attn.k_proj.weight", {key, width}, weight);
    add(layer + "self_attn.v_proj.weight", {key, width}, weight);
    add(layer + "self_attn.o_proj.weight", {width, query}, weight);
    add(layer + "post_attention_layernorm.weight", {width}, one);
    add(layer + "mlp.gate_proj.weight", {mlp, width}, weight);
    add(layer + "mlp.up_proj.weight", {mlp, width}, weight);
    add(layer + "mlp.down_proj.weight", {width, mlp}, weight);
  }
  add("model.norm.weight", {width}, one);
  if (config.tie_word_embeddings)
    out.tied_copy = "lm_head.weight", out.tied_to = "model.embed_tokens.weight";
  else
    add("lm_head.weight", {config.vocab_size, width}, weight);
  return out;
}

} // namespace

DecoderFamily llama_family() {
  return {.name = "llama",
          .types = {{"llama", "LlamaForCausalLM"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
                            {"mlp.gate_proj.weight", "mlp.up_proj.weight"}}};
}

} // namespace fvlm
