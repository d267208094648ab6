// The table of Hugging Face models that have an encoder, a connector and a decoder in one folder.
#include "model/weights/model_family.h"
#include "model/weights/whole_model_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace fvlm {
namespace {

using namespace whole_models;

using Json = nlohmann::json;

// What transformers takes for keys that are missing.
struct LlavaDefaults {
  Json vision;
  int64_t layer;
  const char *strategy, *decoder;
  int64_t image_token_id;
};

const LlavaDefaults of_llava{{{"model_type", "clip_vision_model"},
                              {"hidden_size", 1024},
                              {"intermediate_size", 4096},
                              {"num_hidden_layers", 24},
                              {"num_attention_heads", 16},
                              {"image_size", 336},
                              {"patch_size", 14}},
                             -2,
                             "default",
                             "llama",
                             32000};
const LlavaDefaults of_onevision{{{"model_type", "siglip_vision_model"},
                                  {"hidden_size", 1152},
                                  {"intermediate_size", 4304},
                                  {"num_hidden_layers", 26},
                                  {"num_attention_heads", 16},
                                  {"image_size", 384},
                                  {"patch_size", 14},
                                  {"vision_use_head", false}},
                                 -1,
                                 "full",
                                 "qwen2",
                                 151646};

WholeModelFamily::Configs read_llava(ConfigReader& reader, const LlavaDefaults& defaults) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", defaults.vision);
  if (!out.vision.contains("model_type")) out.vision["model_type"] = defaults.vision["model_type"];
  constexpr const char* layer = "vision_feature_layer"; // or a list of them
  out.vision[layer] = reader.has(layer) ? reader.content().at(layer) : Json(defaults.layer);
  out.vision["vision_feature_select_strategy"] = reader.text("vision_feature_select_strategy", defaults.strategy);
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = defaults.decoder;
  tie_embeddings(reader, out.decoder, false);
  out.connector = {{"kind", "mlp"}};
  reader.refuse_unless(reader.text("projector_hidden_act", "gelu") == "gelu", "projector_hidden_act", "only gelu is");
  reader.refuse_unless(reader.flag("multimodal_projector_bias", true), "multimodal_projector_bias",
                       "both linears of the projector have a bias");
  out.image_token_id = image_token(reader, defaults.image_token_id);
  return out;
}

// Mistral Small 3.1, Ministral 3 and LightOnOCR, with what transformers takes for the decoder and the image token.
WholeModelFamily::Configs read_mistral3(ConfigReader& reader, const char* decoder, int64_t image_token_id) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  if (!out.vision.contains("model_type")) out.vision["model_type"] = "pixtral";
  constexpr const char *layer = "vision_feature_layer", *merge = "spatial_merge_size";
  if (reader.has(layer)) out.vision[layer] = reader.content().at(layer);
  out.vision[merge] = reader.whole(merge, 2, 1, 64); // how many patches a cell has each way
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = decoder;
  out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", true);
  reader.refuse_unless(reader.text("projector_hidden_act", "gelu") == "gelu", "projector_hidden_act", "only gelu is");
  out.connector = {{"kind", "mistral3"},
                   {"factor", out.vision[merge]},
                   {"bias", reader.flag("multimodal_projector_bias", false)},
                   {"norm_eps", read_decoder_config(out.decoder, reader.where() + ": text_config").rms_norm_eps}};
  out.image_token_id = image_token(reader, image_token_id);
  return out;
}

WholeModelFamily::Configs read_llava_next(ConfigReader& reader, const LlavaDefaults& defaults) {
  WholeModelFamily::Configs out = read_llava(reader, defaults);
  out.connector["newline"] = true;
  reader.refuse_unless(
      out.vision["model_type"] != "clip_vision_model" || out.vision["vision_feature_select_strategy"] == "default",
      "vision_feature_select_strategy", "the class token is no part of a square of patches: only default is");
  return out;
}

WholeModelFamily::Configs read_llava_onevision(ConfigReader& reader) {
  WholeModelFamily::Configs out = read_llava_next(reader, of_onevision);
  out.connector["video_pooling"] = true;
  reader.refuse_unless(reader.text("vision_aspect_ratio", "anyres_max_9") == "anyres_max_9", "vision_aspect_ratio",
                       "only anyres_max_9 is");
  return out;
}

