// Configs of encoders and decoders: Hugging Face's config.json as structs, and what tensors such a model consists of.
// Which there are: core/model/encoder/encoders.inc and core/model/decoder/decoders.inc.
#pragma once
#include "model/weights/layout.h"
#include "model/weights/rope.h"

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

class ConfigReader;

// The bounds of a clipped linear, as transformers calls them.
inline constexpr std::array<const char*, 4> linear_bounds{"input_min", "input_max", "output_min", "output_max"};

// The tokens around an image and its parts, from which the decoder's rows have positions on a canvas:
// model/canvas_positions.h.
struct CanvasTokens {
  int64_t image_start_id = 0, image_end_id = 0, slice_start_id = 0, slice_end_id = 0, newline_id = 0;
  bool operator==(const CanvasTokens&) const = default;
};

// The fields are called as in transformers, and have its defaults when config.json leaves them out.
struct VisionConfig {
  std::string model_type;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0; // 0: as many as of queries
  int64_t intermediate_size = 0;   // of the MLP: hidden_size * mlp_ratio
  int64_t image_size = 0;          // at which the position embedding was trained
  int64_t patch_size = 0;
  int64_t num_channels = 0;
  double layer_norm_eps = 0;
  std::string hidden_act = "gelu"; // or "quick_gelu", "gelu_pytorch_tanh"; "silu" gates the MLP
  double layerscale_value = 0;     // for fresh weights
  double initializer_range = 0;    // for fresh weights
  double initializer_factor = 1;   // for fresh weights
  bool use_mask_token = true;
  bool attention_bias = true; // of queries, keys and values; of encoders of GLM's, of all linears
  bool use_qk_norm = false;   // RMSNorm of all queries and of all keys of a row, over their heads
  bool qk_head_norm = false;  // RMSNorm of each head of queries and keys
  bool rms_norm = false;      // of the layers; otherwise LayerNorm
  bool output_norm = true;    // last_hidden_state is behind a norm, where the family leaves it to the config
  // A patch of a frame of another size takes the position embedding at its fraction of the frame; false: they are
  // interpolated.
  bool position_buckets = false;
  bool position_antialias = false; // interpolated with antialiasing
  // Of cells: learned positions are those of the middles of equal squares of an image; false: they reach its margins.
  bool position_centers = false;
  bool position_cubic = false; // they are, and interpolated by cubics, and not linearly
  // Of cells: behind this layer, 0 being the first, the patches of each square of 2 x 2 attend to each other and become
  // one row; -1: none do.
  int64_t insert_layer_id = -1;
  // Of cells: a decoder with M-RoPE counts their rows as it counts those of text.
  bool rows_as_text = false;
  // Of cells: a decoder with M-RoPE counts rows on a canvas.
  std::optional<CanvasTokens> canvas;
  bool bare_layers = false;    // layers are called layers.0 and not encoder.layer.0
  bool position_class = false; // before them the table has a row of a class token, which there is none of
  // Of cells with SigLIP's names: queries and keys are rotated by the lines and columns of patches.
  bool axial_rope = false;
  double rope_theta = 10000; // of such rotations
  // Of cells: learned positions of so many lines and of as many columns, which are added; 0: there are none.
  int64_t position_embedding_size = 0;
  bool use_clipped_linears = false; // layers' linears have bounds of what they read and of what they make
  int64_t num_register_tokens = 0;  // learned rows of each frame between the class token's and the patches'
  int64_t max_bytes = 0;            // of a text, whose bytes are read in place of images; 0: images are
  bool vision_use_head = false;     // its files have the weights of a pooling head, which is not used

