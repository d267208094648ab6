// Whole models whose encoders read images in cells: PaddleOCR-VL, VideoLLaMA 3, GLM-OCR, GLM-4.1V, HunyuanOCR,
// LFM2-VL, LFM3-VL and MiniCPM-V.
#include "model/weights/model_family.h"
#include "model/weights/whole_model_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::whole_models {

using Json = nlohmann::json;

// The tower's model_type in published files is that of the whole model.
WholeModelFamily::Configs read_paddleocr_vl(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  out.vision["model_type"] = "paddleocr_vl_vision";
  out.decoder = text_piece(reader);
  out.decoder["model_type"] = "paddleocr_vl_text";
  tie_embeddings(reader, out.decoder, true);
  const int64_t factor = ConfigReader(out.vision, reader.where()).whole("spatial_merge_size", 2, 1, 64);
  out.connector = {{"kind", "qwen2_vl"}, {"factor", factor}, {"norm_eps", 1e-5}};
  out.image_token_id = image_token(reader, 100295);
  return out;
}

// How many patches become a row is the image processor's to say: of an image each one does.
WholeModelFamily::Configs read_video_llama_3(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  out.vision["model_type"] = "video_llama_3_vision";
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = "qwen2";
  tie_embeddings(reader, out.decoder, false);
  out.connector = {{"kind", "mlp"}};
  out.image_token_id = reader.whole("image_token_id", 151655, 0);
  return out;
}

// GLM-OCR, GLM-4.1V or GLM-4.6V, whose text model may be another.
WholeModelFamily::Configs read_glm(ConfigReader& reader, const std::string& family) {
  const bool is_ocr = family == "glm_ocr";
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  out.vision["model_type"] = is_ocr ? "glm_ocr_vision" : "glm4v_vision";
  out.decoder = piece(reader, "text_config", Json::object());
  if (is_ocr || !out.decoder.contains("model_type")) out.decoder["model_type"] = is_ocr ? "glm_ocr_text" : "glm4v_text";
  if (family == "glm46v") out.decoder.erase("tie_word_embeddings"); // which transformers does not read there
  tie_embeddings(reader, out.decoder, false);
  ConfigReader vision(out.vision, reader.where()), decoder(out.decoder, reader.where());
  const int64_t made = vision.whole("out_hidden_size", is_ocr ? 1536 : 4096, 1, most_features / 3),
                read = decoder.whole("hidden_size", is_ocr ? 1024 : 4096, 1, most_features);
  if (made != read)
    reader.problems().add("'out_hidden_size' = {} of vision_config is not 'hidden_size' = {} of text_config", made,
                          read);
  out.connector = {{"kind", "glm_ocr"},
                   {"factor", vision.whole("spatial_merge_size", 2, 1, 64)},
                   // GLM-OCR: as often as an image has channels, in transformers
                   {"hidden", is_ocr ? 3 * made : vision.whole("intermediate_size", 13696, 1, most_features)}};
  out.image_token_id = image_token(reader, is_ocr ? 59280 : 151343);
  return out;
}

namespace {

// What published files of HunyuanOCR call otherwise.
void rename_hunyuan(Json& decoder) {
  for (const auto& [old, now] :
       {std::pair("attention_head_dim", "head_dim"), std::pair("org_vocab_size", "vocab_size")})
    if (decoder.contains(old) && !decoder.contains(now)) decoder[now] = decoder[old];
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!decoder.contains(key) || !decoder[key].is_object()) continue;
    Json& rope = decoder[key];
    for (const char* type : {"rope_type", "type"})
      if (rope.value(type, Json()) == "xdrope") rope[type] = "dynamic";
    if (rope.contains("xdrope_section") && !rope.contains("mrope_section"))
      rope["mrope_section"] = rope["xdrope_section"];
  }
}

} // namespace