WholeModelFamily::Configs read_idefics3(ConfigReader& reader, const char* vision_type) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  out.vision["model_type"] = vision_type; // older files have other words here, and transformers does not read them
  out.decoder = piece(reader, "text_config", {{"rms_norm_eps", 1e-5}});
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = "llama";
  out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", false);
  out.connector = {{"kind", "pixel_shuffle"}, {"factor", reader.whole("scale_factor", 2, 1, 64)}};
  out.image_token_id = image_token(reader, 128257);
  return out;
}

// The decoder is a Granite with sizes of its own where keys are missing, whose head alone the model's own config ties.
WholeModelFamily::Configs read_granite_docling(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  out.vision["model_type"] = "granite_docling_vision";
  constexpr const char* router = "density_router_hidden_size";
  if (reader.has(router)) out.vision[router] = reader.whole(router, std::nullopt, 1, most_features);
  const VisionConfig vision = read_vision_config(out.vision, reader.where() + ": vision_config");
  out.decoder = {{"vocab_size", 133800},
                 {"hidden_size", 1024},
                 {"intermediate_size", 2048},
                 {"num_hidden_layers", 28},
                 {"num_attention_heads", 16},
                 {"num_key_value_heads", 4},
                 {"rms_norm_eps", 1e-5},
                 {"embedding_multiplier", 12},
                 {"logits_scaling", 4},
                 {"residual_multiplier", 0.263},
                 {"attention_multiplier", 1.0 / 64},
                 {"max_position_embeddings", 1 << 15},
                 {"eos_token_id", 100257}};
  out.decoder.update(piece(reader, "text_config", Json::object()));
  out.decoder["model_type"] = "granite";
  out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", true);
  const DecoderConfig decoder = read_decoder_config(out.decoder, reader.where() + ": text_config");
  if (vision.out_hidden_size != decoder.hidden_size)
    reader.problems().add("'out_hidden_size' = {} of vision_config is not 'hidden_size' = {} of text_config",
                          vision.out_hidden_size, decoder.hidden_size);
  if (static_cast<int64_t>(vision.deepstack_visual_indexes.size()) > decoder.num_hidden_layers)
    reader.problems().add("'deepstack_visual_indexes' names {} layers, and the decoder that they are added to has {}",
                          vision.deepstack_visual_indexes.size(), decoder.num_hidden_layers);
  out.connector = {{"kind", "granite_docling"},
                   {"factor", vision.scale_factor},
                   {"deepstack", vision.deepstack_visual_indexes.size()}};
  out.image_token_id = reader.whole("image_token_id", 100337, 0);
  return out;
}

WholeModelFamily::Configs read_internvl(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  if (!out.vision.contains("model_type")) out.vision["model_type"] = "internvl_vision";
  // -1 is last_hidden_state, which may be behind a norm.
  const int64_t layer = reader.whole("vision_feature_layer", -1, -most_layers, most_layers);
  if (layer != -1) out.vision["vision_feature_layer"] = layer;
  const std::string strategy = reader.text("vision_feature_select_strategy", "default");
  reader.refuse_unless(strategy == "default", "vision_feature_select_strategy",
                       "the class token is no part of a square of patches: only default is");
  out.vision["vision_feature_select_strategy"] = strategy;
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = "qwen2";
  // Files of transformers before 5.0 have only the one in text_config, or none.
  if (reader.has("tie_word_embeddings")) out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", false);
  const double ratio = reader.number("downsample_ratio", 0.5, 1.0 / 64, 1);
  const int64_t factor = std::llround(1 / ratio);
  reader.refuse_unless(std::abs(ratio * static_cast<double>(factor) - 1) < 1e-9, "downsample_ratio",
                       "1 divided by a whole number is");
  out.connector = {{"kind", "internvl"}, {"factor", factor}};
  reader.refuse_unless(reader.text("projector_hidden_act", "gelu") == "gelu", "projector_hidden_act", "only gelu is");
  out.image_token_id = reader.whole("image_token_id", 151667, 0);
  return out;
}

WholeModelFamily::Configs read_gemma3(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  if (!out.vision.contains("model_type")) out.vision["model_type"] = "siglip_vision_model";
  ConfigReader vision(out.vision, reader.where());
  const int64_t image = vision.whole("image_size", 224, 1), patch = vision.whole("patch_size", 16, 1),
                tokens = reader.whole("mm_tokens_per_image", 256, 1),
                side = std::llround(std::floor(std::sqrt(static_cast<double>(tokens))));
  if (side * side != tokens || image % (patch * side) != 0)
    reader.problems().add("'mm_tokens_per_image' = {} is no square of numbers that divide the {} patches of a side of "
                          "an image evenly",
                          tokens, image / patch);
  vision.refuse_unless(vision.number("layer_norm_eps", 1e-6, 0, 1) == 1e-6, "layer_norm_eps",
                       "the connector's norm has 1e-6");
  for (const std::string& problem : vision.problems().list()) reader.problems().add("vision_config: {}", problem);
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = "gemma3_text";
  out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", true);
  out.connector = {{"kind", "gemma3"}, {"factor", std::max<int64_t>(1, image / patch / side)}};
  out.image_token_id = image_token(reader, 262144);
  return out;
}