  // Where frames are cells of images of any size: patches along each side of a cell, how many frames of a video the
  // patch embedding reads together, or how often the pixels of a still image, and what the model's own merger makes of
  // a cell.
  int64_t spatial_merge_size = 0; // 0: frames are images
  int64_t temporal_patch_size = 0, out_hidden_size = 0;
  int64_t tokens_per_second = 0; // by which positions in time grow in a video; 0: by one from step to step
  // Of each layer 1, or 0: it has a gated convolution over the squares of conv_kernel_size x conv_kernel_size patches
  // of an image in place of attention. Empty: none has.
  std::vector<int64_t> conv_layers;
  int64_t conv_kernel_size = 0;
  // Pixels along each side of the windows that all layers but these attend to; 0: all attend to whole images.
  int64_t window_size = 0;
  std::vector<int64_t> fullatt_block_indexes;
  // Learned positions of a square grid, which is interpolated to that of an image; 0: there are none.
  int64_t num_position_embeddings = 0;
  // Layers whose hidden states the connector reads besides the last one's, by DeepStack: 0 is the first.
  std::vector<int64_t> deepstack_visual_indexes;
  // Of Granite Docling, whose files may have weights that are not used: of a finer way through its connector, whose
  // squares are half as long as scale_factor says, and of a router of so many features; 0: there is none.
  bool use_fine_route = false;
  int64_t scale_factor = 0, density_router_hidden_size = 0;

  // The output, as a LLaVA's config.json says it. The layers whose hidden states it is, side by side: 1 is the first,
  // -1 the last; none: last_hidden_state. "default" drops the class token, "full" keeps it.
  std::vector<int64_t> vision_feature_layers;
  std::string vision_feature_select_strategy = "full";

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  int64_t key_heads() const { return num_key_value_heads > 0 ? num_key_value_heads : num_attention_heads; }
  bool has_convolution(int64_t layer) const {
    return !conv_layers.empty() && conv_layers[static_cast<size_t>(layer)] != 0;
  }
  bool reads_cells() const { return spatial_merge_size > 0; }
  // Patches along each side of the squares that become one row each.
  int64_t merged_side() const { return insert_layer_id >= 0 ? 2 : 1; }
  // The number of a layer that counts from the last one, counted from the first.
  int64_t from_first(int64_t layer) const { return layer < 0 ? num_hidden_layers + 1 + layer : layer; }
  // Number of layers that the output depends on.
  int64_t layers_used() const {
    if (vision_feature_layers.empty()) return num_hidden_layers;
    int64_t used = 0;
    for (const int64_t layer : vision_feature_layers) used = std::max(used, from_first(layer));
    return used;
  }
  int64_t output_width() const { return hidden_size * std::max<int64_t>(1, std::ssize(vision_feature_layers)); }
  int64_t position_side() const { return std::llround(std::sqrt(static_cast<double>(num_position_embeddings))); }
  int64_t grid() const { return image_size / patch_size; } // position embeddings a side, the CLS one apart
  bool operator==(const VisionConfig&) const = default;
};

// Whether rows have positions on several axes, and which: model/row_positions.h.
enum class RowAxes { none, mrope, canvas, xdrope };

