#include "gguf/vision_families.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

#include <algorithm>
#include <cmath>

namespace fvlm::gguf {
namespace {

// Modules are called in as many ways as there are encoders.
constexpr Name encoder_names[] = {{"embeddings.class_embedding", "v.class_embd"},
                                  {"embeddings.patch_embedding", "v.patch_embd"},
                                  {"embeddings.position_embedding", "v.position_embd"},
                                  {"pre_layrnorm", "v.pre_ln"},
                                  {"post_layernorm", "v.post_ln"},
                                  {"embeddings.cls_token", "v.class_embd"},
                                  {"embeddings.patch_embeddings.projection", "v.patch_embd"},
                                  {"embeddings.position_embeddings", "v.position_embd.weight"},
                                  {"layernorm", "v.post_ln"},
                                  {"patch_embed.proj.weight", "v.patch_embd.weight"},
                                  {"patch_embed.proj.weight.1", "v.patch_embd.weight.1"},
                                  {"patch_embed.proj.bias", "v.patch_embd.bias"},
                                  {"pos_embed", "v.position_embd"},
                                  {"patch_conv", "v.patch_embd"},
                                  {"ln_pre", "v.pre_ln"},
                                  {"patch_embedder.input_proj", "v.patch_embd"},
                                  {"patch_embedder.position_embedding_table", "v.position_embd.weight"}};
constexpr Name layer_names[] = {{"layer_norm1", "ln1"},
                                {"self_attn.q_proj", "attn_q"},
                                {"self_attn.k_proj", "attn_k"},
                                {"self_attn.v_proj", "attn_v"},
                                {"self_attn.out_proj", "attn_out"},
                                {"layer_norm2", "ln2"},
                                {"mlp.fc1", "ffn_up"},
                                {"mlp.fc2", "ffn_down"},
                                {"layernorm_before", "ln1"},
                                {"attention.q_proj", "attn_q"},
                                {"attention.k_proj", "attn_k"},
                                {"attention.v_proj", "attn_v"},
                                {"attention.q_norm", "attn_q_norm"},
                                {"attention.k_norm", "attn_k_norm"},
                                {"attention.projection_layer", "attn_out"},
                                {"lambda_1", "ls1.weight"},
                                {"layernorm_after", "ln2"},
                                {"lambda_2", "ls2.weight"},
                                {"norm1", "ln1"},
                                {"attn.qkv", "attn_qkv"},
                                {"attn.q", "attn_q"},
                                {"attn.k", "attn_k"},
                                {"attn.v", "attn_v"},
                                {"attn.q_norm", "attn_q_norm"},
                                {"attn.k_norm", "attn_k_norm"},
                                {"attn.proj", "attn_out"},
                                {"norm2", "ln2"},
                                {"mlp.gate_proj", "ffn_gate"},
                                {"mlp.up_proj", "ffn_up"},
                                {"mlp.down_proj", "ffn_down"},
                                {"mlp.linear_fc1", "ffn_up"},
                                {"mlp.linear_fc2", "ffn_down"},
                                // Pixtral
                                {"attention.o_proj", "attn_out"},
                                {"attention_norm", "ln1"},
                                {"feed_forward.gate_proj", "ffn_gate"},
                                {"feed_forward.up_proj", "ffn_up"},
                                {"feed_forward.down_proj", "ffn_down"},
                                {"ffn_norm", "ln2"},
                                // Gemma 4
                                {"input_layernorm", "ln1"},
                                {"self_attn.o_proj", "attn_out"},
                                {"self_attn.q_norm", "attn_q_norm"},
                                {"self_attn.k_norm", "attn_k_norm"},
                                {"post_attention_layernorm", "attn_post_norm"},
                                {"pre_feedforward_layernorm", "ln2"},
                                {"post_feedforward_layernorm", "ffn_post_norm"}};

void check_idefics3(const VisionConfig&, const ImageProcessor& images, Problems& problems) {
  if (!images.splits_into_tiles || images.edge == 0)
    problems.add("images are not resized to their longest edge and cut into tiles");
}

void add_idefics3(const VisionConfig&, const ImageProcessor& images, VisionKeys& keys) {
  keys.size("preproc_image_size", images.edge);
}

void check_llava(const VisionConfig& vision, const ImageProcessor& images, Problems& problems) {
  if (images.splits_into_tiles) problems.add("images are cut into tiles");
  if (vision.model_type != "clip_vision_model") return;
  if (vision.vision_feature_select_strategy != "default")
    problems.add("the decoder reads the class token ('vision_feature_select_strategy' is not default)");
  log_warning("llama.cpp (since May 2025, its pull request 25844 is to mend it) puts the class token of a CLIP behind "
              "the patches, and answers worse about images than this model");
}

void add_llava(const VisionConfig& vision, const ImageProcessor&, VisionKeys& keys) {
  // Behind which hidden states are read; llama.cpp would leave out one layer.
  keys.set("feature_layer", std::vector<int32_t>{static_cast<int32_t>(vision.layers_used())});
}

void add_internvl(const VisionConfig&, const ImageProcessor& images, VisionKeys& keys) {
  keys.size("preproc_min_tiles", images.splits_into_tiles ? images.min_tiles : 1);
  keys.size("preproc_max_tiles", images.splits_into_tiles ? images.max_tiles : 1);
}

// The distance of a Qwen2.5-VL's layers whose patches attend to the whole image, of which the first is that far from
// the beginning; 0: they are not evenly spaced.
int64_t full_attention_every(const VisionConfig& vision) {
  const std::vector<int64_t>& layers = vision.fullatt_block_indexes;
  const int64_t every = layers.empty() ? 0 : layers.front() + 1;
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i] + 1 != static_cast<int64_t>(i + 1) * every) return 0;
  return every > 0 && vision.num_hidden_layers / every == static_cast<int64_t>(layers.size()) ? every : 0;
}