WholeModelFamily::Configs read_gemma4(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  if (!out.vision.contains("model_type")) out.vision["model_type"] = "gemma4_vision";
  ConfigReader vision(out.vision, reader.where());
  out.connector = {{"kind", "gemma4"},
                   {"factor", vision.whole("pooling_kernel_size", 3, 1, 64)},
                   {"standardize", vision.flag("standardize", false)},
                   {"norm_eps", vision.number("rms_norm_eps", 1e-6, 0, 1)}};
  for (const std::string& problem : vision.problems().list()) reader.problems().add("vision_config: {}", problem);
  out.vision.erase("standardize"); // which the connector does
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = "gemma4_text";
  out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", true);
  out.image_token_id = reader.whole("image_token_id", 258880, 0);
  return out;
}

WholeModelFamily::Configs read_paligemma(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", of_onevision.vision);
  if (!out.vision.contains("model_type")) out.vision["model_type"] = "siglip_vision_model";
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = "gemma";
  out.decoder.erase("use_bidirectional_attention"); // of prompts, which is the connector's
  out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", true);
  out.connector = {{"kind", "paligemma"}};
  out.image_token_id = image_token(reader, 256000);
  return out;
}

// Qwen2-VL, Qwen2.5-VL, Qwen3-VL or Qwen3.5. Published files have other words, or none, for the model_type of the
// vision tower.
WholeModelFamily::Configs read_qwen_vl(ConfigReader& reader, const std::string& family, bool has_experts = false) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  out.vision["model_type"] = family + "_vision";
  out.decoder = text_piece(reader);
  out.decoder["model_type"] = family + (has_experts ? "_moe_text" : "_text");
  if (has_experts) out.decoder.erase("tie_word_embeddings"); // which transformers does not read there
  tie_embeddings(reader, out.decoder, false);
  constexpr const char* merge = "spatial_merge_size"; // how many patches a cell has each way
  out.connector = {{"kind", "qwen2_vl"}, {"factor", ConfigReader(out.vision, reader.where()).whole(merge, 2, 1, 64)}};
  if (family == "qwen2_5_vl") out.connector["rms_norm"] = true;
  if (family == "qwen3_vl") {
    constexpr const char* layers = "deepstack_visual_indexes";
    const size_t count = ConfigReader(out.vision, reader.where()).wholes(layers, {8, 16, 24}).size();
    if (count > 0) out.connector["deepstack"] = count;
    const int64_t of_decoder = ConfigReader(out.decoder, reader.where()).whole("num_hidden_layers", 32, 1, most_layers);
    if (static_cast<int64_t>(count) > of_decoder)
      reader.problems().add("'{}' names {} layers, and the decoder that they are added to has {}", layers, count,
                            of_decoder);
  }
  out.image_token_id = reader.whole("image_token_id", family == "qwen3_5" ? 248056 : 151655, 0);
  return out;
}

WholeModelFamily::Configs read_deepseek_vl(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  if (!out.vision.contains("model_type")) out.vision["model_type"] = "siglip_vision_model";
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = "llama";
  out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", true);
  out.connector = {{"kind", "mlp"}};
  out.image_token_id = reader.whole("image_token_id", 100015, 0);
  return out;
}

// The patches of a square choose words of a visual vocabulary by what transformers has in the tower.
void read_visual_words(ConfigReader& reader, WholeModelFamily::Configs& out) {
  ConfigReader vision(out.vision, reader.where());
  const int64_t stride = vision.whole("hidden_stride", 1, 1, 64), words = vision.whole("vocab_size", 16384, 6, 1 << 24),
                patches = vision.square("image_size", 224, 1, 1 << 14) / vision.square("patch_size", 14, 1, 1 << 14);
  if (patches % stride != 0)
    vision.problems().add("'hidden_stride' = {} does not divide the {} patches of a side of an image", stride, patches);
  vision.refuse_unless(vision.whole("num_visual_indicator_tokens", 5, 0) == 5, "num_visual_indicator_tokens",
                       "five stand around images and between their tiles: 5 is");
  vision.refuse_unless(vision.text("tokenize_function", "softmax") == "softmax", "tokenize_function",
                       "words have shares by a softmax: only softmax is");
  for (const std::string& problem : vision.problems().list()) reader.problems().add("vision_config: {}", problem);
  out.connector = {{"kind", "ovis2"}, {"factor", stride}, {"vocabulary", words}};
}

