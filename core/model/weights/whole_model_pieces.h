// What configs of whole models say of their parts, and the families of whole_models_of_cells.cpp, for the table in
// whole_models.cpp.
#pragma once
#include "base/config_reader.h"
#include "model/weights/whole_model.h"

#include <nlohmann/json.hpp>

#include <vector>

namespace fvlm::whole_models {

// The config of a part, or what transformers takes where there is none.
inline nlohmann::json piece(ConfigReader& reader, const char* key, const nlohmann::json& without) {
  const nlohmann::json* found = reader.object(key);
  return found ? *found : without;
}

// transformers takes either key.
inline int64_t image_token(ConfigReader& reader, int64_t fallback) {
  const char* key = reader.has("image_token_id") ? "image_token_id" : "image_token_index";
  return reader.whole(key, fallback, 0);
}

// The config of the text model, whose keys stand beside the others in published files.
inline nlohmann::json text_piece(ConfigReader& reader) {
  if (const nlohmann::json* text = reader.object("text_config")) return *text;
  nlohmann::json out = reader.content();
  out.erase("vision_config");
  return out;
}

// transformers ties them where the config of the model or that of its text model says so, or, if `unsaid`, does not say
// otherwise.
inline void tie_embeddings(ConfigReader& reader, nlohmann::json& decoder, bool unsaid) {
  constexpr const char* key = "tie_word_embeddings";
  const nlohmann::json of_decoder = decoder.value(key, nlohmann::json());
  decoder[key] = reader.flag(key, unsaid) || (of_decoder.is_boolean() ? of_decoder == true : unsaid);
}

WholeModelFamily::Configs read_paddleocr_vl(ConfigReader& reader);
WholeModelFamily::Configs read_video_llama_3(ConfigReader& reader);
WholeModelFamily::Configs read_glm(ConfigReader& reader, const std::string& family);
WholeModelFamily::Configs read_hunyuan_vl(ConfigReader& reader);
WholeModelFamily::Configs read_lfm2_vl(ConfigReader& reader);
WholeModelFamily::Configs read_lfm3_vl(ConfigReader& reader);
WholeModelFamily::Configs read_minicpm(ConfigReader& reader, const std::string& vision); // its model_type
WholeModelFamily::Configs read_minicpm47(ConfigReader& reader);

// Functions, since constants of two modules that have one name would be destroyed twice.
std::vector<WholeModelFamily::Prefix> paddleocr_vl_names();
std::vector<WholeModelFamily::Prefix> hunyuan_vl_names();
std::vector<WholeModelFamily::Prefix> glm_names();
std::vector<WholeModelFamily::Prefix> minicpm_names();
std::vector<WholeModelFamily::Prefix> video_llama_3_names();

} // namespace fvlm::whole_models
