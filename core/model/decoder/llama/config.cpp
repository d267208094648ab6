// The family of Llama (transformers' LlamaForCausalLM; SmolLM2 is one): RMSNorm, rotary positions, grouped queries, a
// gated MLP. Mistral, SmolLM3, Granite, OLMo 2, Qwen2, Qwen3, the decoders of Qwen2-VL, Qwen2.5-VL and Qwen3-VL,
// nanochat and GhostVis are variations of it: the traits in DecoderConfig say which.
#include "base/text.h"
#include "model/weights/model_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace fvlm {
namespace {

constexpr int64_t most_positions = int64_t{1} << 30;
constexpr const char *qwen2_vl = "qwen2_vl_text", *qwen2_5_vl = "qwen2_5_vl_text", *qwen3_vl = "qwen3_vl_text";
constexpr const char* embedding_range_key = "embedding_initializer_range"; // only our own configurations have it

void check_heads(ConfigReader& config, const DecoderConfig& decoder, bool derives_head_dim) {
  if (derives_head_dim && decoder.hidden_size % decoder.num_attention_heads)
    config.problems().add("'num_attention_heads' = {} heads do not share 'hidden_size' = {} evenly",
                          decoder.num_attention_heads, decoder.hidden_size);
  else if (decoder.head_dim % 2)
    config.problems().add("'head_dim' = {} is odd, and rotary positions turn pairs of features", decoder.head_dim);
  if (decoder.num_attention_heads % decoder.num_key_value_heads)
    config.problems().add("'num_key_value_heads' = {} is no divisor of 'num_attention_heads' = {}",
                          decoder.num_key_value_heads, decoder.num_attention_heads);
}

// What no family supports.
void refuse_unsupported(ConfigReader& config) {
  config.refuse_unless(config.flag("is_causal", true), "is_causal", "a row attends to itself and those before it");
  if (config.has("attention_dropout"))
    config.refuse_unless(config.number("attention_dropout", 0, 0, 1) == 0, "attention_dropout",
                         "towers are trained without dropout; set it to 0");
  for (const char* key : {"num_experts", "num_local_experts"})
    if (config.has(key))
      config.refuse_unless(config.whole(key, 0, 0) <= 1, key, "the MLP is one, not a mixture of experts");
  const auto layers = config.texts("layer_types");
  config.refuse_unless(
      std::all_of(layers.begin(), layers.end(), [](const auto& one) { return one == "full_attention"; }), "layer_types",
      "every layer has full attention, without a sliding window");
}

DecoderConfig llama_defaults(ConfigReader& config) {
  DecoderConfig out;
  out.vocab_size = 32000;
  out.hidden_size = 4096;
  out.intermediate_size = 11008;
  out.num_hidden_layers = out.num_attention_heads = 32;
  out.max_position_embeddings = 2048;
  out.rms_norm_eps = 1e-6;
  out.eos_token_id = {2};
  out.qkv_bias = out.out_bias = config.flag("attention_bias", false);
  out.mlp_bias = config.flag("mlp_bias", false);
  return out;
}

// Mistral's linears have no biases, whatever config.json says.
DecoderConfig mistral_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.intermediate_size = 14336;
  out.num_key_value_heads = 8;
  out.max_position_embeddings = int64_t{1} << 17;
  out.qkv_bias = out.out_bias = out.mlp_bias = false;
  return out;
}

// A window of as many rows as there are positions hides nothing.
void check_mistral_window(ConfigReader& config, int64_t positions) {
  constexpr const char* key = "sliding_window";
  const int64_t window = config.has_null(key) ? positions : config.whole(key, 4096, 1, most_positions);
  if (window < positions)
    config.problems().add("'{}' = {} is not supported, because it is less than 'max_position_embeddings' = {}: every "
                          "layer has full attention; set it to null if no text is longer than the window",
                          key, window, positions);
}

