// Of decoders whose layers differ from each other, and of what their layers are in place of attention: what each layer
// is, as config.json has it.
#include "base/text.h"
#include "model/decoder/llama/config.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::llama {
namespace {

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

// What each layer is, where the config says it: full_attention, or one of the others.
std::vector<std::string> read_layer_types(ConfigReader& config, int64_t count, std::vector<std::string> known) {
  known.emplace(known.begin(), full_attention);
  const std::vector<std::string> layers = config.texts(layer_types_key);
  config.refuse_unless(layers.empty() || std::ssize(layers) == count, layer_types_key,
                       fmt::format("there are {} layers, and each has an entry", count));
  config.refuse_unless(
      std::ranges::all_of(layers, [&known](const auto& one) { return std::ranges::count(known, one) > 0; }),
      layer_types_key, "an entry is " + join_or(known));
  return std::ssize(layers) == count ? layers : std::vector<std::string>();
}

// Which layers of Gemma 2 and Gemma 3 have a sliding window: every second, or all but every sixth, or what the config
// says.
void read_gemma_windows(ConfigReader& config, DecoderConfig& out) {
  const auto count = static_cast<size_t>(out.num_hidden_layers);
  const std::vector<std::string> layers = read_layer_types(config, out.num_hidden_layers, {sliding_attention});
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
  const std::vector<std::string> layers = read_layer_types(config, out.num_hidden_layers, {convolution});
  const std::vector<int64_t> attending = config.wholes(attending_key, {});
  for (int64_t i = 0; i < out.num_hidden_layers; ++i)
    out.conv_layers.push_back(!layers.empty() ? layers[static_cast<size_t>(i)] == convolution
                                              : config.has(attending_key) && std::ranges::count(attending, i) == 0);
  out.conv_taps = config.whole("conv_L_cache", 3, 1, most_taps);
  out.conv_bias = config.flag("conv_bias", false);
  out.tie_word_embeddings = config.flag("tie_embedding", out.tie_word_embeddings);
  if (out.model_type == lfm2)
    out.intermediate_size =
        lfm2_mlp_width(config, config.whole("block_ff_dim", out.intermediate_size, 1, most_features));
}

// What each layer of LFM3 is: in turns, or as the config says.
void read_lfm3(ConfigReader& config, DecoderConfig& out) {
  const std::vector<std::string> layers =
      read_layer_types(config, out.num_hidden_layers, {sliding_attention, convolution});
  for (int64_t i = 0; i < out.num_hidden_layers; ++i) {
    const std::string type = !layers.empty()       ? layers[static_cast<size_t>(i)]
                             : i % 4 == 2          ? full_attention
                             : i % 4 == 0 && i > 0 ? sliding_attention
                                                   : convolution;
    out.conv_layers.push_back(type == convolution);
    out.sliding_layers.push_back(type == sliding_attention);
  }
  if (out.has_windows()) out.sliding_window = config.whole(window_key, 256, 1, most_positions);
  out.conv_taps = config.whole("conv_L_cache", 7, 1, most_taps);
  out.conv_bias = config.flag("conv_bias", false);
}

// Which layers of Qwen3.5 have a delta rule: all but every fourth, or what the config says.
void read_qwen3_5(ConfigReader& config, DecoderConfig& out) {
  const std::vector<std::string> layers = read_layer_types(config, out.num_hidden_layers, {linear_attention});
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

} // namespace

void read_layers(ConfigReader& config, DecoderConfig& out) {
  const std::string& type = out.model_type;
  read_experts(config, out);
  if (type == mistral || type == ministral3) read_mistral_window(config, out);
  if (type == "smollm3") out.no_rope_layers = smollm3_rope_layers(config, out.num_hidden_layers);
  if (type == gemma2 || type == gemma3) return read_gemma_windows(config, out);
  if (type == lfm2 || type == lfm2_moe) return read_lfm2(config, out);
  if (type == lfm3) return read_lfm3(config, out);
  if (type == qwen3_5 || type == qwen3_5_moe) return read_qwen3_5(config, out);
  refuse_windows_by_layer(config);
}

nlohmann::json layer_types_of(const DecoderConfig& config) {
  nlohmann::json types;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    types.push_back(config.has_convolution(i)  ? convolution
                    : config.has_delta_rule(i) ? linear_attention
                    : config.has_window(i)     ? sliding_attention
                                               : full_attention);
  return types;
}

} // namespace fvlm::llama