void check_windows(const VisionConfig& vision, const ImageProcessor&, Problems& problems) {
  constexpr int64_t window = 112; // of all published models
  if (vision.window_size != window) problems.add("'window_size' is {}, not {}", vision.window_size, window);
  if (full_attention_every(vision) == 0)
    problems.add("'fullatt_block_indexes' are not evenly spaced up to the last layer");
}

void add_windows(const VisionConfig& vision, const ImageProcessor&, VisionKeys& keys) {
  keys.size("n_wa_pattern", full_attention_every(vision));
}

void add_deepstack(const VisionConfig& vision, const ImageProcessor&, VisionKeys& keys) {
  keys.size("image_size", vision.position_side() * vision.patch_size);
  if (vision.deepstack_visual_indexes.empty()) return;
  std::vector<bool> layers(static_cast<size_t>(vision.num_hidden_layers));
  for (const int64_t layer : vision.deepstack_visual_indexes) layers[static_cast<size_t>(layer)] = true;
  keys.set("is_deepstack_layers", std::move(layers));
}

void add_pixels(const VisionConfig&, const ImageProcessor& images, VisionKeys& keys) {
  keys.size("image_min_pixels", images.min_pixels);
  keys.size("image_max_pixels", images.max_pixels);
}

void add_longest_side(const VisionConfig& vision, const ImageProcessor& images, VisionKeys& keys) {
  keys.size("image_size", std::max(images.size.height, images.size.width));
  keys.size("preproc_image_size", std::max(images.size.height, images.size.width));
  keys.size("spatial_merge_size", vision.spatial_merge_size);
}

// llama.cpp's encoder makes values from -1 to 1 of those from 0 to 1 itself, as Gemma 4 does.
void add_gemma4(const VisionConfig&, const ImageProcessor& images, VisionKeys& keys) {
  std::vector<float> mean, deviation;
  for (size_t i = 0; i < 3; ++i) {
    mean.push_back(images.mean[i] - images.deviation[i]);
    deviation.push_back(2 * images.deviation[i]);
  }
  keys.set("image_mean", std::move(mean));
  keys.set("image_std", std::move(deviation));
}

const std::vector<Name> qwen2_vl_names = {{"ln_q", "v.post_ln"}, {"mlp.0", "mm.0"}, {"mlp.2", "mm.2"}};
const std::vector<Name> mistral3_names = {{"norm", "mm.input_norm"},
                                          {"patch_merger.merging_layer", "mm.patch_merger"},
                                          {"linear_1", "mm.1"},
                                          {"linear_2", "mm.2"}};