DecoderConfig smollm3_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.vocab_size = 128256;
  out.hidden_size = 2048;
  out.num_hidden_layers = 36;
  out.num_attention_heads = 16;
  out.num_key_value_heads = 4;
  out.max_position_embeddings = int64_t{1} << 15;
  out.rope_theta = 2e6;
  out.eos_token_id = {128001};
  out.tie_word_embeddings = true;
  config.refuse_unless(!config.flag("use_sliding_window", false) || !config.has("sliding_window"), "sliding_window",
                       "every layer has full attention; set it to null if no text is longer than the window");
  return out;
}

// Which layers have no rotary positions: every fourth, or what the config says.
std::vector<int64_t> smollm3_rope_layers(ConfigReader& config, int64_t layers) {
  constexpr const char* key = "no_rope_layers";
  const auto count = static_cast<size_t>(layers);
  if (config.has(key)) {
    std::vector<int64_t> all = config.wholes(key, {});
    config.refuse_unless(all.size() >= count, key, fmt::format("there are {} layers, and each has an entry", layers));
    config.refuse_unless(std::all_of(all.begin(), all.end(), [](int64_t one) { return one <= 1; }), key,
                         "an entry is 1, or 0 for a layer without rotary positions");
    all.resize(count, 1);
    return all;
  }
  const int64_t interval = config.whole("no_rope_layer_interval", 4, 1, most_layers);
  std::vector<int64_t> all(count, 1);
  for (int64_t i = interval; i <= layers; i += interval) all[static_cast<size_t>(i - 1)] = 0;
  return all;
}

DecoderConfig granite_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  constexpr double least = 1e-6, most = 1e6;
  out.embedding_multiplier = config.number("embedding_multiplier", 1, least, most);
  out.residual_multiplier = config.number("residual_multiplier", 1, least, most);
  out.attention_multiplier = config.number("attention_multiplier", 1, least, most);
  out.logits_scaling = config.number("logits_scaling", 1, least, most);
  return out;
}

DecoderConfig olmo2_defaults(ConfigReader& config) {
  DecoderConfig out = llama_defaults(config);
  out.vocab_size = 50304;
  out.rms_norm_eps = 1e-5;
  out.eos_token_id = {50279};
  out.mlp_bias = false;
  out.qk_row_norm = out.post_norms = true;
  return out;
}

// `layers`: how many there are where config.json does not say it; `unwindowed`: how many of them have no window, where
// there is one.
DecoderConfig qwen_defaults(ConfigReader& config, int64_t layers = 32, int64_t unwindowed = 28) {
  DecoderConfig out;
  out.vocab_size = 151936;
  out.hidden_size = 4096;
  out.intermediate_size = 22016;
  out.num_hidden_layers = layers;
  out.num_attention_heads = out.num_key_value_heads = 32;
  out.max_position_embeddings = 32768;
  out.rms_norm_eps = 1e-6;
  // Without layer_types, layers from max_window_layers on have the window.
  const bool has_window =
      config.flag("use_sliding_window", false) && !config.has_null("sliding_window") && !config.has("layer_types") &&
      config.whole("max_window_layers", unwindowed, 0) < config.whole("num_hidden_layers", layers, 1);
  config.refuse_unless(!has_window, "use_sliding_window",
                       "every layer has full attention; set it to false if no text is longer than the window");
  return out;
}

DecoderConfig qwen2_defaults(ConfigReader& config) {
  DecoderConfig out = qwen_defaults(config);
  out.qkv_bias = true;
  return out;
}

// The decoder of Qwen2-VL and Qwen2.5-VL.
DecoderConfig qwen2_vl_defaults(ConfigReader& config) {
  DecoderConfig out = qwen_defaults(config, 80, 80);
  out.qkv_bias = true;
  out.vocab_size = 152064;
  out.hidden_size = 8192;
  out.intermediate_size = 29568;
  out.num_attention_heads = 64;
  out.num_key_value_heads = 8;
  out.rms_norm_eps = 1e-5;
  out.rope_theta = 1e6;
  out.mrope_section = {16, 24, 24};
  out.eos_token_id = {151645};
  return out;
}

DecoderConfig qwen3_defaults(ConfigReader& config) {
  DecoderConfig out = qwen_defaults(config);
  out.head_dim = 128;
  out.qk_norm = true;
  out.qkv_bias = out.out_bias = config.flag("attention_bias", false);
  return out;
}

