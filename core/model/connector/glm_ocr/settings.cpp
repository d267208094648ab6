#include "model/connector/glm_ocr/settings.h"

#include "model/connector/settings.h"
#include "model/weights/layout.h"
#include "model/weights/model_family.h"

namespace fvlm::connector {

Settings glm_ocr_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<GlmOcr>("GlmOcr", "glm_ocr",
                             "The patches of each square side by side in one row, a linear that makes one row of the "
                             "decoder of them, a linear with a LayerNorm and a GELU, and an MLP with a gate, as in "
                             "GLM-OCR and GLM-4.1V.")
          .usage("fvlm.glm_ocr { hidden = 4608 }")
          .field("factor", &GlmOcr::factor, recipe::integer(recipe::at_least(1)), GlmOcr::factor_doc)
          .field("hidden", &GlmOcr::hidden, recipe::integer(recipe::at_least(1)), "Features inside the MLP.")
          .done());
}

nlohmann::json GlmOcr::config_json() const {
  nlohmann::json out = SquaresOfPatches::config_json();
  out["hidden"] = hidden;
  return out;
}

void GlmOcr::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "factor", "hidden"});
  factor = reader.whole("factor", 2, 1, 64);
  hidden = reader.whole("hidden", std::nullopt, 1, most_features);
}

// Initialized as transformers does it.
WeightLayout GlmOcr::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer normal{Initializer::Kind::normal, 0.02}, zero, one{Initializer::Kind::constant, 1};
  WeightLayout out;
  out.tensors = {{"downsample.weight", {decoder_width, encoder_width, factor, factor}, normal},
                 {"downsample.bias", {decoder_width}, zero},
                 {"proj.weight", {decoder_width, decoder_width}, normal},
                 {"post_projection_norm.weight", {decoder_width}, one},
                 {"post_projection_norm.bias", {decoder_width}, zero},
                 {"gate_proj.weight", {hidden, decoder_width}, normal},
                 {"up_proj.weight", {hidden, decoder_width}, normal},
                 {"down_proj.weight", {decoder_width, hidden}, normal}};
  return out;
}

} // namespace fvlm::connector
