#include "base/error.h"
#include "data/tokenizer.h"
#include "gguf/parts.h"
#include "gguf/vision_families.h"
#include "model/connector/squares_of_patches.h"

#include <algorithm>
#include <optional>

namespace fvlm::gguf {
namespace {

// Queries, keys and values one by one.
std::vector<Tensor> split_qkv(const std::string& own, size_t at, const TensorView& view) {
  constexpr std::string_view fused = "attn.qkv.";
  std::vector<int64_t> shape = view.shape;
  shape[0] /= 3;
  std::vector<Tensor> out;
  for (const std::string part : {"attn.q.", "attn.k.", "attn.v."})
    out.push_back({own.substr(0, at) + part + own.substr(at + fused.size()), shape, nullptr,
                   numbers_of(view, out.size() * view.elements() / 3)});
  return out;
}

// The embedding of a patch of two frames, [out, channel, frame, row, column], as the sum of what it makes of each.
std::vector<Tensor> split_frames(const std::string& own, const TensorView& view) {
  const auto square = static_cast<uint64_t>(view.shape[3] * view.shape[4]);
  const auto frame = [&view, square](uint64_t index) {
    return blocks_of(view, square, [index](uint64_t block) { return 2 * block + index; });
  };
  const std::vector<int64_t> shape{view.shape[0], view.shape[1], view.shape[3], view.shape[4]};
  return {{own, shape, nullptr, frame(0)}, {own + ".1", shape, nullptr, frame(1)}};
}

// That of a patch as a row of pixels, [out, row, column, channel], as a convolution.
Tensor convolution(const std::string& own, const TensorView& view, int64_t patch) {
  const auto pixels = static_cast<uint64_t>(patch * patch);
  return {own, {view.shape[0], 3, patch, patch}, nullptr, blocks_of(view, 1, [pixels](uint64_t at) {
            const uint64_t inside = at % (3 * pixels);
            return at - inside + inside % pixels * 3 + inside / pixels;
          })};
}

// What llama.cpp has of a tensor, under its own name; types are chosen later.
std::vector<Tensor> pieces_of(const std::string& own, const TensorView& view, const VisionFamily& family,
                              const VisionConfig& vision) {
  if (const size_t at = own.find("attn.qkv."); at != std::string::npos && !family.fused_qkv)
    return split_qkv(own, at, view);
  if (view.shape.size() == 5) return split_frames(own, view);
  const bool embeds_patches = own.find("patch_embed") != std::string::npos;
  if (embeds_patches && view.shape.size() == 2 && own.ends_with(".weight") &&
      view.shape[1] == 3 * vision.patch_size * vision.patch_size)
    return {convolution(own, view, vision.patch_size)};
  // A linear with bounds is called by itself there, and a bound is a list of one number.
  std::string name = own;
  constexpr std::string_view bounded = ".linear.";
  if (const size_t at = name.find(bounded); at != std::string::npos) name.replace(at, bounded.size(), ".");
  Tensor whole{name, view.shape, nullptr, numbers_of(view)};
  if (whole.shape.empty()) whole.shape = {1};
  if (family.adjacent_pairs && (own.ends_with("q_proj.weight") || own.ends_with("k_proj.weight")))
    whole.read = neighbours(view, vision.num_attention_heads);
  return {whole};
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

void add_vision_keys(File& file, const VisionConfig& vision, const VisionFamily& family, const DecoderConfig& decoder,
                     const ImageProcessor& images, int64_t factor) {
  file.set("general.architecture", std::string("clip"));
  file.set("general.type", std::string("mmproj"));
  file.set("clip.has_vision_encoder", true);
  file.set("clip.projector_type", std::string(family.projector));
  if (vision.hidden_act != "quick_gelu")
    file.set(vision.hidden_act == "silu" ? "clip.use_silu" : "clip.use_gelu", true);
  constexpr int64_t any_size = 560; // for images of any size, of which llama.cpp wants to see one
  VisionKeys keys{file};
  keys.size("image_size", vision.reads_cells() ? any_size : vision.image_size);
  keys.size("patch_size", vision.patch_size);
  keys.size("embedding_length", vision.hidden_size);
  keys.size("feed_forward_length", vision.intermediate_size);
  keys.size("block_count", vision.layers_used());
  keys.size("attention.head_count", vision.num_attention_heads);
  keys.size("projection_dim", decoder.hidden_size);
  keys.set("attention.layer_norm_epsilon", static_cast<float>(vision.layer_norm_eps));
  keys.set("image_mean", std::vector<float>(images.mean.begin(), images.mean.end()));
  keys.set("image_std", std::vector<float>(images.deviation.begin(), images.deviation.end()));
  if (factor > 1) keys.size(family.cell_frames > 0 ? "spatial_merge_size" : "projector.scale_factor", factor);
  if (family.add_keys) family.add_keys(vision, images, keys);
}

// What llama.cpp adds, transposes or convolves with has one of its plain types.
const ElementType& vision_type(const ElementType& type, const Tensor& tensor) {
  const bool of_positions = tensor.name.starts_with("v.position_embd");
  if (tensor.shape.size() == 2 && !of_positions && tensor.name != "mm.input_projection.weight")
    return fitting_type(type, tensor.shape);
  return tensor.shape.size() > 1 && type.id == f16.id && !of_positions ? f16 : f32;
}

// The embedding of the token behind each line of a Pixtral's patches, which stands in the decoder's file.
Tensor line_break(const ModelDirectory& model, const ModelPart& decoder) {
  constexpr const char* token = "[IMG_BREAK]";
  const auto tokenizer = Tokenizer::from_file(decoder.folder.path / "tokenizer.json");
  const auto id = tokenizer.special_id(token);
  if (!id)
    throw Error(ErrorKind::data, "the tokenizer has no special token '{}', which stands behind the lines of an image",
                token)
        .at(decoder.folder.path.string());
  const auto found = std::ranges::find_if(model.parameters(), [&](const Parameter& parameter) {
    return parameter.name == decoder.name + ".model.embed_tokens.weight";
  });
  const TensorView& rows = *found->view;
  return {"v.token_embd.img_break",
          {rows.shape[1]},
          &f32,
          numbers_of(rows, static_cast<uint64_t>(*id) * static_cast<uint64_t>(rows.shape[1]))};
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
  check_vision(vision, family, *images, part.folder.path.string());
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
    for (Tensor& tensor : pieces_of(own, *parameter.view, family, vision)) {
      tensor.name = vision_name(tensor.name, [&](const std::string& each) {
        return of_encoder ? encoder_name(each) : connector_name(each, family, vision.deepstack_visual_indexes);
      });
      while (tensor.shape.size() > 1 && tensor.shape.front() == 1) tensor.shape.erase(tensor.shape.begin());
      tensor.type = &vision_type(type, tensor);
      if (!of_encoder && std::ranges::find(family.shifted, module) != family.shifted.end())
        tensor.read = shifted(std::move(tensor.read), 1);
      file.tensors.push_back(std::move(tensor));
    }
  }
  if (family.projector == std::string_view("pixtral"))
    file.tensors.push_back(line_break(model, description.sole_part(Role::decoder)));
  return file;
}

} // namespace fvlm::gguf
