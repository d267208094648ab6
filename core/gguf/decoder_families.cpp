#include "gguf/decoder_families.h"

#include "base/error.h"
#include "base/text.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace fvlm::gguf {
namespace {

using Head = DecoderFamily::Head;
using Pairs = DecoderFamily::Pairs;

// By how much the scores of the Gemmas with this many layers are multiplied.
double usual_attention_scale(const DecoderConfig& config) {
  const bool largest = config.num_hidden_layers == (config.model_type == "gemma2" ? 46 : 62);
  return 1 /
         std::sqrt(static_cast<double>(largest ? config.hidden_size / config.num_attention_heads : config.head_dim));
}

void check_gemma(const DecoderConfig& config, Problems& problems) {
  const double usual = usual_attention_scale(config);
  if (std::abs(config.attention_multiplier / usual - 1) > 1e-6)
    problems.add("'query_pre_attn_scalar' is not {}", std::llround(std::pow(usual, -2)));
}

void check_gemma2(const DecoderConfig& config, Problems& problems) {
  if (!config.has_windows()) problems.add("no layer has a sliding window");
  if (config.attn_logit_softcapping == 0 || config.final_logit_softcapping == 0)
    problems.add("scores or logits have no bound");
  check_gemma(config, problems);
}

void check_smollm3(const DecoderConfig& config, Problems& problems) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    if (config.has_rope(i) != ((i + 1) % 4 != 0))
      return problems.add("other layers than every fourth have no rotary positions");
}

void add_granite(const DecoderConfig& config, DecoderKeys& keys) {
  keys.number("attention.scale", config.attention_multiplier);
  keys.number("embedding_scale", config.embedding_multiplier);
  keys.number("residual_scale", config.residual_multiplier);
  keys.number("logit_scale", config.logits_scaling);
}

constexpr Name glm_names[] = {{"post_self_attn_layernorm", "post_attention_norm"},
                              {"post_attention_layernorm", "ffn_norm"},
                              {"post_mlp_layernorm", "post_ffw_norm"},
                              {"mlp.gate_up_proj", "ffn_up"}};
// Gemma's, and OLMo 2's.
constexpr Name four_norms[] = {{"post_attention_layernorm", "post_attention_norm"}};

constexpr Name lfm2_names[] = {{"operator_norm", "attn_norm"},
                               {"ffn_norm", "ffn_norm"},
                               {"self_attn.q_layernorm", "attn_q_norm"},
                               {"self_attn.k_layernorm", "attn_k_norm"},
                               {"self_attn.out_proj", "attn_output"},
                               {"feed_forward.w1", "ffn_gate"},
                               {"feed_forward.w3", "ffn_up"},
                               {"feed_forward.w2", "ffn_down"},
                               {"feed_forward.gate", "ffn_gate_inp"},
                               {"feed_forward.experts.w1", "ffn_gate_exps"},
                               {"feed_forward.experts.w3", "ffn_up_exps"},
                               {"feed_forward.experts.w2", "ffn_down_exps"},
                               {"feed_forward.expert_bias", "exp_probs_b"},
                               {"conv.conv", "shortconv.conv"},
                               {"conv.in_proj", "shortconv.in_proj"},
                               {"conv.out_proj", "shortconv.out_proj"}};

void check_lfm2(const DecoderConfig& config, Problems& problems) {
  if (config.conv_bias) problems.add("convolutions have biases");
}

// Layers with a convolution in place of attention have no heads.
void add_lfm2(const DecoderConfig& config, DecoderKeys& keys) {
  std::vector<int32_t> heads;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    heads.push_back(config.has_convolution(i) ? 0 : static_cast<int32_t>(config.num_key_value_heads));
  keys.set("attention.head_count_kv", std::move(heads));
  keys.size("shortconv.l_cache", config.conv_taps);
}

int64_t leading_dense_layers(const DecoderConfig& config) {
  int64_t layers = 0;
  while (layers < config.num_hidden_layers && !config.has_experts(layers)) ++layers;
  return layers;
}

void check_lfm2_moe(const DecoderConfig& config, Problems& problems) {
  check_lfm2(config, problems);
  if (!config.use_expert_bias) problems.add("experts are chosen without a bias ('use_expert_bias' is false)");
}

