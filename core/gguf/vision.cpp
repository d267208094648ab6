#include "base/error.h"
#include "base/log.h"
#include "base/problems.h"
#include "base/text.h"
#include "data/media/image_processor.h"
#include "gguf/names.h"
#include "gguf/parts.h"
#include "model/connector/squares_of_patches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace fvlm::gguf {
namespace {

// Of the encoders that are called as in CLIP, of InternVL's and of Qwen2-VL's.
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
                                  {"patch_embed.proj.weight.1", "v.patch_embd.weight.1"}};
constexpr Name encoder_layer_names[] = {{"layer_norm1", "ln1"},
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
                                        {"attn.q", "attn_q"},
                                        {"attn.k", "attn_k"},
                                        {"attn.v", "attn_v"},
                                        {"attn.proj", "attn_out"},
                                        {"norm2", "ln2"},
                                        {"mlp.gate_proj", "ffn_gate"},
                                        {"mlp.up_proj", "ffn_up"},
                                        {"mlp.down_proj", "ffn_down"}};

// A kind of whole models whose images llama.cpp can show to the decoder.
struct VisionFamily {
  const char *connector, *projector;    // ours, and llama.cpp's
  std::vector<std::string> model_types; // of the folders that such a model is imported from
  std::vector<Name> names;              // of the connector's modules
  std::vector<std::string> shifted;     // of these, to which llama.cpp adds no 1
};

const std::vector<Name> qwen2_vl_names = {{"ln_q", "v.post_ln"}, {"mlp.0", "mm.0"}, {"mlp.2", "mm.2"}};

const std::vector<VisionFamily>& vision_families() {
  static const std::vector<VisionFamily> all{
      {"pixel_shuffle", "idefics3", {"idefics3", "smolvlm"}, {{"modality_projection.proj", "mm.model.fc"}}, {}},
      {"gemma3",
       "gemma3",
       {"gemma3"},
       {{"mm_soft_emb_norm", "mm.soft_emb_norm"}, {"mm_input_projection_weight", "mm.input_projection.weight"}},
       {"mm_soft_emb_norm"}},
      {"mlp", "mlp", {"llava"}, {{"linear_1", "mm.0"}, {"linear_2", "mm.2"}}, {}},
      {"internvl",
       "internvl",
       {"internvl"},
       {{"layer_norm", "mm.model.mlp.0"}, {"linear_1", "mm.model.mlp.1"}, {"linear_2", "mm.model.mlp.3"}},
       {}},
      {"qwen2_vl", "qwen2vl_merger", {"qwen2_vl"}, qwen2_vl_names, {}},
      {"qwen2_vl", "qwen2.5vl_merger", {"qwen2_5_vl"}, qwen2_vl_names, {}}};
  return all;
}

const VisionFamily& vision_family_of(const ModelDirectory& model) {
  const ModelDescription& description = model.description();
  const auto& whole = description.sole_part(Role::decoder).folder.whole_model;
  const auto config = whole.is_object() ? whole.find("config") : whole.end();
  const std::string type = config != whole.end() && config->is_object() ? config->value("model_type", "") : "";
  std::vector<std::string> known;
  for (const VisionFamily& family : vision_families())
    for (const std::string& each : family.model_types) {
      if (type == each && description.connector()->name() == family.connector) return family;
      known.push_back(each);
    }
  throw Error(ErrorKind::data, "the vision of this model cannot be exported as GGUF: it has the connector {}{}",
              description.connector()->name(), type.empty() ? "" : fmt::format(" and was imported from a {}", type))
      .at(model.path().string())
      .advise("of models that were imported from {} folders it can; --decoder-only exports the decoder by itself, for "
              "texts without images",
              join_or(known));
}

std::optional<std::string> encoder_name(const std::string& module) {
  for (const auto& found :
       {theirs_of(module, encoder_names), layer_name(module, "encoder.layers.", "v.blk.", encoder_layer_names),
        layer_name(module, "encoder.layer.", "v.blk.", encoder_layer_names),
        layer_name(module, "blocks.", "v.blk.", encoder_layer_names)})
    if (found) return found;
  return std::nullopt;
}