// What decoders are made of: the sizes of Llama, and the traits in which other families differ from it.
struct DecoderConfig {
  std::string model_type;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rope_theta = Rope::default_theta;
  RopeScaling rope_scaling;
  double partial_rotary_factor = 1; // of each head's features the leading ones that are rotated
  bool may_rotate_part = false;     // whether a config may say another factor than 1
  bool rope_reversed = false;       // heads are rotated by the negative angle: x1 cos + x2 sin, x2 cos - x1 sin
  // Files have the two features of a rotated pair next to each other, and not half of the rotated features apart.
  bool adjacent_pairs = false;
  // Of each layer 1, or 0: it has no rotary positions. Empty: all have them.
  std::vector<int64_t> no_rope_layers;
  // M-RoPE: how many pairs of a head's features are rotated by the positions in time, height and width. Empty: rows
  // have one position. XD-RoPE, of norms_rotated: twice as many features of a head are rotated by the position in the
  // sequence, width, height and image.
  std::vector<int64_t> mrope_section;
  bool mrope_interleaved = false; // the axes' pairs take turns, in place of one axis behind the other
  // Of each layer 1, or 0: it attends to the last `sliding_window` rows alone, its own among them. Empty: none does.
  std::vector<int64_t> sliding_layers;
  int64_t sliding_window = 0;
  std::optional<double> local_rope_theta; // of these layers, without scaling; absent: they are rotated as the others
  // Of each layer 1, or 0: it has a gated convolution over the last `conv_taps` rows, its own among them, in place of
  // attention. Empty: none has.
  std::vector<int64_t> conv_layers;
  int64_t conv_taps = 0;
  // Of each layer 1, or 0: it has a gated delta rule (ops/recurrence.h) of so many heads in place of attention,
  // which reads its rows through a convolution over the last `conv_taps`. Empty: none has.
  std::vector<int64_t> delta_layers;
  int64_t delta_key_heads = 0, delta_value_heads = 0, delta_key_dim = 0, delta_value_dim = 0;
  // Of each layer 1, or 0: its MLP is a mixture of so many experts of moe_intermediate_size features, of which a router
  // chooses num_experts_per_tok for each row (ops/experts.h). Empty: none is.
  std::vector<int64_t> expert_layers;
  int64_t num_experts = 0, num_experts_per_tok = 0, moe_intermediate_size = 0;
  // Of one more expert, which reads all rows and whose output is multiplied by the sigmoid of a gate; 0: none.
  int64_t shared_expert_intermediate_size = 0;
  bool sigmoid_router = false;      // an expert's score is a sigmoid, in place of the softmax over all
  bool use_expert_bias = false;     // a bias is added to the scores for the choice alone
  bool norm_topk_prob = false;      // the weights of a row's experts are divided by their sum
  double topk_sum_epsilon = 0;      // added to that sum
  double routed_scaling_factor = 1; // of the weights
  // Gemma 4's: heads of layers without a window have `global_head_dim` features. The last `num_kv_shared_layers` layers
  // read the keys and values of an earlier one, and have an MLP of twice the width where `use_double_wide_mlp`. A row
  // has `hidden_size_per_layer_input` features for each layer besides, of a table of so many tokens; 0: none.
  int64_t global_head_dim = 0, num_kv_shared_layers = 0, hidden_size_per_layer_input = 0,
          vocab_size_per_layer_input = 0;
  bool use_double_wide_mlp = false;
  double rms_norm_eps = 0;
  double initializer_range = 0;                      // for fresh weights
  std::optional<double> embedding_initializer_range; // of the token embedding; absent: initializer_range
  bool tie_word_embeddings = false;
  std::vector<int64_t> eos_token_id; // generation stops at any of these
  bool qkv_bias = false, out_bias = false, mlp_bias = false, conv_bias = false;
  // What attention makes of a head is multiplied by the sigmoid of a gate, which q_proj makes beside the head's query.
  bool gated_attention = false;
  bool head_gates = false;     // the same by one gate a head, which gate_proj makes of what q_proj reads
  bool qk_norm = false;        // RMSNorm of each head of q and k
  bool norms_rotated = false;  // these norms read queries and keys that are rotated already
  bool qk_row_norm = false;    // RMSNorm of all heads of q together, and of all of k
  bool pre_norms = true;       // what each branch reads is normalized
  bool post_norms = false;     // what each branch adds is normalized
  bool norm_weights = true;    // whether RMSNorms have weights
  bool unit_offset = false;    // RMSNorms multiply by 1 + their weight
  bool embedding_norm = false; // RMSNorm of the rows that enter
  bool gated_mlp = true;      // down(silu(gate x) * up x), named gate_proj, up_proj, down_proj; else fc2(relu(fc1 x)^2)
  bool fused_gate = false;    // files have gate_proj and up_proj as one tensor, gate_up_proj
  bool gelu_gate = false;     // the MLP's gate is GELU, approximated with tanh, in place of SiLU
  bool scaled_tokens = false; // embeddings of tokens, unlike rows of images, are multiplied by sqrt(hidden_size)
  bool operator_names = false;        // tensors are called as in LFM2 and LFM3: operator_norm, feed_forward.w1
  double final_logit_softcapping = 0; // logits are cap * tanh(logits / cap); 0: as they are
  double attn_logit_softcapping = 0;  // the same of the scores
  double embedding_multiplier = 1;    // of the rows that enter
  double residual_multiplier = 1;     // of what each branch adds to the residual
  double attention_multiplier = 0;    // of the scores; 0: 1 / sqrt(head_dim)
  double logits_scaling = 1;          // logits are divided by it