DecoderConfig qwen3_vl_defaults(ConfigReader& config) {
  DecoderConfig out = qwen3_defaults(config);
  out.max_position_embeddings = 128000;
  out.rope_theta = 5e5;
  out.mrope_section = {24, 20, 20};
  out.mrope_interleaved = true;
  return out;
}

DecoderConfig nanochat_defaults(ConfigReader& config) {
  DecoderConfig out;
  out.vocab_size = 50304;
  out.hidden_size = 768;
  out.intermediate_size = 8192;
  out.num_hidden_layers = 12;
  out.num_attention_heads = 6;
  out.max_position_embeddings = 2048;
  out.rms_norm_eps = 1e-6;
  out.eos_token_id = {1};
  out.norm_weights = out.gated_mlp = false;
  out.embedding_norm = out.qk_norm = out.rope_reversed = true;
  out.qkv_bias = out.out_bias = config.flag("attention_bias", false);
  constexpr const char* cap = "final_logit_softcapping";
  out.final_logit_softcapping = config.has_null(cap) ? 0 : config.number(cap, 15, 1e-3, 1e6);
  return out;
}

// nanochat with Llama's MLP.
DecoderConfig ghostvis_defaults(ConfigReader& config) {
  DecoderConfig out = nanochat_defaults(config);
  out.rms_norm_eps = 0x1p-23;
  out.gated_mlp = true;
  out.qkv_bias = config.flag("attention_bias", true);
  out.out_bias = false;
  return out;
}

// The traits of each model_type, and the sizes that it has where a config.json lacks them. A head_dim of 0 stands for
// hidden_size / num_attention_heads, num_key_value_heads of 0 for num_attention_heads.
const std::map<std::string, DecoderConfig (*)(ConfigReader&)>& all_defaults() {
  static const std::map<std::string, DecoderConfig (*)(ConfigReader&)> all{
      {"llama", llama_defaults},     {"mistral", mistral_defaults},   {"smollm3", smollm3_defaults},
      {"granite", granite_defaults}, {"olmo2", olmo2_defaults},       {"qwen2", qwen2_defaults},
      {"qwen3", qwen3_defaults},     {"nanochat", nanochat_defaults}, {"ghostvis", ghostvis_defaults},
      {qwen2_vl, qwen2_vl_defaults}, {qwen2_5_vl, qwen2_vl_defaults}, {qwen3_vl, qwen3_vl_defaults}};
  return all;
}

void check_mrope_section(ConfigReader& config, const DecoderConfig& decoder) {
  const std::vector<int64_t>& section = decoder.mrope_section;
  const int64_t pairs = decoder.head_dim / 2;
  const bool fits = section.size() == 3 && std::ranges::all_of(section, [&](int64_t one) { return one <= pairs; });
  if (!fits || std::reduce(section.begin(), section.end()) != pairs)
    config.problems().add("'mrope_section' = [{}] does not divide the {} pairs of a head's features among time, height "
                          "and width",
                          fmt::join(section, ", "), pairs);
}