// What llama.cpp has of a tensor: queries, keys and values one by one, and the embedding of a patch of two frames as
// the sum of what it makes of each. Types are chosen later.
std::vector<Tensor> pieces_of(const std::string& own, const TensorView& view) {
  constexpr std::string_view fused = "attn.qkv.";
  if (const size_t at = own.find(fused); at != std::string::npos) {
    std::vector<int64_t> shape = view.shape;
    shape[0] /= 3;
    std::vector<Tensor> out;
    for (const std::string part : {"attn.q.", "attn.k.", "attn.v."})
      out.push_back({own.substr(0, at) + part + own.substr(at + fused.size()), shape, nullptr,
                     numbers_of(view, out.size() * view.elements() / 3)});
    return out;
  }
  if (view.shape.size() != 5) return {{own, view.shape, nullptr, numbers_of(view)}};
  // [out, channel, frame, row, column]
  const auto square = static_cast<uint64_t>(view.shape[3] * view.shape[4]);
  const auto frame = [&view, square](uint64_t index) -> Read {
    return [read = numbers_of(view), square, index](uint64_t first, std::span<float> out) {
      for (size_t i = 0; i < out.size(); ++i)
        read((first + i) / square * 2 * square + index * square + (first + i) % square, out.subspan(i, 1));
    };
  };
  const std::vector<int64_t> shape{view.shape[0], view.shape[1], view.shape[3], view.shape[4]};
  return {{own, shape, nullptr, frame(0)}, {own + ".1", shape, nullptr, frame(1)}};
}

// Some tensors are no weight or bias of a module.
template <class Find>
std::string vision_name(const std::string& tensor, const Find& find) {
  if (const auto whole = find(tensor)) return *whole;
  const size_t dot = tensor.rfind('.');
  const std::optional<std::string> module = dot == std::string::npos ? std::nullopt : find(tensor.substr(0, dot));
  if (!module) throw Error(ErrorKind::internal, "{} of the vision model has no name in GGUF", tensor);
  return *module + tensor.substr(dot);
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

void check_cells(const VisionConfig& vision, Problems& problems) {
  constexpr int64_t cell = 2, frames = 2, window = 112; // of all published models
  if (vision.spatial_merge_size != cell || vision.temporal_patch_size != frames)
    problems.add("cells have {} x {} patches of {} frames, not 2 x 2 of 2", vision.spatial_merge_size,
                 vision.spatial_merge_size, vision.temporal_patch_size);
  if (vision.window_size > 0 && vision.window_size != window)
    problems.add("'window_size' is {}, not {}", vision.window_size, window);
  if (vision.window_size > 0 && full_attention_every(vision) == 0)
    problems.add("'fullatt_block_indexes' are not evenly spaced up to the last layer");
}

void check_vision(const VisionConfig& vision, const VisionFamily& family, const ImageProcessor& images,
                  Problems& problems) {
  const std::string projector = family.projector;
  constexpr int64_t largest_width = 3200, largest_layers = 45; // InternViT-6B, which llama.cpp knows by its size
  const bool has_rms_norm = projector == "qwen2.5vl_merger" ||
                            (vision.hidden_size == largest_width && vision.num_hidden_layers == largest_layers);
  if (vision.rms_norm != has_rms_norm) problems.add("the encoder has {}", vision.rms_norm ? "RMSNorms" : "no RMSNorms");
  if (vision.reads_cells()) check_cells(vision, problems);
  if (projector == "mlp") {
    if (vision.model_type == "clip_vision_model" && vision.vision_feature_select_strategy != "default")
      problems.add("the decoder reads the class token ('vision_feature_select_strategy' is not default)");
    if (images.splits_into_tiles) problems.add("images are cut into tiles");
    if (vision.model_type == "clip_vision_model")
      log_warning(
          "llama.cpp (since May 2025, its pull request 25844 is to mend it) puts the class token of a CLIP behind "
          "the patches, and answers worse about images than this model");
  } else if (vision.layers_used() != vision.num_hidden_layers) {
    problems.add("the connector reads another layer than the last ('vision_feature_layer' is {})",
                 vision.vision_feature_layers.front());
  }
  if (vision.vision_feature_layers.size() > 1)
    problems.add("the connector reads several layers ('vision_feature_layer' is a list)");
  if (projector == "idefics3" && (!images.splits_into_tiles || images.edge == 0))
    problems.add("images are not resized to their longest edge and cut into tiles");
  if (images.tile && *images.tile != vision.image_size)
    problems.add("tiles have {} pixels a side, and the encoder's images {}", *images.tile, vision.image_size);
  if (std::abs(images.rescale_factor * 255 - 1) > 1e-6)
    problems.add("'rescale_factor' is {}, not 1 / 255", images.rescale_factor);
}

void add_vision_keys(File& file, const VisionConfig& vision, const VisionFamily& family, const DecoderConfig& decoder,
                     const ImageProcessor& images, int64_t factor) {
  const auto size = [&](const std::string& key, int64_t value) {
    file.set("clip.vision." + key, static_cast<uint32_t>(value));
  };
  const std::string projector = family.projector;
  file.set("general.architecture", std::string("clip"));
  file.set("general.type", std::string("mmproj"));
  file.set("clip.has_vision_encoder", true);
  file.set("clip.projector_type", projector);
  if (vision.hidden_act != "quick_gelu")
    file.set(vision.hidden_act == "silu" ? "clip.use_silu" : "clip.use_gelu", true);
  constexpr int64_t any_size = 560; // for images of any size, of which llama.cpp wants to see one
  size("image_size", vision.reads_cells() ? any_size : vision.image_size);
  size("patch_size", vision.patch_size);
  size("embedding_length", vision.hidden_size);
  size("feed_forward_length", vision.intermediate_size);
  size("block_count", vision.layers_used());
  size("attention.head_count", vision.num_attention_heads);
  size("projection_dim", decoder.hidden_size);
  file.set("clip.vision.attention.layer_norm_epsilon", static_cast<float>(vision.layer_norm_eps));
  file.set("clip.vision.image_mean", std::vector<float>(images.mean.begin(), images.mean.end()));
  file.set("clip.vision.image_std", std::vector<float>(images.deviation.begin(), images.deviation.end()));
  if (projector == "mlp") // behind which hidden states are read; llama.cpp would leave out one layer
    file.set("clip.vision.feature_layer", std::vector<int32_t>{static_cast<int32_t>(vision.layers_used())});
  else
    size(vision.reads_cells() ? "spatial_merge_size" : "projector.scale_factor", factor);
  if (vision.window_size > 0) size("n_wa_pattern", full_attention_every(vision));
  if (projector == "idefics3") size("preproc_image_size", images.edge);
  if (projector == "internvl") {
    size("preproc_min_tiles", images.splits_into_tiles ? images.min_tiles : 1);
    size("preproc_max_tiles", images.splits_into_tiles ? images.max_tiles : 1);
  }
}

// What llama.cpp adds, transposes or convolves with has one of its plain types.
const ElementType& vision_type(const ElementType& type, const Tensor& tensor) {
  const bool of_positions = tensor.name.starts_with("v.position_embd");
  if (tensor.shape.size() == 2 && !of_positions && tensor.name != "mm.input_projection.weight")
    return fitting_type(type, tensor.shape);
  return tensor.shape.size() > 1 && type.id == f16.id && !of_positions ? f16 : f32;
}

} // namespace