WholeModelFamily::Configs read_hunyuan_vl(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  out.vision["model_type"] = "hunyuan_vl_vision";
  out.decoder = text_piece(reader);
  out.decoder["model_type"] = "hunyuan_vl_text";
  rename_hunyuan(out.decoder);
  tie_embeddings(reader, out.decoder, true);
  ConfigReader vision(out.vision, reader.where());
  out.connector = {{"kind", "hunyuan_vl"},
                   {"factor", vision.whole("spatial_merge_size", 2, 1, 64)},
                   {"norm_eps", vision.number("rms_norm_eps", 1e-5, 0, 1)}};
  out.image_token_id = image_token(reader, 120120);
  return out;
}

namespace {

Json lfm_projector(ConfigReader& reader, const Json& vision, int64_t usual_width) {
  reader.refuse_unless(reader.text("projector_hidden_act", "gelu") == "gelu", "projector_hidden_act", "only gelu is");
  return {{"kind", "lfm2_vl"},
          {"factor", ConfigReader(vision, reader.where()).whole("spatial_merge_size", 2, 1, 64)},
          {"hidden", reader.whole("projector_hidden_size", usual_width, 1, most_features)},
          {"bias", reader.flag("projector_bias", true)}};
}

} // namespace

WholeModelFamily::Configs read_lfm2_vl(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  constexpr const char* factor = "downsample_factor"; // how many patches a cell has each way
  out.vision = piece(reader, "vision_config", Json::object());
  if (!out.vision.contains("model_type")) out.vision["model_type"] = "siglip2_vision_model";
  out.vision["spatial_merge_size"] = reader.whole(factor, 2, 1, 64);
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = "lfm2";
  // Whatever the text model says.
  out.decoder.erase("tie_embedding");
  out.decoder["tie_word_embeddings"] = reader.flag("tie_embedding", reader.flag("tie_word_embeddings", true));
  out.connector = lfm_projector(reader, out.vision, 2560);
  out.connector["norm"] = reader.flag("projector_use_layernorm", true);
  out.image_token_id = image_token(reader, 396);
  return out;
}

WholeModelFamily::Configs read_lfm3_vl(ConfigReader& reader) {
  WholeModelFamily::Configs out;
  out.vision = piece(reader, "vision_config", Json::object());
  out.vision["model_type"] = "lfm3_vl_vision";
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = "lfm3";
  out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", true); // whatever the text model says
  out.connector = lfm_projector(reader, out.vision, 4096);
  out.connector.update({{"norm_patches", true}, {"norm_eps", 1e-6}});
  out.image_token_id = image_token(reader, 125030);
  return out;
}

WholeModelFamily::Configs read_minicpm(ConfigReader& reader, const std::string& vision) {
  WholeModelFamily::Configs out;
  const bool is_ocr = vision == "minicpm_ocr_vision";
  out.vision = piece(reader, "vision_config", Json::object());
  out.vision["model_type"] = vision;
  constexpr const char *insert = "insert_layer_id", *mode_key = "downsample_mode";
  out.vision[insert] = reader.whole(insert, 6, -1, most_layers); // whatever the tower's config says
  const std::string mode = reader.text(mode_key, is_ocr ? "4x" : "16x");
  reader.refuse_unless(mode == "16x" || mode == "4x", mode_key, "16x and 4x are");
  out.vision["spatial_merge_size"] = mode == "4x" ? 2 : 4;
  reader.refuse_unless(!reader.flag("drop_vision_last_layer", false), "drop_vision_last_layer",
                       "the connector reads the last layer");
  reader.refuse_unless(reader.whole("merger_times", 1, 1, 64) == 1, "merger_times", "the connector merges rows once");
  reader.refuse_unless(reader.square("merge_kernel_size", 2, 1, 64) == 2, "merge_kernel_size",
                       "the connector merges squares of 2 x 2 rows");
  out.decoder = piece(reader, "text_config", Json::object());
  if (!out.decoder.contains("model_type")) out.decoder["model_type"] = "qwen3_5_text";
  out.decoder["tie_word_embeddings"] = reader.flag("tie_word_embeddings", is_ocr); // whatever the text model says
  const int64_t width = ConfigReader(out.vision, reader.where()).whole("hidden_size", 768, 1, most_features / 4);
  out.connector = {{"kind", "lfm2_vl"}, {"factor", 2}, {"hidden", 4 * width}, {"norm_eps", 1e-6}};
  out.image_token_id = image_token(reader, 248056);
  return out;
}