const std::vector<VisionFamily> families{
    {.connector = "pixel_shuffle",
     .projector = "idefics3",
     .model_types = {"idefics3", "smolvlm"},
     .names = {{"modality_projection.proj", "mm.model.fc"}},
     .check = check_idefics3,
     .add_keys = add_idefics3},
    {.connector = "gemma3",
     .projector = "gemma3",
     .model_types = {"gemma3"},
     .names = {{"mm_soft_emb_norm", "mm.soft_emb_norm"}, {"mm_input_projection_weight", "mm.input_projection.weight"}},
     .shifted = {"mm_soft_emb_norm"}},
    {.connector = "mlp",
     .projector = "mlp",
     .model_types = {"llava"},
     .names = {{"linear_1", "mm.0"}, {"linear_2", "mm.2"}},
     .check = check_llava,
     .add_keys = add_llava},
    {.connector = "internvl",
     .projector = "internvl",
     .model_types = {"internvl"},
     .names = {{"layer_norm", "mm.model.mlp.0"}, {"linear_1", "mm.model.mlp.1"}, {"linear_2", "mm.model.mlp.3"}},
     .add_keys = add_internvl},
    {.connector = "qwen2_vl",
     .projector = "qwen2vl_merger",
     .model_types = {"qwen2_vl"},
     .names = qwen2_vl_names,
     .cell_frames = 2},
    {.connector = "qwen2_vl",
     .projector = "qwen2.5vl_merger",
     .model_types = {"qwen2_5_vl"},
     .names = qwen2_vl_names,
     .rms_norm = true,
     .cell_frames = 2,
     .check = check_windows,
     .add_keys = add_windows},
    {.connector = "qwen2_vl",
     .projector = "qwen3vl_merger",
     .model_types = {"qwen3_vl", "qwen3_5", "qwen3_vl_moe", "qwen3_5_moe"},
     .names = qwen2_vl_names,
     .fused_qkv = true,
     .cell_frames = 2,
     .add_keys = add_deepstack},
    {.connector = "qwen2_vl",
     .projector = "paddleocr",
     .model_types = {"paddleocr_vl"},
     .names = {{"ln_q", "mm.input_norm"}, {"mlp.0", "mm.1"}, {"mlp.2", "mm.2"}},
     .cell_frames = 1,
     .add_keys = add_pixels},
    {.connector = "glm_ocr",
     .projector = "glm4v",
     .model_types = {"glm_ocr"},
     .names = {{"downsample", "mm.patch_merger"},
               {"proj", "mm.model.fc"},
               {"post_projection_norm", "mm.post_norm"},
               {"gate_proj", "mm.gate"},
               {"up_proj", "mm.up"},
               {"down_proj", "mm.down"}},
     .rms_norm = true,
     .cell_frames = 2},
    {.connector = "lfm2_vl",
     .projector = "lfm2",
     .model_types = {"lfm2_vl"},
     .names = {{"layer_norm", "mm.input_norm"}, {"linear_1", "mm.1"}, {"linear_2", "mm.2"}}},
    {.connector = "mistral3",
     .projector = "pixtral",
     .model_types = {"mistral3"},
     .names = mistral3_names,
     .rms_norm = true,
     .adjacent_pairs = true,
     .add_keys = add_longest_side},
    {.connector = "mlp",
     .projector = "pixtral",
     .model_types = {"llava"},
     .names = {{"linear_1", "mm.1"}, {"linear_2", "mm.2"}},
     .rms_norm = true,
     .adjacent_pairs = true,
     .add_keys = add_longest_side},
    {.connector = "mistral3",
     .projector = "lightonocr",
     .model_types = {"lighton_ocr"},
     .names = mistral3_names,
     .rms_norm = true,
     .adjacent_pairs = true,
     .add_keys = add_longest_side},
    {.connector = "gemma4",
     .projector = "gemma4v",
     .model_types = {"gemma4"},
     .names = {{"embedding_projection", "mm.input_projection"},
               {"std_bias", "v.std_bias"},
               {"std_scale", "v.std_scale"}},
     .rms_norm = true,
     .rope_theta = 100,
     .add_keys = add_gemma4}};

} // namespace