WholeModelFamily::Configs read_ovis2(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  out.vision["model_type"] = "ovis2_vision"; // transformers takes it for that, whatever its own word is
  read_visual_words(reader, out);
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = "qwen2";
  out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", true);
  const DecoderConfig decoder = read_decoder_config(out.decoder, reader.where() + ": text_config");
  for (const auto& [key, unsaid, of_decoder] :
       {std::tuple("hidden_size", 1536, decoder.hidden_size), std::tuple("vocab_size", 151643, decoder.vocab_size)})
    reader.refuse_unless(reader.whole(key, unsaid, 1) == of_decoder, key,
                         fmt::format("that of text_config is {}, and both have to be the same", of_decoder));
  constexpr const char* indicators = "visual_indicator_token_ids";
  reader.refuse_unless(!reader.has(indicators) || reader.content().at(indicators).size() == 5, indicators,
                       "five stand around images and between their tiles: 5 ids are");
  out.image_token_id = reader.whole("image_token_id", 151665, 0);
  return out;
}

// As transformers writes them, and as it calls them since 4.52.
const std::vector<WholeModelFamily::Prefix> llava_names = {
    {"vision_tower.vision_model.", "vision."},       {"vision_tower.", "vision."},
    {"model.vision_tower.vision_model.", "vision."}, {"model.vision_tower.", "vision."},
    {"multi_modal_projector.", "connector."},        {"model.multi_modal_projector.", "connector."},
    {"language_model.model.", "decoder.model."},     {"model.language_model.", "decoder.model."},
    {"language_model.lm_head.", "decoder.lm_head."}, {"lm_head.", "decoder.lm_head."},
};

std::vector<WholeModelFamily::Prefix> names_with_newline() {
  std::vector<WholeModelFamily::Prefix> names = {{"image_newline", "connector.image_newline"},
                                                 {"model.image_newline", "connector.image_newline"}};
  names.insert(names.end(), llava_names.begin(), llava_names.end());
  return names;
}

const std::vector<WholeModelFamily::Prefix> lighton_ocr_names = {{"model.vision_encoder.", "vision."},
                                                                 {"model.vision_projection.", "connector."},
                                                                 {"model.language_model.", "decoder.model."},
                                                                 {"lm_head.", "decoder.lm_head."}};

// A published LightOnOCR may call itself a Mistral 3.
std::vector<WholeModelFamily::Prefix> mistral3_names() {
  std::vector<WholeModelFamily::Prefix> names = llava_names;
  names.insert(names.end(), lighton_ocr_names.begin(), lighton_ocr_names.end());
  return names;
}

const std::vector<WholeModelFamily::Prefix> idefics3_names = {{"model.vision_model.", "vision."},
                                                              {"model.connector.", "connector."},
                                                              {"model.text_model.", "decoder.model."},
                                                              {"lm_head.", "decoder.lm_head."}};

// transformers has the connector in the tower.
const std::vector<WholeModelFamily::Prefix> granite_docling_names = {
    {"model.density_router.", "vision.density_router."},
    {"mtp.", "vision.mtp."},
    {"model.vision_model.connector.", "connector."},
    {"model.vision_model.", "vision."},
    {"model.text_model.", "decoder.model."},
    {"lm_head.", "decoder.lm_head."}};

// Those of audio are nobody's.
const std::vector<WholeModelFamily::Prefix> gemma4_names = {
    {"model.vision_tower.std_", "connector.std_"},  {"model.vision_tower.", "vision."},
    {"model.embed_vision.", "connector."},          {"model.audio_tower.", "decoder.audio_tower."},
    {"model.embed_audio.", "decoder.embed_audio."}, {"lm_head.", "decoder.lm_head."},
    {"model.language_model.", "decoder.model."}};

// As all folders have them, and as transformers calls them since 4.52.
const std::vector<WholeModelFamily::Prefix> qwen_vl_names = {
    {"visual.merger.", "connector."}, {"visual.", "vision."},           {"model.visual.merger.", "connector."},
    {"model.visual.", "vision."},     {"lm_head.", "decoder.lm_head."}, {"model.language_model.", "decoder.model."},
    {"model.", "decoder.model."},
};

