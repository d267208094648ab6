// The family of Llama (transformers' LlamaForCausalLM; SmolLM2 is one): RMSNorm, rotary positions, grouped queries, a
// gated MLP. Mistral, Ministral 3, SmolLM3, Granite, OLMo 2, Gemma, Gemma 3, Qwen2, Qwen3, the decoders of Qwen2-VL,
// Qwen2.5-VL, Qwen3-VL, PaddleOCR-VL, GLM-OCR, GLM-4.1V and HunyuanOCR, Qwen3.5, LFM2, GLM-4, Ernie 4.5, HunYuan,
// nanochat and GhostVis are variations of it: the traits in DecoderConfig say which.
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
void refuse_unsupported(ConfigReader& config, const std::string& model_type) {
  config.refuse_unless(config.flag("is_causal", true), "is_causal", "a row attends to itself and those before it");
  // Files of Granite may name the dropout that it was trained with, on which no answer depends.
  if (config.has("attention_dropout") && model_type != "granite")
    config.refuse_unless(config.number("attention_dropout", 0, 0, 1) == 0, "attention_dropout",
                         "towers are trained without dropout; set it to 0");
  for (const char* key : {"num_experts", "num_local_experts"})
    if (config.has(key))
      config.refuse_unless(config.whole(key, 0, 0) <= 1, key, "the MLP is one, not a mixture of experts");
  if (config.has("use_bidirectional_attention"))
    config.refuse_unless(!config.flag("use_bidirectional_attention", false), "use_bidirectional_attention",
                         "a row attends to itself and those before it");
}

void refuse_windows_by_layer(ConfigReader& config) {
  const auto layers = config.texts(layer_types_key);
  config.refuse_unless(std::ranges::all_of(layers, [](const auto& one) { return one == full_attention; }),
                       layer_types_key, "every layer has full attention, without a sliding window");
}