const VisionFamily& vision_family_of(const ModelDirectory& model) {
  const ModelDescription& description = model.description();
  const auto& whole = description.sole_part(Role::decoder).folder.whole_model;
  const auto config = whole.is_object() ? whole.find("config") : whole.end();
  const std::string type = config != whole.end() && config->is_object() ? config->value("model_type", "") : "";
  const bool has_pixtral = description.encoder().model_type == "pixtral";
  std::vector<std::string> known;
  for (const VisionFamily& family : families)
    for (const std::string& each : family.model_types) {
      // A folder of LLaVA's has a Pixtral, or another encoder.
      const bool is_of_encoder = each != "llava" || has_pixtral == (family.projector == std::string_view("pixtral"));
      if (type == each && description.connector()->name() == family.connector && is_of_encoder) return family;
      if (std::ranges::find(known, each) == known.end()) known.push_back(each);
    }
  throw Error(ErrorKind::data, "the vision of this model cannot be exported as GGUF: it has the connector {}{}",
              description.connector()->name(), type.empty() ? "" : fmt::format(" and was imported from a {}", type))
      .at(model.path().string())
      .advise("of models that were imported from {} folders it can; --decoder-only exports the decoder by itself, for "
              "texts without images",
              join_or(known));
}

void check_vision(const VisionConfig& vision, const VisionFamily& family, const ImageProcessor& images,
                  const std::string& where) {
  Problems problems;
  constexpr int64_t largest_width = 3200, largest_layers = 45; // InternViT-6B, which llama.cpp knows by its size
  const bool is_largest = vision.hidden_size == largest_width && vision.num_hidden_layers == largest_layers;
  if (vision.rms_norm != (family.rms_norm || is_largest))
    problems.add("the encoder has {}", vision.rms_norm ? "RMSNorms" : "no RMSNorms");
  if (vision.rope_theta != family.rope_theta)
    problems.add("'rope_theta' is {:g}, not {:g}", vision.rope_theta, family.rope_theta);
  constexpr int64_t cell = 2; // of all published models
  if (family.cell_frames > 0 && (vision.spatial_merge_size != cell || vision.temporal_patch_size != family.cell_frames))
    problems.add("cells have {} x {} patches of {}, not 2 x 2 of {}", vision.spatial_merge_size,
                 vision.spatial_merge_size, counted(vision.temporal_patch_size, "frame"), family.cell_frames);
  const bool reads_inside = family.add_keys == add_llava;
  if (!reads_inside && vision.layers_used() != vision.num_hidden_layers)
    problems.add("the connector reads another layer than the last ('vision_feature_layer' is {})",
                 vision.vision_feature_layers.front());
  if (vision.vision_feature_layers.size() > 1)
    problems.add("the connector reads several layers ('vision_feature_layer' is a list)");
  if (images.tile && *images.tile != vision.image_size)
    problems.add("tiles have {} pixels a side, and the encoder's images {}", *images.tile, vision.image_size);
  if (std::abs(images.rescale_factor * 255 - 1) > 1e-6)
    problems.add("'rescale_factor' is {}, not 1 / 255", images.rescale_factor);
  if (family.check) family.check(vision, images, problems);
  problems.raise(where, fmt::format("llama.cpp's {} cannot have this; --decoder-only exports the decoder by itself",
                                    family.projector));
}

std::optional<std::string> encoder_name(const std::string& module) {
  if (const auto found = theirs_of(module, encoder_names)) return found;
  for (const char* prefix : {"encoder.layers.", "encoder.layer.", "blocks.", "transformer.layers."})
    if (const auto found = layer_name(module, prefix, "v.blk.", layer_names)) return found;
  return std::nullopt;
}

std::optional<std::string> connector_name(const std::string& module, const VisionFamily& family,
                                          const std::vector<int64_t>& deepstack) {
  if (const auto found = theirs_of(module, family.names)) return found;
  constexpr Name merger[] = {{"norm", "norm"}, {"linear_fc1", "fc1"}, {"linear_fc2", "fc2"}};
  for (size_t i = 0; i < deepstack.size(); ++i)
    for (const Name& name : merger)
      if (module == fmt::format("deepstack_merger_list.{}.{}", i, name.ours))
        return fmt::format("v.deepstack.{}.{}", deepstack[i], name.theirs);
  return std::nullopt;
}

} // namespace fvlm::gguf