void add_lfm2_moe(const DecoderConfig& config, DecoderKeys& keys) {
  add_lfm2(config, keys);
  keys.size("leading_dense_block_count", leading_dense_layers(config));
  keys.size("expert_gating_func", 2); // a sigmoid
}

// The taps of each feature, [features, 1, taps], are a matrix there.
std::optional<Tensor> taps(const std::string& name, std::span<const int64_t> shape, Read read) {
  if (shape.size() != 3 || shape[1] != 1) return std::nullopt;
  return Tensor{name, {shape[0], shape[2]}, &f32, std::move(read)};
}

std::optional<Tensor> lfm2_tensor(const DecoderConfig&, const std::string& name, const TensorView& view) {
  if (name.ends_with("exp_probs_b.expert_bias"))
    return Tensor{name.substr(0, name.rfind('.')) + ".bias", view.shape, &f32, numbers_of(view)};
  return taps(name, view.shape, numbers_of(view));
}

constexpr Name gemma4_names[] = {{"post_attention_layernorm", "post_attention_norm"},
                                 {"per_layer_input_gate", "inp_gate"},
                                 {"per_layer_projection", "proj"},
                                 {"post_per_layer_input_norm", "post_norm"},
                                 {"layer_scalar", "layer_output_scale"}};

void check_gemma4(const DecoderConfig& config, Problems& problems) {
  if (config.hidden_size_per_layer_input > 0 && config.vocab_size_per_layer_input != config.vocab_size)
    problems.add("the layers' tables have {} tokens, and the embedding {}", config.vocab_size_per_layer_input,
                 config.vocab_size);
}

void add_gemma4(const DecoderConfig& config, DecoderKeys& keys) {
  std::vector<int32_t> widths;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) widths.push_back(static_cast<int32_t>(config.mlp_width_of(i)));
  keys.set("feed_forward_length", std::move(widths));
  keys.size("attention.key_length", config.global_head_dim);
  keys.size("attention.value_length", config.global_head_dim);
  keys.size("attention.key_length_swa", config.head_dim);
  keys.size("attention.value_length_swa", config.head_dim);
  keys.size("rope.dimension_count", config.global_head_dim); // rope_freqs says which of them are rotated
  keys.size("rope.dimension_count_swa", config.head_dim);
  keys.size("attention.shared_kv_layers", config.num_kv_shared_layers);
  keys.size("embedding_length_per_layer_input", config.hidden_size_per_layer_input);
  keys.size("attention.sliding_window", config.sliding_window);
  keys.set("attention.sliding_window_pattern",
           std::vector<bool>(config.sliding_layers.begin(), config.sliding_layers.end()));
}

constexpr Name qwen3_5_names[] = {{"post_attention_layernorm", "post_attention_norm"},
                                  {"linear_attn.in_proj_qkv", "attn_qkv"},
                                  {"linear_attn.in_proj_z", "attn_gate"},
                                  {"linear_attn.in_proj_b", "ssm_beta"},
                                  {"linear_attn.in_proj_a", "ssm_alpha"},
                                  {"linear_attn.conv1d", "ssm_conv1d"},
                                  {"linear_attn.norm", "ssm_norm"},
                                  {"linear_attn.out_proj", "ssm_out"},
                                  {"linear_attn.A_log", "ssm_a"},
                                  {"linear_attn.dt_bias", "ssm_dt"}};

void check_qwen3_5(const DecoderConfig& config, Problems& problems) {
  if (config.delta_rules() > 0 && config.delta_key_dim != config.delta_value_dim)
    problems.add("keys of linear attention have {} features, and values {}", config.delta_key_dim,
                 config.delta_value_dim);
  if (config.delta_rules() > 0 && config.rms_norm_eps != 1e-6) // by which its queries and keys are normalized, too
    problems.add("'rms_norm_eps' is {:g}, and not 1e-06", config.rms_norm_eps);
}

void add_qwen3_5(const DecoderConfig& config, DecoderKeys& keys) {
  keys.size("ssm.conv_kernel", config.conv_taps);
  keys.size("ssm.state_size", config.delta_key_dim);
  keys.size("ssm.group_count", config.delta_key_heads);
  keys.size("ssm.time_step_rank", config.delta_value_heads);
  keys.size("ssm.inner_size", config.delta_values());
  std::vector<bool> recurrent;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) recurrent.push_back(config.has_delta_rule(i));
  keys.set("attention.recurrent_layers", std::move(recurrent));
}