// All layers of Mistral have a window, those of Ministral 3 where its config says one. One of as many rows as there are
// positions hides nothing.
void read_mistral_window(ConfigReader& config, DecoderConfig& out) {
  const int64_t positions = out.max_position_embeddings, otherwise = out.model_type == mistral ? 4096 : positions,
                window =
                    config.has_null(window_key) ? positions : config.whole(window_key, otherwise, 1, most_positions);
  if (window >= positions) return;
  out.sliding_window = window;
  out.sliding_layers.assign(static_cast<size_t>(out.num_hidden_layers), 1);
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

// What each layer is, where the config says it: full_attention, or the other one.
std::vector<std::string> read_layer_types(ConfigReader& config, int64_t count, const char* other) {
  const std::vector<std::string> layers = config.texts(layer_types_key);
  config.refuse_unless(layers.empty() || std::ssize(layers) == count, layer_types_key,
                       fmt::format("there are {} layers, and each has an entry", count));
  config.refuse_unless(
      std::ranges::all_of(layers, [other](const auto& one) { return one == full_attention || one == other; }),
      layer_types_key, fmt::format("an entry is {} or {}", full_attention, other));
  return std::ssize(layers) == count ? layers : std::vector<std::string>();
}

// Which layers of Gemma 2 and Gemma 3 have a sliding window: every second, or all but every sixth, or what the config
// says.
void read_gemma_windows(ConfigReader& config, DecoderConfig& out) {
  const auto count = static_cast<size_t>(out.num_hidden_layers);
  const std::vector<std::string> layers = read_layer_types(config, out.num_hidden_layers, sliding_attention);
  const auto pattern = static_cast<size_t>(out.model_type == gemma2 ? 2 : config.whole("sliding_window_pattern", 6, 1));
  for (size_t i = 0; i < count; ++i)
    out.sliding_layers.push_back(!layers.empty() ? layers[i] == sliding_attention : (i + 1) % pattern != 0);
  out.sliding_window = config.whole(window_key, 4096, 1, most_positions);
}

// The width that LFM2's MLP has of the one in the config.
int64_t lfm2_mlp_width(ConfigReader& config, int64_t width) {
  if (!config.flag("block_auto_adjust_ff_dim", true)) return width;
  width = 2 * width / 3;
  constexpr const char* factor = "block_ffn_dim_multiplier";
  if (config.has_null(factor)) return width;
  const int64_t multiple = config.whole("block_multiple_of", 256, 1, most_features);
  const double wider = config.number(factor, 1, 1e-6, 1e6) * static_cast<double>(width);
  width = (static_cast<int64_t>(wider) + multiple - 1) / multiple * multiple;
  if (width < 1 || width > most_features)
    config.problems().add("'intermediate_size', '{}' and 'block_multiple_of' make an MLP of width {}: expected 1 to {}",
                          factor, width, most_features);
  return width;
}

// Which layers of LFM2 are convolutions, and what its first files call otherwise.
void read_lfm2(ConfigReader& config, DecoderConfig& out) {
  constexpr const char* attending_key = "full_attn_idxs";
  const std::vector<std::string> layers = read_layer_types(config, out.num_hidden_layers, convolution);
  const std::vector<int64_t> attending = config.wholes(attending_key, {});
  for (int64_t i = 0; i < out.num_hidden_layers; ++i)
    out.conv_layers.push_back(!layers.empty() ? layers[static_cast<size_t>(i)] == convolution
                                              : config.has(attending_key) && std::ranges::count(attending, i) == 0);
  out.conv_taps = config.whole("conv_L_cache", 3, 1, most_taps);
  out.conv_bias = config.flag("conv_bias", false);
  out.tie_word_embeddings = config.flag("tie_embedding", out.tie_word_embeddings);
  out.intermediate_size = lfm2_mlp_width(config, config.whole("block_ff_dim", out.intermediate_size, 1, most_features));
}

// Which layers of Qwen3.5 have a delta rule: all but every fourth, or what the config says.
void read_qwen3_5(ConfigReader& config, DecoderConfig& out) {
  const std::vector<std::string> layers = read_layer_types(config, out.num_hidden_layers, linear_attention);
  const int64_t interval = config.whole("full_attention_interval", 4, 1, most_layers);
  for (int64_t i = 0; i < out.num_hidden_layers; ++i)
    out.delta_layers.push_back(!layers.empty() ? layers[static_cast<size_t>(i)] == linear_attention
                                               : (i + 1) % interval != 0);
  out.conv_taps = config.whole("linear_conv_kernel_dim", 4, 1, most_taps);
  out.delta_key_heads = config.whole("linear_num_key_heads", 16, 1, most_heads);
  out.delta_value_heads = config.whole("linear_num_value_heads", 32, 1, most_heads);
  out.delta_key_dim = config.whole("linear_key_head_dim", 128, 1, most_heads);
  out.delta_value_dim = config.whole("linear_value_head_dim", 128, 1, most_heads);
  if (out.delta_value_heads % out.delta_key_heads)
    config.problems().add("'linear_num_key_heads' = {} is no divisor of 'linear_num_value_heads' = {}",
                          out.delta_key_heads, out.delta_value_heads);
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
  if (decoder.gelu_gate && activation == "gelu") activation = gelu_tanh; // what Gemma's first files mean by it
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
  if (model_type == mistral || model_type == ministral3) read_mistral_window(config, out);
  if (model_type == "smollm3") out.no_rope_layers = smollm3_rope_layers(config, out.num_hidden_layers);
  const bool has_mrope = out.has_row_axes();
  const Rope usual{
      out.rope_theta,   {}, out.mrope_section, out.mrope_interleaved, out.partial_rotary_factor, out.may_rotate_part,
      out.norms_rotated};
  if (model_type == gemma2 || model_type == gemma3)
    read_gemma_windows(config, out);
  else if (model_type != lfm2 && model_type != qwen3_5)
    refuse_windows_by_layer(config);
  const Rope rope = model_type == gemma3 ? read_rope_by_layer(config, out.max_position_embeddings, usual,
                                                              out.local_rope_theta.emplace(Rope::default_theta))
                                         : read_rope(config, out.max_position_embeddings, usual);
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
  out.tie_word_embeddings = config.flag("tie_word_embeddings", out.tie_word_embeddings);
  out.eos_token_id = config.wholes("eos_token_id", out.eos_token_id);
  if (model_type == lfm2) read_lfm2(config, out);
  if (model_type == qwen3_5) read_qwen3_5(config, out);

  check_activation(config, out);
  refuse_unsupported(config, model_type);
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
  if (config.model_type == mistral || config.model_type == ministral3) // where the key is missing, Mistral has a window
    out[window_key] = config.sliding_window == 0 ? nlohmann::json() : nlohmann::json(config.sliding_window);
  if (config.model_type == gemma2 || config.model_type == gemma3) {
    out[query_scale_key] = std::llround(std::pow(config.attention_multiplier, -2));
    out[window_key] = config.sliding_window;
    for (const int64_t slides : config.sliding_layers)
      out[layer_types_key].push_back(slides ? sliding_attention : full_attention);
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
  if (config.model_type == lfm2) {
    out["block_auto_adjust_ff_dim"] = false;
    out["conv_L_cache"] = config.conv_taps;
    out["conv_bias"] = config.conv_bias;
    for (int64_t i = 0; i < config.num_hidden_layers; ++i)
      out[layer_types_key].push_back(config.has_convolution(i) ? convolution : full_attention);
  }
  if (config.model_type == qwen3_5) {
    out["linear_conv_kernel_dim"] = config.conv_taps;
    out["linear_num_key_heads"] = config.delta_key_heads;
    out["linear_num_value_heads"] = config.delta_value_heads;
    out["linear_key_head_dim"] = config.delta_key_dim;
    out["linear_value_head_dim"] = config.delta_value_dim;
    for (int64_t i = 0; i < config.num_hidden_layers; ++i)
      out[layer_types_key].push_back(config.has_delta_rule(i) ? linear_attention : full_attention);
  }
  if (!config.no_rope_layers.empty()) out["no_rope_layers"] = config.no_rope_layers;
  if (config.embedding_initializer_range) out[embedding_range_key] = *config.embedding_initializer_range;
  if (config.embedding_norm || config.final_logit_softcapping != 0) // some have one where the key is missing
    out[cap_key] =
        config.final_logit_softcapping == 0 ? nlohmann::json() : nlohmann::json(config.final_logit_softcapping);
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

WeightLayout layout(const DecoderConfig& config) {
  const int64_t width = config.hidden_size, mlp = config.intermediate_size;
  const int64_t attended = config.num_attention_heads * config.head_dim,
                key = config.num_key_value_heads * config.head_dim;
  const TensorNames names = names_of(config);
  const FreshMatrices fresh(config);
  const Initializer one{Initializer::Kind::constant, 1}, zero{Initializer::Kind::constant, 0};
  WeightLayout out;
  out.ignored = {"model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"}; // buffers of old files
  // A layer that drafts tokens.
  if (config.model_type == qwen3_5) out.ignored.push_back("mtp.*");
  if (config.model_type == glm_ocr) out.ignored.push_back(fmt::format("model.layers.{}.*", config.num_hidden_layers));
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
      if (config.qk_norm || config.qk_row_norm) {
        add_norm(layer + names.q_norm, config.qk_norm ? config.head_dim : attended);
        add_norm(layer + names.k_norm, config.qk_norm ? config.head_dim : key);
      }
      add_last(layer + names.out, width, attended, config.out_bias);
    }
    if (config.post_norms) add_norm(layer + names.attention_post_norm, width);
    if (config.pre_norms) add_norm(layer + names.mlp_norm, width);
    if (config.post_norms) add_norm(layer + names.mlp_post_norm, width);
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
                    {paddleocr, "PaddleOCRTextModel"},
                    {ernie, "Ernie4_5ForCausalLM"},
                    {glm4, "Glm4ForCausalLM"},
                    {glm_ocr, "GlmOcrTextModel"},
                    {glm4v, "Glm4vTextModel"},
                    {hunyuan, "HunYuanDenseV1ForCausalLM"},
                    {hunyuan_vl, "HunYuanVLTextModel"},
                    {lfm2, "Lfm2ForCausalLM"},
                    {"nanochat", "NanoChatForCausalLM"},
                    {"ghostvis", "GhostVisForCausalLM"}},
          .read = read,
          .write = write,
          .layout = layout,
          .fused_weights = {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
                            {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"},
                            {"mlp.gate_proj.weight", "mlp.up_proj.weight"},
                            {"mlp.gate_proj.bias", "mlp.up_proj.bias"},
                            {"feed_forward.w1.weight", "feed_forward.w3.weight"},
                            {"linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight"},
                            {"linear_attn.in_proj_b.weight", "linear_attn.in_proj_a.weight"}}};
}

} // namespace fvlm