WholeModelFamily::Configs read_minicpm47(ConfigReader& reader) {
  WholeModelFamily::Configs out = read_minicpm(reader, "minicpmv4_7_vision");
  for (const char* token : {"image_start_id", "image_end_id", "slice_start_id", "slice_end_id", "newline_id"})
    out.vision[token] = reader.whole(token, std::nullopt, 0);
  const Json type = out.decoder["model_type"];
  if (type != "qwen3_5_text" && type != "qwen3_vl_text")
    reader.problems().add("'model_type' = {} of text_config: rows have positions on a canvas, by the M-RoPE of "
                          "qwen3_5_text and qwen3_vl_text",
                          type.dump());
  return out;
}

std::vector<WholeModelFamily::Prefix> glm_names() {
  return {{"model.visual.downsample.", "connector.downsample."},
          {"model.visual.merger.", "connector."},
          {"model.visual.", "vision."},
          {"model.language_model.", "decoder.model."},
          {"lm_head.", "decoder.lm_head."}};
}

std::vector<WholeModelFamily::Prefix> minicpm_names() {
  return {{"model.vision_tower.", "vision."},    {"model.merger.mlp.0.pre_norm.", "connector.layer_norm."},
          {"model.merger.mlp.0.", "connector."}, {"model.language_model.", "decoder.model."},
          {"lm_head.", "decoder.lm_head."},      {"mtp.", "decoder.mtp."}};
}

// As transformers writes them, and as the published files have them, which begin with "vit.".
std::vector<WholeModelFamily::Prefix> hunyuan_vl_names() {
  std::vector<WholeModelFamily::Prefix> names = {{"model.vision_tower.patch_merger.", "connector."},
                                                 {"model.vision_tower.", "vision."},
                                                 {"model.language_model.", "decoder.model."},
                                                 {"lm_head.", "decoder.lm_head."},
                                                 {"vit.perceive.proj.0.", "connector.proj_conv."},
                                                 {"vit.perceive.proj.2.", "connector.proj_out."},
                                                 {"vit.perceive.", "connector."}};
  constexpr int64_t most_published_layers = 64;
  for (int64_t i = 0; i < most_published_layers; ++i)
    for (const auto& [published, own] :
         {std::pair("input_layernorm.", "layer_norm1."), std::pair("post_attention_layernorm.", "layer_norm2."),
          std::pair("mlp.dense_h_to_4h.", "mlp.fc1."), std::pair("mlp.dense_4h_to_h.", "mlp.fc2.")})
      names.push_back({fmt::format("vit.layers.{}.{}", i, published), fmt::format("vision.layers.{}.{}", i, own)});
  names.insert(names.end(), {{"vit.", "vision."}, {"model.", "decoder.model."}});
  return names;
}

std::vector<WholeModelFamily::Prefix> video_llama_3_names() {
  return {{"model.vision_model.", "vision."},
          {"model.projector.readout.0.", "connector.linear_1."},
          {"model.projector.readout.2.", "connector.linear_2."},
          {"model.language_model.", "decoder.model."},
          {"lm_head.", "decoder.lm_head."}};
}

// As published files have them, and as transformers calls them.
std::vector<WholeModelFamily::Prefix> paddleocr_vl_names() {
  std::vector<WholeModelFamily::Prefix> names;
  for (const auto& [projector, visual] :
       {std::pair<std::string, const char*>{"mlp_AR.", "visual."}, {"model.projector.", "model.visual."}}) {
    names.push_back({projector + "pre_norm.", "connector.ln_q."});
    names.push_back({projector + "linear_1.", "connector.mlp.0."});
    names.push_back({projector + "linear_2.", "connector.mlp.2."});
    names.push_back({visual + std::string("vision_model."), "vision."});
  }
  names.insert(
      names.end(),
      {{"lm_head.", "decoder.lm_head."}, {"model.language_model.", "decoder.model."}, {"model.", "decoder.model."}});
  return names;
}

} // namespace fvlm::whole_models