// llama.cpp has the value heads of all keys in turns, [value of a key][key], and our files key by key.
std::optional<Tensor> qwen3_5_tensor(const DecoderConfig& config, const std::string& name, const TensorView& view) {
  const auto is = [&](const char* end) { return name.ends_with(end); };
  const auto keys = static_cast<uint64_t>(config.delta_key_heads),
             values = static_cast<uint64_t>(config.delta_value_heads);
  // `width`: elements of a head; those of the first `before` of a sequence of `all` stay where they are.
  const auto in_turns = [&](uint64_t width, uint64_t before = 0) {
    return blocks_of(view, width, [=, of_key = values / std::max<uint64_t>(keys, 1)](uint64_t block) {
      const uint64_t all = before + values, line = block / all * all, at = block - line;
      if (at < before) return block;
      return line + before + (at - before) % keys * of_key + (at - before) / keys;
    });
  };
  const uint64_t hidden = view.shape.size() > 1 ? static_cast<uint64_t>(view.shape[1]) : 1,
                 head = static_cast<uint64_t>(config.delta_value_dim);
  const auto reordered = [&](Read read) { return Tensor{name, view.shape, nullptr, std::move(read)}; };
  if (is("attn_qkv.weight")) return reordered(in_turns(head * hidden, 2 * keys));
  if (is("attn_gate.weight")) return reordered(in_turns(head * hidden));
  if (is("ssm_beta.weight") || is("ssm_alpha.weight")) return reordered(in_turns(hidden));
  if (is("ssm_out.weight")) return reordered(in_turns(head));
  if (is("ssm_conv1d.weight"))
    return taps(name, view.shape, in_turns(head * static_cast<uint64_t>(view.shape[2]), 2 * keys));
  if (is("ssm_dt.dt_bias")) return Tensor{name.substr(0, name.rfind('.')) + ".bias", view.shape, &f32, in_turns(1)};
  if (is("ssm_a.A_log"))
    return Tensor{name.substr(0, name.rfind('.')), view.shape, &f32,
                  [read = in_turns(1)](uint64_t first, std::span<float> out) {
                    read(first, out);
                    for (float& number : out) number = -std::exp(number);
                  }};
  return std::nullopt;
}

constexpr DecoderFamily families[] = {
    {.model_type = "llama", .architecture = "llama", .pairs = Pairs::adjacent, .as_llama = true},
    {.model_type = "mistral", .architecture = "llama", .pairs = Pairs::adjacent, .as_llama = true},
    {.model_type = "ministral3", .architecture = "mistral3", .pairs = Pairs::adjacent},
    {.model_type = "smollm3", .architecture = "smollm3", .pairs = Pairs::adjacent, .check = check_smollm3},
    {.model_type = "granite",
     .architecture = "granite",
     .pairs = Pairs::adjacent,
     .as_llama = true,
     .add_keys = add_granite},
    {.model_type = "olmo2", .architecture = "olmo2", .whole_heads = true, .head = Head::separate, .names = four_norms},
    {.model_type = "gemma", .architecture = "gemma", .head = Head::tied},
    {.model_type = "gemma2",
     .architecture = "gemma2",
     .head = Head::tied,
     .window_every = 2,
     .names = four_norms,
     .check = check_gemma2},
    {.model_type = "gemma3_text",
     .architecture = "gemma3",
     .window_every = 6,
     .names = four_norms,
     .check = check_gemma},
    {.model_type = "gemma4_text",
     .architecture = "gemma4",
     .has_own_windows = true,
     .names = gemma4_names,
     .check = check_gemma4,
     .add_keys = add_gemma4},
    {.model_type = "qwen2", .architecture = "qwen2", .whole_heads = true},
    {.model_type = "qwen3", .architecture = "qwen3"},
    {.model_type = "qwen3_moe", .architecture = "qwen3moe"},
    {.model_type = "qwen2_vl_text", .architecture = "qwen2vl", .whole_heads = true},
    {.model_type = "qwen2_5_vl_text", .architecture = "qwen2vl", .whole_heads = true},
    {.model_type = "qwen3_vl_text", .architecture = "qwen3vl"},
    {.model_type = "qwen3_vl_moe_text", .architecture = "qwen3vlmoe"},
    {.model_type = "qwen3_5_text",
     .architecture = "qwen35",
     .names = qwen3_5_names,
     .check = check_qwen3_5,
     .add_keys = add_qwen3_5,
     .tensor = qwen3_5_tensor},
    {.model_type = "qwen3_5_moe_text",
     .architecture = "qwen35moe",
     .names = qwen3_5_names,
     .check = check_qwen3_5,
     .add_keys = add_qwen3_5,
     .tensor = qwen3_5_tensor},
    {.model_type = "ernie4_5", .architecture = "ernie4_5"},
    {.model_type = "paddleocr_vl_text", .architecture = "paddleocr"},
    {.model_type = "glm4", .architecture = "glm4", .names = glm_names},
    {.model_type = "glm_ocr_text", .architecture = "glm4", .pairs = Pairs::apart, .names = glm_names},
    {.model_type = "lfm2",
     .architecture = "lfm2",
     .whole_heads = true,
     .names = lfm2_names,
     .check = check_lfm2,
     .add_keys = add_lfm2,
     .tensor = lfm2_tensor},
    {.model_type = "lfm2_moe",
     .architecture = "lfm2moe",
     .whole_heads = true,
     .leading_dense = true,
     .names = lfm2_names,
     .check = check_lfm2_moe,
     .add_keys = add_lfm2_moe,
     .tensor = lfm2_tensor},
};