DecoderConfig read(ConfigReader& config, const std::string& model_type) {
  DecoderConfig out = all_defaults().at(model_type)(config);
  out.model_type = model_type;
  const bool derives_head_dim = out.head_dim == 0;
  out.vocab_size = config.whole("vocab_size", out.vocab_size, 1);
  out.hidden_size = config.whole("hidden_size", out.hidden_size, 1, most_features);
  out.intermediate_size = config.whole("intermediate_size", out.intermediate_size, 1, most_features);
  out.num_hidden_layers = config.whole("num_hidden_layers", out.num_hidden_layers, 1, most_layers);
  out.num_attention_heads = config.whole("num_attention_heads", out.num_attention_heads, 1, most_heads);
  out.num_key_value_heads =
      config.whole_or_null("num_key_value_heads", most_heads)
          .value_or(out.num_key_value_heads == 0 || config.has_null("num_key_value_heads") ? out.num_attention_heads
                                                                                           : out.num_key_value_heads);
  out.head_dim = config.whole_or_null("head_dim", most_heads)
                     .value_or(derives_head_dim ? out.hidden_size / out.num_attention_heads : out.head_dim);
  out.max_position_embeddings = config.whole("max_position_embeddings", out.max_position_embeddings, 1, most_positions);
  if (model_type == "mistral") check_mistral_window(config, out.max_position_embeddings);
  if (model_type == "smollm3") out.no_rope_layers = smollm3_rope_layers(config, out.num_hidden_layers);
  const bool has_mrope = out.has_row_axes();
  const Rope rope =
      read_rope(config, out.max_position_embeddings, {out.rope_theta, {}, out.mrope_section, out.mrope_interleaved});
  out.rope_theta = rope.theta;
  out.rope_scaling = rope.scaling;
  out.mrope_section = rope.mrope_section;
  if (has_mrope) check_mrope_section(config, out);
  out.rms_norm_eps = config.number("rms_norm_eps", out.rms_norm_eps, 0, 1);
  out.initializer_range = config.number("initializer_range", 0.02, 0, 1);
  if (config.has(embedding_range_key))
    out.embedding_initializer_range = config.number(embedding_range_key, std::nullopt, 0, 1e6);
  out.tie_word_embeddings = config.flag("tie_word_embeddings", out.tie_word_embeddings);
  out.eos_token_id = config.wholes("eos_token_id", out.eos_token_id);

  const std::string activation = config.text("hidden_act", out.gated_mlp ? "silu" : "relu2");
  if (out.gated_mlp)
    config.refuse_unless(activation == "silu" || activation == "swish", "hidden_act", "only silu is");
  else
    config.refuse_unless(activation == "relu2", "hidden_act", "only relu2 is");
  refuse_unsupported(config);
  check_heads(config, out, derives_head_dim);
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
                     {"max_position_embeddings", config.max_position_embeddings},
                     {"rms_norm_eps", config.rms_norm_eps},
                     {"initializer_range", config.initializer_range},
                     {"tie_word_embeddings", config.tie_word_embeddings},
                     {"hidden_act", config.gated_mlp ? "silu" : "relu2"},
                     {"attention_bias", config.qkv_bias},
                     {"mlp_bias", config.mlp_bias},
                     {"attention_dropout", 0.0}};
  if (config.eos_token_id.size() == 1)
    out["eos_token_id"] = config.eos_token_id[0];
  else
    out["eos_token_id"] = config.eos_token_id.empty() ? nlohmann::json() : nlohmann::json(config.eos_token_id);
  if (config.model_type == "mistral") out["sliding_window"] = nullptr; // where the key is missing, there is a window
  if (config.attention_multiplier != 0) {
    out["embedding_multiplier"] = config.embedding_multiplier;
    out["residual_multiplier"] = config.residual_multiplier;
    out["attention_multiplier"] = config.attention_multiplier;
    out["logits_scaling"] = config.logits_scaling;
  }
  if (!config.no_rope_layers.empty()) out["no_rope_layers"] = config.no_rope_layers;
  if (config.embedding_initializer_range) out[embedding_range_key] = *config.embedding_initializer_range;
  if (config.embedding_norm) // of a family that has one where the key is missing
    out["final_logit_softcapping"] =
        config.final_logit_softcapping == 0 ? nlohmann::json() : nlohmann::json(config.final_logit_softcapping);
  write_rope(out, {config.rope_theta, config.rope_scaling, config.mrope_section, config.mrope_interleaved});
  return out;
}

// Of fresh matrices. Those of GhostVis go by their shape; the last one of each branch and the head begin at 0.
struct FreshMatrices {
  bool by_shape;
  double range, embedding_range;

  explicit FreshMatrices(const DecoderConfig& config)
      : by_shape(config.model_type == "ghostvis"), range(config.initializer_range),
        embedding_range(config.embedding_initializer_range.value_or(config.initializer_range)) {}
  Initializer normal(double deviation) const { return {Initializer::Kind::normal, deviation}; }
  Initializer embedding() const { return normal(by_shape ? 1 : embedding_range); }
  Initializer last() const { return by_shape ? Initializer{Initializer::Kind::constant, 0} : normal(range); }
  Initializer inner(int64_t rows, int64_t columns) const {
    const auto out = static_cast<double>(rows), in = static_cast<double>(columns);
    return normal(by_shape ? std::min(1.0, std::sqrt(out / in)) / std::sqrt(in) : range);
  }
};

