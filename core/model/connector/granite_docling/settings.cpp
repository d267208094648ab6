#include "model/connector/granite_docling/settings.h"

#include "model/connector/settings.h"
#include "model/weights/layout.h"
#include "model/weights/model_family.h"

#include <fmt/format.h>

namespace fvlm::connector {

Settings granite_docling_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<GraniteDocling>(
          "GraniteDocling", "granite_docling",
          "Squares of patches side by side in one row each, two linears with a fixed position and a GELU between them, "
          "and LayerNorms, as in Granite Docling, whose encoder is read at further layers, too.")
          .usage("fvlm.granite_docling { factor = 4, deepstack = 3 }")
          .field("factor", &GraniteDocling::factor, recipe::integer(recipe::at_least(1)), GraniteDocling::factor_doc)
          .field("deepstack", &GraniteDocling::deepstack, recipe::integer(recipe::at_least(0)),
                 "For how many of the decoder's first layers an image has further rows, made of as many other layers "
                 "of the encoder.")
          .done());
}

nlohmann::json GraniteDocling::config_json() const {
  nlohmann::json out = SquaresOfPatches::config_json();
  out["deepstack"] = deepstack;
  return out;
}

void GraniteDocling::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "factor", "deepstack"});
  factor = reader.whole("factor", std::nullopt, 1, 64);
  deepstack = reader.whole("deepstack", std::nullopt, 0, most_layers);
}

std::string GraniteDocling::merger(int64_t index) {
  return fmt::format("coarse.deepstack_mergers.{}.", index);
}

// Initialized as transformers does it.
WeightLayout GraniteDocling::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer normal{Initializer::Kind::normal, 0.02}, zero, one{Initializer::Kind::constant, 1};
  const int64_t square = encoder_width * factor * factor;
  WeightLayout out;
  const auto add_norm = [&](const std::string& name, int64_t width) {
    out.tensors.push_back({name + ".weight", {width}, one});
    out.tensors.push_back({name + ".bias", {width}, zero});
  };
  const auto add_linear = [&](const std::string& name, int64_t inputs, bool has_bias) {
    out.tensors.push_back({name + ".weight", {decoder_width, inputs}, normal});
    if (has_bias) out.tensors.push_back({name + ".bias", {decoder_width}, zero});
  };
  add_norm("ln_in", encoder_width);
  add_linear("coarse.projection", square, false);
  for (int64_t i = 0; i < deepstack; ++i) {
    add_norm(merger(i) + "layer_norm", square);
    add_linear(merger(i) + "linear_1", square, true);
    add_linear(merger(i) + "linear_2", decoder_width, true);
  }
  add_norm("ln_mid", decoder_width);
  add_linear("mlp_fc2", decoder_width, false);
  add_norm("ln_out", decoder_width);
  return out;
}

} // namespace fvlm::connector