void check_experts(const DecoderConfig& config, const DecoderFamily& family, Problems& problems) {
  if (!config.norm_topk_prob)
    problems.add("the weights of a row's experts are not divided by their sum ('norm_topk_prob' is false)");
  if (config.routed_scaling_factor != 1)
    problems.add("'routed_scaling_factor' is {:g}, not 1", config.routed_scaling_factor);
  for (int64_t i = family.leading_dense ? leading_dense_layers(config) : 0; i < config.num_hidden_layers; ++i)
    if (!config.has_experts(i)) return problems.add("layer {} has no experts", i);
}

void check(const DecoderConfig& config, const DecoderFamily& family, Problems& problems) {
  if (config.num_experts > 0) check_experts(config, family, problems);
  if ((config.out_bias || config.mlp_bias) && !family.as_llama)
    problems.add("linears of attention outputs or the MLP have biases");
  if (config.rope_scaling.type == RopeScaling::Type::llama3 && !family.as_llama)
    problems.add("rotary positions are scaled as in Llama 3");
  if (family.whole_heads && config.head_dim * config.num_attention_heads != config.hidden_size)
    problems.add("{} heads of {} features are not the {} of a row", config.num_attention_heads, config.head_dim,
                 config.hidden_size);
  if (family.head == Head::tied && !config.tie_word_embeddings) problems.add("the output head is not the embedding");
  if (family.window_every == 0 && !family.has_own_windows && config.has_windows())
    problems.add("layers have a sliding window");
  if (config.rope_scaling.type == RopeScaling::Type::yarn && !config.rope_scaling.truncate)
    problems.add("YaRN's range is not of whole dimensions ('truncate' is false)");
  if (family.check) family.check(config, problems);
}

} // namespace

const DecoderFamily& decoder_family_of(const DecoderConfig& config, const std::string& where) {
  std::vector<std::string> known;
  for (const DecoderFamily& family : families) {
    known.emplace_back(family.model_type);
    if (config.model_type != family.model_type) continue;
    Problems problems;
    check(config, family, problems);
    problems.raise(where, fmt::format("llama.cpp's {} cannot have this; `fvlm-engine serve` and `export` without "
                                      "--gguf take the model as it is",
                                      family.architecture));
    return family;
  }
  throw Error(ErrorKind::data, "decoders of the type {} are not written to GGUF", shown(config.model_type))
      .at(where)
      .advise("those that are: {}; `fvlm-engine serve` and `export` without --gguf take any", join(known, ", "));
}

} // namespace fvlm::gguf