WeightLayout layout(const DecoderConfig& config) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size;
  const int64_t query = config.num_attention_heads * config.head_dim,
                key = config.num_key_value_heads * config.head_dim;
  const FreshMatrices fresh(config);
  const Initializer one{Initializer::Kind::constant, 1}, zero{Initializer::Kind::constant, 0};
  WeightLayout out;
  out.ignored = {"model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"}; // buffers of old files
  const auto add = [&](std::string name, std::vector<int64_t> shape, Initializer fill) {
    out.tensors.push_back({std::move(name), std::move(shape), fill});
  };
  const auto add_norm = [&](const std::string& name, int64_t size) {
    if (config.norm_weights) add(name + ".weight", {size}, one);
  };
  const auto add_filled = [&](const std::string& name, int64_t rows, int64_t columns, bool bias, Initializer fill) {
    add(name + ".weight", {rows, columns}, fill);
    if (bias) add(name + ".bias", {rows}, zero);
  };
  const auto add_linear = [&](const std::string& name, int64_t rows, int64_t columns, bool bias) {
    add_filled(name, rows, columns, bias, fresh.inner(rows, columns));
  };
  const auto add_last = [&](const std::string& name, int64_t rows, int64_t columns, bool bias) {
    add_filled(name, rows, columns, bias, fresh.last());
  };

  add("model.embed_tokens.weight", {config.vocab_size, width}, fresh.embedding());
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    if (!config.post_norms) add_norm(layer + "input_layernorm", width);
    add_linear(layer + "self_attn.q_proj", query, width, config.qkv_bias);
    add_linear(layer + "self_attn.k_proj", key, width, config.qkv_bias);
    add_linear(layer + "self_attn.v_proj", key, width, config.qkv_bias);
    if (config.qk_norm || config.qk_row_norm) {
      add_norm(layer + "self_attn.q_norm", config.qk_norm ? config.head_dim : query);
      add_norm(layer + "self_attn.k_norm", config.qk_norm ? config.head_dim : key);
    }
    add_last(layer + "self_attn.o_proj", width, query, config.out_bias);
    add_norm(layer + "post_attention_layernorm", width);
    if (config.post_norms) add_norm(layer + "post_feedforward_layernorm", width);
    if (config.gated_mlp) {
      add_linear(layer + "mlp.gate_proj", mlp, width, config.mlp_bias);
      add_linear(layer + "mlp.up_proj", mlp, width, config.mlp_bias);
      add_last(layer + "mlp.down_proj", width, mlp, config.mlp_bias);
    } else {
      add_linear(layer + "mlp.fc1", mlp, width, config.mlp_bias);
      add_last(layer + "mlp.fc2", width, mlp, config.mlp_bias);
    }
  }
  add_norm("model.norm", width);
  if (config.tie_word_embeddings)
    out.tied_copy = "lm_head.weight", out.tied_to = "model.embed_tokens.weight";
  else
    add("lm_head.weight", {config.vocab_size, width}, fresh.last());
  return out;
}

} // namespace

DecoderFamily llama_family() {
  return {.name = "llama",
          .types = {{"llama", "LlamaForCausalLM"},
                    {"mistral", "MistralForCausalLM"},
                    {"smollm3", "SmolLM3ForCausalLM"},
                    {"granite", "GraniteForCausalLM"},
                    {"olmo2", "Olmo2ForCausalLM"},
                    {"qwen2", "Qwen2ForCausalLM"},
                    {"qwen3", "Qwen3ForCausalLM"},
                    {qwen2_vl, "Qwen2VLTextModel"},
                    {qwen2_5_vl, "Qwen2_5_VLTextModel"},
                    {qwen3_vl, "Qwen3VLTextModel"},
                    {"nanochat", "NanoChatForCausalLM"},
                    {"ghostvis", "GhostVisForCausalLM"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
                            {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"},
                            {"mlp.gate_proj.weight", "mlp.up_proj.weight"},
                            {"mlp.gate_proj.bias", "mlp.up_proj.bias"}}};
}

} // namespace fvlm