// The merger has the names that Qwen2-VL's has. Those of DeepStack have their own.
std::vector<WholeModelFamily::Prefix> qwen3_vl_names() {
  std::vector<WholeModelFamily::Prefix> names;
  for (const std::string visual : {"model.visual.", "visual."}) {
    names.push_back({visual + "merger.norm.", "connector.ln_q."});
    names.push_back({visual + "merger.linear_fc1.", "connector.mlp.0."});
    names.push_back({visual + "merger.linear_fc2.", "connector.mlp.2."});
    names.push_back({visual + "deepstack_merger_list.", "connector.deepstack_merger_list."});
    names.push_back({visual, "vision."});
  }
  names.push_back({"mtp.", "decoder.mtp."}); // of Qwen3.5
  names.insert(names.end(), {{"lm_head.", "decoder.lm_head."}, {"model.language_model.", "decoder.model."}});
  return names;
}

// The model_type of its tower differs from InternVL's, and its heads are tied where the model's own config says so.
WholeModelFamily::Configs read_qianfan_ocr(ConfigReader& reader) {
  WholeModelFamily::Configs out = read_internvl(reader);
  out.vision["model_type"] = "qianfan_ocr_vision";
  if (!reader.object("text_config") || !reader.object("text_config")->contains("model_type"))
    out.decoder["model_type"] = "qwen3";
  out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", false);
  return out;
}

// As published and as transformers writes them, which calls the decoder's layers by the name of the encoder's, too; and
// as it calls them.
std::vector<WholeModelFamily::Prefix> qianfan_ocr_names() {
  std::vector<WholeModelFamily::Prefix> names;
  constexpr int64_t most_published_layers = 64;
  for (int64_t i = 0; i < most_published_layers; ++i) {
    const std::string in_file = fmt::format("vision_model.encoder.layers.{}.", i),
                      own = fmt::format("vision.layers.{}.", i);
    for (const auto& [theirs, ours] :
         {std::pair("attn.proj.", "attention.projection_layer."), std::pair("norm1.", "layernorm_before."),
          std::pair("norm2.", "layernorm_after."), std::pair("ls1", "lambda_1"), std::pair("ls2", "lambda_2"),
          std::pair("", "")})
      names.push_back({in_file + theirs, own + ours});
  }
  names.insert(names.end(),
               {{"vision_model.embeddings.class_embedding", "vision.embeddings.cls_token"},
                {"vision_model.embeddings.position_embedding", "vision.embeddings.position_embeddings"},
                {"vision_model.embeddings.patch_embedding.", "vision.embeddings.patch_embeddings.projection."},
                {"vision_model.", "vision."},
                {"mlp1.0.", "connector.layer_norm."},
                {"mlp1.1.", "connector.linear_1."},
                {"mlp1.3.", "connector.linear_2."},
                {"language_model.model.encoder.layers.", "decoder.model.layers."},
                {"language_model.", "decoder."},
                {"model.vision_tower.", "vision."},
                {"model.multi_modal_projector.", "connector."},
                {"model.language_model.", "decoder.model."},
                {"lm_head.", "decoder.lm_head."}});
  return names;
}

const std::vector<WholeModelFamily::Fused> qianfan_ocr_fused = {
    {".attn.qkv.", {".attention.q_proj.", ".attention.k_proj.", ".attention.v_proj."}}};

const std::vector<WholeModelFamily::Prefix> deepseek_vl_names = {{"model.vision_model.", "vision."},
                                                                 {"model.aligner.linear1.", "connector.linear_1."},
                                                                 {"model.aligner.linear2.", "connector.linear_2."},
                                                                 {"model.language_model.", "decoder.model."},
                                                                 {"lm_head.", "decoder.lm_head."}};

const std::vector<WholeModelFamily::Prefix> ovis2_names = {
    {"model.vision_tower.transformer.", "vision."},
    {"model.vision_tower.head_linear.", "connector.head_linear."},
    {"model.vision_tower.head_norm.", "connector.head_norm."},
    {"model.visual_embeddings_table.", "connector.visual_embeddings_table."},
    {"model.language_model.", "decoder.model."},
    {"lm_head.", "decoder.lm_head."}};