File vision_file(const ModelDirectory& model, const ElementType& type) {
  const ModelDescription& description = model.description();
  const VisionFamily& family = vision_family_of(model);
  const ModelPart& part = description.sole_part(Role::encoder);
  const auto& vision = std::get<VisionConfig>(part.config);
  const auto images = find_image_processor(part.folder.path);
  if (!images)
    throw Error(ErrorKind::data, "there is no preprocessor_config.json, so it is unknown how images are prepared")
        .at(part.folder.path.string())
        .advise("copy the file from the folder that the model was downloaded as, or export with --decoder-only");
  Problems problems;
  check_vision(vision, family, *images, problems);
  problems.raise(part.folder.path.string(), fmt::format("llama.cpp's {} cannot have this; --decoder-only exports the "
                                                        "decoder by itself",
                                                        family.projector));
  const auto* squares = description.connector().as<connector::SquaresOfPatches>();
  File file{"mmproj.gguf", {}, {}};
  add_vision_keys(file, vision, family, description.decoder(), *images, squares ? squares->factor : 1);
  file.set("general.name", description.name);
  file.set("general.file_type", type.file_type);

  for (const Parameter& parameter : model.parameters()) {
    const ModelPart& owner = description.parts[parameter.part];
    if (owner.role() == Role::decoder) continue;
    const std::string own = parameter.name.substr(owner.name.size() + 1), module = own.substr(0, own.rfind('.'));
    const bool of_encoder = owner.role() == Role::encoder;
    for (Tensor& tensor : pieces_of(own, *parameter.view)) {
      tensor.name = vision_name(tensor.name, [&](const std::string& each) {
        return of_encoder ? encoder_name(each) : theirs_of(each, family.names);
      });
      while (tensor.shape.size() > 1 && tensor.shape.front() == 1) tensor.shape.erase(tensor.shape.begin());
      tensor.type = &vision_type(type, tensor);
      if (!of_encoder && std::ranges::find(family.shifted, module) != family.shifted.end())
        tensor.read = shifted(std::move(tensor.read), 1);
      file.tensors.push_back(std::move(tensor));
    }
  }
  return file;
}

} // namespace fvlm::gguf