  bool has_rope(int64_t layer) const {
    return no_rope_layers.empty() || no_rope_layers[static_cast<size_t>(layer)] != 0;
  }
  RowAxes row_axes() const {
    return mrope_section.empty() ? RowAxes::none : norms_rotated ? RowAxes::xdrope : RowAxes::mrope;
  }
  bool has_row_axes() const { return row_axes() != RowAxes::none; }
  bool has_window(int64_t layer) const {
    return !sliding_layers.empty() && sliding_layers[static_cast<size_t>(layer)] != 0;
  }
  bool has_windows() const { return std::ranges::count(sliding_layers, 1) > 0; }
  bool has_convolution(int64_t layer) const {
    return !conv_layers.empty() && conv_layers[static_cast<size_t>(layer)] != 0;
  }
  int64_t convolutions() const { return std::ranges::count(conv_layers, 1); }
  int64_t head_dim_of(int64_t layer) const {
    return global_head_dim > 0 && !has_window(layer) ? global_head_dim : head_dim;
  }
  // The layer whose keys and values this one reads: itself, or the last one of its type before those that share; -1:
  // there is none.
  int64_t kv_layer(int64_t layer) const {
    const int64_t own = num_hidden_layers - num_kv_shared_layers;
    if (layer < own) return layer;
    int64_t found = own - 1;
    while (found >= 0 && has_window(found) != has_window(layer)) --found;
    return found;
  }
  int64_t mlp_width_of(int64_t layer) const {
    return intermediate_size * (use_double_wide_mlp && kv_layer(layer) != layer ? 2 : 1);
  }
  bool has_delta_rule(int64_t layer) const {
    return !delta_layers.empty() && delta_layers[static_cast<size_t>(layer)] != 0;
  }
  int64_t delta_rules() const { return std::ranges::count(delta_layers, 1); }
  bool has_experts(int64_t layer) const {
    return !expert_layers.empty() && expert_layers[static_cast<size_t>(layer)] != 0;
  }
  int64_t mixtures() const { return std::ranges::count(expert_layers, 1); } // layers with experts
  // Features of all keys, of all values, and of what a delta rule's convolution reads.
  int64_t delta_keys() const { return delta_key_heads * delta_key_dim; }
  int64_t delta_values() const { return delta_value_heads * delta_value_dim; }
  int64_t delta_rows() const { return 2 * delta_keys() + delta_values(); }
  // Features of q_proj: the queries, and the gates where there are some.
  int64_t query_rows() const { return num_attention_heads * head_dim * (gated_attention ? 2 : 1); }
  int64_t rotary_dim() const { return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor); }
  double token_scale() const { return scaled_tokens ? std::sqrt(static_cast<double>(hidden_size)) : 1; }
  bool operator==(const DecoderConfig&) const = default;
};

// The config of the encoder where config.json is that of a whole model, such as CLIP with its text encoder; any other
// config as it is.
nlohmann::json encoder_config(nlohmann::json config);

// Notes a form of quantization that is not supported. Which weights are quantized, the file of weights says.
void check_quantization_config(ConfigReader& reader);
// Throws Error(data) at `where` with everything in the config that is wrong or not supported.
VisionConfig read_vision_config(const nlohmann::json& config, const std::string& where);
DecoderConfig read_decoder_config(const nlohmann::json& config, const std::string& where);

// The config.json of an encoder or decoder that no folder brought along.
nlohmann::json config_json(const VisionConfig& config);
nlohmann::json config_json(const DecoderConfig& config);

WeightLayout layout_of(const VisionConfig& config);
// Tokens that the vision tower makes of a frame of this size.
int64_t tokens_per_frame(const VisionConfig& config, int64_t height, int64_t width);
WeightLayout layout_of(const DecoderConfig& config);

// The class of transformers that loads its folder: "Dinov2Model".
const char* architecture_of(const VisionConfig& config);
const char* architecture_of(const DecoderConfig& config);

} // namespace fvlm