// A language model by itself.
WholeModelFamily::Configs read_text_only(ConfigReader& reader) {
  WholeModelFamily::Configs out{
      {{"model_type", "text_only"}}, reader.content(), {{"kind", "text_only"}}, /*image_token_id=*/-1};
  out.decoder.erase("quantization_config");
  return out;
}

std::vector<WholeModelFamily> with_language_models(std::vector<WholeModelFamily> all) {
  for (const std::string& type : decoder_types())
    if (std::ranges::find(all, type, &WholeModelFamily::model_type) == all.end())
      all.push_back(
          {type, read_text_only, {{"model.", "decoder.model."}, {"lm_head.", "decoder.lm_head."}, {"", "decoder."}}});
  return all;
}

} // namespace

const std::vector<WholeModelFamily>& whole_model_families() {
  static const std::vector<WholeModelFamily> all = with_language_models({
      {"llava", [](ConfigReader& reader) { return read_llava(reader, of_llava); }, llava_names},
      {"llava_next", [](ConfigReader& reader) { return read_llava_next(reader, of_llava); }, names_with_newline()},
      {"llava_onevision", read_llava_onevision, names_with_newline()},
      {"idefics3", [](ConfigReader& reader) { return read_idefics3(reader, "idefics3_vision"); }, idefics3_names},
      {"smolvlm", [](ConfigReader& reader) { return read_idefics3(reader, "smolvlm_vision"); }, idefics3_names},
      {"granite_docling", read_granite_docling, granite_docling_names},
      {"mistral3", [](ConfigReader& reader) { return read_mistral3(reader, "mistral", 10); }, mistral3_names(),
       /*head_decides_tying=*/true},
      {"lighton_ocr", [](ConfigReader& reader) { return read_mistral3(reader, "qwen3", 151655); }, lighton_ocr_names,
       /*head_decides_tying=*/true},
      {"internvl", read_internvl, llava_names},
      {"qianfan_ocr", read_qianfan_ocr, qianfan_ocr_names(), /*head_decides_tying=*/false, /*left_out=*/nullptr,
       qianfan_ocr_fused},
      {"ovis2", read_ovis2, ovis2_names, /*head_decides_tying=*/true},
      {"lfm2_vl", read_lfm2_vl, llava_names},
      {"lfm3_vl", read_lfm3_vl, llava_names},
      {"minicpmv4_6", [](ConfigReader& reader) { return read_minicpm(reader, "minicpmv4_6_vision"); }, minicpm_names()},
      {"minicpmv4_7", read_minicpm47, minicpm_names()},
      {"minicpm_ocr", [](ConfigReader& reader) { return read_minicpm(reader, "minicpm_ocr_vision"); }, minicpm_names()},
      {"paddleocr_vl", read_paddleocr_vl, paddleocr_vl_names()},
      {"glm_ocr", [](ConfigReader& reader) { return read_glm(reader, "glm_ocr"); }, glm_names()},
      {"glm4v", [](ConfigReader& reader) { return read_glm(reader, "glm4v"); }, glm_names()},
      {"glm46v", [](ConfigReader& reader) { return read_glm(reader, "glm46v"); }, glm_names()},
      {"deepseek_vl", read_deepseek_vl, deepseek_vl_names},
      {"video_llama_3", read_video_llama_3, video_llama_3_names()},
      {"hunyuan_vl", read_hunyuan_vl, hunyuan_vl_names()},
      {"gemma3", read_gemma3, llava_names},
      {"gemma4", read_gemma4, gemma4_names, /*head_decides_tying=*/false, /*left_out=*/"audio_config"},
      {"paligemma", read_paligemma, llava_names},
      {"qwen2_vl", [](ConfigReader& reader) { return read_qwen_vl(reader, "qwen2_vl"); }, qwen_vl_names},
      {"qwen2_5_vl", [](ConfigReader& reader) { return read_qwen_vl(reader, "qwen2_5_vl"); }, qwen_vl_names},
      {"qwen3_vl", [](ConfigReader& reader) { return read_qwen_vl(reader, "qwen3_vl"); }, qwen3_vl_names()},
      {"qwen3_5", [](ConfigReader& reader) { return read_qwen_vl(reader, "qwen3_5"); }, qwen3_vl_names()},
      {"qwen3_vl_moe", [](ConfigReader& reader) { return read_qwen_vl(reader, "qwen3_vl", true); }, qwen3_vl_names()},
      {"qwen3_5_moe", [](ConfigReader& reader) { return read_qwen_vl(reader, "qwen3_5", true); }, qwen3_vl_names()},
  });
  return all;
}

} // namespace fvlm
