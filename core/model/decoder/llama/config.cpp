// The family of Llama (transformers' LlamaForCausalLM; SmolLM2 is one): RMSNorm, rotary positions, grouped queries, a
// gated MLP. Mistral, Ministral 3, SmolLM3, Granite, OLMo 2, Gemma, Gemma 3, Qwen2, Qwen3, the decoders of Qwen2-VL,
// Qwen2.5-VL, Qwen3-VL, PaddleOCR-VL, GLM-OCR, GLM-4.1V and HunyuanOCR, Qwen3.5, LFM2, LFM3, GLM-4, Ernie 4.5,
// HunYuan, nanochat and GhostVis are variations of it, also with experts: the traits in DecoderConfig say which.
#include "model/decoder/llama/config.h"

#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fvlm {
namespace {

using namespace llama;

void check_heads(ConfigReader& config, const DecoderConfig& decoder, bool derives_head_dim) {
  if (derives_head_dim && decoder.hidden_size % decoder.num_attention_heads)
    config.problems().add("'num_attention_heads' = {} heads do not share 'hidden_size' = {} evenly",
                          decoder.num_attention_heads, decoder.hidden_size);
  else if (decoder.head_dim % 2)
    config.problems().add("'head_dim' = {} is odd, and rotary positions turn pairs of features", decoder.head_dim);
  if (decoder.model_type == glm4v)
    config.refuse_unless(decoder.head_dim == decoder.hidden_size / decoder.num_attention_heads, "head_dim",
                         "heads share the width");
  if (decoder.num_attention_heads % decoder.num_key_value_heads)
    config.problems().add("'num_key_value_heads' = {} is no divisor of 'num_attention_heads' = {}",
                          decoder.num_key_value_heads, decoder.num_attention_heads);
}

// What no family supports.
void refuse_unsupported(ConfigReader& config, const std::string& model_type, bool has_experts) {
  config.refuse_unless(config.flag("is_causal", true), "is_causal", "a row attends to itself and those before it");
  // Files of Granite may name the dropout that it was trained with, on which no answer depends.
  if (config.has("attention_dropout") && model_type != "granite")
    config.refuse_unless(config.number("attention_dropout", 0, 0, 1) == 0, "attention_dropout",
                         "towers are trained without dropout; set it to 0");
  if (!has_experts)
    for (const char* key : {"num_experts", "num_local_experts"})
      if (config.has(key))
        config.refuse_unless(config.whole(key, 0, 0) <= 1, key, "the MLP is one, not a mixture of experts");
  if (config.has("use_bidirectional_attention"))
    config.refuse_unless(!config.flag("use_bidirectional_attention", false), "use_bidirectional_attention",
                         "a row attends to itself and those before it");
}

// Layers with a window have plain rotary positions of their own.
Rope read_lfm3_rope(ConfigReader& config, DecoderConfig& out) {
  Rope full{.theta = out.rope_theta, .scaling = out.rope_scaling};
  if (out.convolutions() + std::ranges::count(out.sliding_layers, 1) < out.num_hidden_layers)
    read_proportional_rope(config, full);
  double& sliding_theta = out.local_rope_theta.emplace(Rope::default_theta);
  if (out.has_windows()) read_sliding_rope(config, sliding_theta);
  return full;
}

void check_rotary_dim(ConfigReader& config, const DecoderConfig& decoder) {
  if (decoder.may_rotate_part && decoder.rotary_dim() % 2)
    config.problems().add("'partial_rotary_factor' = {} of 'head_dim' = {} is odd, and rotary positions turn pairs of "
                          "features",
                          decoder.partial_rotary_factor, decoder.head_dim);
  if (decoder.rotary_dim() != decoder.head_dim && decoder.rope_scaling.attention_factor != 1)
    config.problems().add("rotary positions of the type yarn multiply rotated features by {}, which is not supported "
                          "where {} of a head's {} features are rotated: an 'attention_factor' of 1 is",
                          decoder.rope_scaling.attention_factor, decoder.rotary_dim(), decoder.head_dim);
}

// Only Ministral 3 scales its queries by their positions, whatever the config of another model says.
void read_query_scaling(ConfigReader& config, DecoderConfig& out) {
  std::optional<double>& beta = out.rope_scaling.llama_4_scaling_beta;
  if (out.model_type != ministral3) return beta.reset();
  if (!beta)
    config.problems().add("'rope_parameters' of the type yarn with 'llama_4_scaling_beta' is missing, by which this "
                          "model scales its queries");
}

void check_mrope_section(ConfigReader& config, const DecoderConfig& decoder) {
  const std::vector<int64_t>& section = decoder.mrope_section;
  const int64_t pairs = decoder.rotary_dim() / 2;
  const bool is_xdrope = decoder.row_axes() == RowAxes::xdrope;
  const bool fits =
      section.size() == (is_xdrope ? 4 : 3) && std::ranges::all_of(section, [&](int64_t one) { return one <= pairs; });
  if (!fits || std::reduce(section.begin(), section.end()) != pairs)
    config.problems().add("'mrope_section' = [{}] does not divide the {} pairs of a head's features among {}",
                          fmt::join(section, ", "), pairs,
                          is_xdrope ? "position, width, height and image" : "time, height and width");
}

// As the family has it, those of layers with a window apart where they differ.
Rope read_own_rope(ConfigReader& config, DecoderConfig& out) {
  if (out.model_type == lfm3) return read_lfm3_rope(config, out);
  const Rope usual{
      out.rope_theta,   {}, out.mrope_section, out.mrope_interleaved, out.partial_rotary_factor, out.may_rotate_part,
      out.norms_rotated};
  if (out.model_type != gemma3) return read_rope(config, out.max_position_embeddings, usual);
  return read_rope_by_layer(config, out.max_position_embeddings, usual,
                            out.local_rope_theta.emplace(Rope::default_theta));
}

// The key of the MLP's activation, and its name.
std::pair<const char*, const char*> activation_of(const DecoderConfig& decoder) {
  return {decoder.model_type == gemma2 || decoder.model_type == gemma3 ? "hidden_activation" : "hidden_act",
          decoder.gelu_gate   ? gelu_tanh
          : decoder.gated_mlp ? "silu"
                              : "relu2"};
}

void check_activation(ConfigReader& config, const DecoderConfig& decoder) {
  const auto [key, expected] = activation_of(decoder);
  std::string activation = config.text(key, expected);
  if (decoder.model_type == "gemma" && activation == "gelu") activation = gelu_tanh; // what its first files mean by it
  if (activation == "swish") activation = "silu";
  config.refuse_unless(activation == expected, key, fmt::format("only {} is", expected));
}

const char* epsilon_key(const DecoderConfig& decoder) {
  return decoder.operator_names ? "norm_eps" : "rms_norm_eps";
}

DecoderConfig read(ConfigReader& config, const std::string& model_type) {
  DecoderConfig out = llama::defaults(config, model_type);
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
  out.tie_word_embeddings = config.flag("tie_word_embeddings", out.tie_word_embeddings);
  read_layers(config, out);
  const bool has_mrope = out.has_row_axes();
  const Rope rope = read_own_rope(config, out);
  out.rope_theta = rope.theta;
  out.rope_scaling = rope.scaling;
  read_query_scaling(config, out);
  out.partial_rotary_factor = rope.partial_rotary_factor;
  out.mrope_section = rope.mrope_section;
  if (has_mrope) check_mrope_section(config, out);
  check_rotary_dim(config, out);
  out.rms_norm_eps = config.number(epsilon_key(out), out.rms_norm_eps, 0, 1);
  out.initializer_range = config.number("initializer_range", 0.02, 0, 1);
  if (config.has(embedding_range_key))
    out.embedding_initializer_range = config.number(embedding_range_key, std::nullopt, 0, 1e6);
  out.eos_token_id = config.wholes("eos_token_id", out.eos_token_id);

  check_activation(config, out);
  refuse_unsupported(config, model_type, out.num_experts > 0);
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
                     {epsilon_key(config), config.rms_norm_eps},
                     {"initializer_range", config.initializer_range},
                     {"tie_word_embeddings", config.tie_word_embeddings},
                     {"attention_bias", config.qkv_bias},
                     {"mlp_bias", config.mlp_bias},
                     {"attention_dropout", 0.0}};
  const auto [activation_key, activation] = activation_of(config);
  out[activation_key] = activation;
  if (config.eos_token_id.size() == 1)
    out["eos_token_id"] = config.eos_token_id[0];
  else
    out["eos_token_id"] = config.eos_token_id.empty() ? nlohmann::json() : nlohmann::json(config.eos_token_id);
  // Where the key is missing, Mistral and LFM3 have a window.
  if (config.model_type == mistral || config.model_type == ministral3 || config.model_type == lfm3)
    out[window_key] = config.sliding_window == 0 ? nlohmann::json() : nlohmann::json(config.sliding_window);
  if (config.model_type == gemma2 || config.model_type == gemma3) {
    out[query_scale_key] = std::llround(std::pow(config.attention_multiplier, -2));
    out[window_key] = config.sliding_window;
    out[layer_types_key] = layer_types_of(config);
    if (config.local_rope_theta) out["rope_local_base_freq"] = *config.local_rope_theta;
    const double caps[]{config.final_logit_softcapping, config.attn_logit_softcapping};
    if (config.model_type == gemma2) // which has them where the keys are missing
      for (const size_t i : {0, 1})
        out[i == 0 ? cap_key : score_cap_key] = caps[i] == 0 ? nlohmann::json() : nlohmann::json(caps[i]);
  } else if (config.attention_multiplier != 0) {
    out["embedding_multiplier"] = config.embedding_multiplier;
    out["residual_multiplier"] = config.residual_multiplier;
    out["attention_multiplier"] = config.attention_multiplier;
    out["logits_scaling"] = config.logits_scaling;
  }
  if (config.model_type == paddleocr || config.model_type == ernie) out[use_bias_key] = config.mlp_bias;
  if (config.operator_names) {
    out["conv_L_cache"] = config.conv_taps;
    out["conv_bias"] = config.conv_bias;
    out[layer_types_key] = layer_types_of(config);
  }
  if (config.model_type == lfm2) out["block_auto_adjust_ff_dim"] = false;
  if (config.model_type == lfm3) {
    out[head_gates_key] = config.head_gates;
    out[post_norms_key] = config.post_norms;
  }
  write_experts(config, out);
  if (config.model_type == qwen3_5 || config.model_type == qwen3_5_moe) {
    out["linear_conv_kernel_dim"] = config.conv_taps;
    out["linear_num_key_heads"] = config.delta_key_heads;
    out["linear_num_value_heads"] = config.delta_value_heads;
    out["linear_key_head_dim"] = config.delta_key_dim;
    out["linear_value_head_dim"] = config.delta_value_dim;
    out[layer_types_key] = layer_types_of(config);
  }
  if (!config.no_rope_layers.empty()) out["no_rope_layers"] = config.no_rope_layers;
  if (config.embedding_initializer_range) out[embedding_range_key] = *config.embedding_initializer_range;
  if (config.embedding_norm || config.final_logit_softcapping != 0) // some have one where the key is missing
    out[cap_key] =
        config.final_logit_softcapping == 0 ? nlohmann::json() : nlohmann::json(config.final_logit_softcapping);
  if (config.model_type == lfm3) {
    write_proportional_rope(out, {.theta = config.rope_theta, .scaling = config.rope_scaling},
                            *config.local_rope_theta);
    return out;
  }
  write_rope(out, {config.rope_theta, config.rope_scaling, config.mrope_section, config.mrope_interleaved,
                   config.partial_rotary_factor, config.may_rotate_part});
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

// Buffers of old files, and what drafts tokens.
std::vector<std::string> ignored_by(const DecoderConfig& config) {
  std::vector<std::string> names{"model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"};
  if (config.model_type == qwen3_5 || config.model_type == qwen3_5_moe) names.emplace_back("mtp.*");
  if (config.model_type == glm_ocr) names.push_back(fmt::format("model.layers.{}.*", config.num_hidden_layers));
  return names;
}

WeightLayout layout(const DecoderConfig& config) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size;
  const int64_t attended = config.num_attention_heads * config.head_dim,
                key = config.num_key_value_heads * config.head_dim;
  const TensorNames names = names_of(config);
  const FreshMatrices fresh(config);
  const Initializer one{Initializer::Kind::constant, 1}, zero{Initializer::Kind::constant, 0};
  WeightLayout out;
  out.ignored = ignored_by(config);
  const auto add = [&](std::string name, std::vector<int64_t> shape, Initializer fill) {
    out.tensors.push_back({std::move(name), std::move(shape), fill});
  };
  const auto add_norm = [&](const std::string& name, int64_t size) {
    if (config.norm_weights) add(name + ".weight", {size}, config.unit_offset ? zero : one);
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
    if (config.pre_norms) add_norm(layer + names.attention_norm, width);
    if (config.has_convolution(i)) {
      add_linear(layer + "conv.in_proj", 3 * width, width, config.conv_bias);
      add(layer + "conv.conv.weight", {width, 1, config.conv_taps}, fresh.normal(fresh.range));
      if (config.conv_bias) add(layer + "conv.conv.bias", {width}, zero);
      add_last(layer + "conv.out_proj", width, width, config.conv_bias);
    } else if (config.has_delta_rule(i)) {
      const std::string rule = layer + "linear_attn.";
      add(rule + "dt_bias", {config.delta_value_heads}, one);
      add(rule + "A_log", {config.delta_value_heads}, {Initializer::Kind::log_uniform, 16});
      add(rule + "conv1d.weight", {config.delta_rows(), 1, config.conv_taps}, fresh.normal(fresh.range));
      add_linear(rule + "in_proj_qkv", config.delta_rows(), width, false);
      add_linear(rule + "in_proj_z", config.delta_values(), width, false);
      add_linear(rule + "in_proj_b", config.delta_value_heads, width, false);
      add_linear(rule + "in_proj_a", config.delta_value_heads, width, false);
      add(rule + "norm.weight", {config.delta_value_dim}, one);
      add_last(rule + "out_proj", width, config.delta_values(), false);
    } else {
      const size_t first = out.tensors.size();
      add_linear(layer + "self_attn.q_proj", config.query_rows(), width, config.qkv_bias);
      add_linear(layer + "self_attn.k_proj", key, width, config.qkv_bias);
      if (config.adjacent_pairs)
        for (size_t rotated = first; rotated < out.tensors.size(); ++rotated)
          out.tensors[rotated].pairs = {config.head_dim, config.rotary_dim()};
      add_linear(layer + "self_attn.v_proj", key, width, config.qkv_bias);
      if (config.head_gates) add_linear(layer + "self_attn.gate_proj", config.num_attention_heads, width, false);
      if (config.qk_norm || config.qk_row_norm) {
        add_norm(layer + names.q_norm, config.qk_norm ? config.head_dim : attended);
        add_norm(layer + names.k_norm, config.qk_norm ? config.head_dim : key);
      }
      add_last(layer + names.out, width, attended, config.out_bias);
    }
    if (config.post_norms) add_norm(layer + names.attention_post_norm, width);
    if (config.pre_norms) add_norm(layer + names.mlp_norm, width);
    if (config.post_norms) add_norm(layer + names.mlp_post_norm, width);
    if (config.has_experts(i)) {
      add_experts(out, config, layer, fresh.inner(mlp, width), fresh.last());
      continue;
    }
    if (config.gated_mlp && !config.fused_gate) add_linear(layer + names.gate, mlp, width, config.mlp_bias);
    add_linear(layer + names.up, config.fused_gate ? 2 * mlp : mlp, width, config.mlp_bias);
    add_last(layer + names.down, width, mlp, config.mlp_bias);
  }
  add_norm(std::string("model.") + names.final_norm, width);
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
                    {mistral, "MistralForCausalLM"},
                    {ministral3, "Ministral3ForCausalLM"},
                    {"smollm3", "SmolLM3ForCausalLM"},
                    {"granite", "GraniteForCausalLM"},
                    {"olmo2", "Olmo2ForCausalLM"},
                    {"gemma", "GemmaForCausalLM"},
                    {gemma2, "Gemma2ForCausalLM"},
                    {gemma3, "Gemma3ForCausalLM"},
                    {"qwen2", "Qwen2ForCausalLM"},
                    {"qwen3", "Qwen3ForCausalLM"},
                    {qwen2_vl, "Qwen2VLTextModel"},
                    {qwen2_5_vl, "Qwen2_5_VLTextModel"},
                    {qwen3_vl, "Qwen3VLTextModel"},
                    {qwen3_5, "Qwen3_5ForCausalLM"},
                    {qwen3_moe, "Qwen3MoeForCausalLM"},
                    {qwen3_vl_moe, "Qwen3VLMoeTextModel"},
                    {qwen3_5_moe, "Qwen3_5MoeForCausalLM"},
                    {paddleocr, "PaddleOCRTextModel"},
                    {ernie, "Ernie4_5ForCausalLM"},
                    {glm4, "Glm4ForCausalLM"},
                    {glm_ocr, "GlmOcrTextModel"},
                    {glm4v, "Glm4vTextModel"},
                    {hunyuan, "HunYuanDenseV1ForCausalLM"},
                    {hunyuan_vl, "HunYuanVLTextModel"},
                    {lfm2, "Lfm2ForCausalLM"},
                    {lfm2_moe, "Lfm2MoeForCausalLM"},
                    {lfm3, "Lfm3ForCausalLM"},
                    {"nanochat", "NanoChatForCausalLM"},
                    {"ghostvis", "GhostVisForCausalLM"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
                            {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"},
                            {"mlp.gate_proj.weight", "mlp.up_proj.weight"},
                            {"mlp.gate_proj.bias", "mlp.up_proj.bias"},
                            {"mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"},
                            {"feed_forward.w1.weight", "feed_forward.w3.weight"},
                            {"linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight"},
                            {"linear_attn.in_proj_b.weight", "linear_attn.in_proj_a.weight"}}};
}

} // namespace fvlm
