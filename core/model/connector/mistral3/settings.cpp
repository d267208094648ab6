#include "model/connector/mistral3/settings.h"

#include "model/connector/settings.h"
#include "model/weights/layout.h"

namespace fvlm::connector {

Settings mistral3_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<Mistral3>("Mistral3", "mistral3",
                               "The normalized patches of each square side by side in one row, a linear that makes one "
                               "patch of them, and two linears with a GELU between them, as in Mistral Small 3.1 and "
                               "Ministral 3.")
          .usage("fvlm.mistral3 { factor = 2 }")
          .field("factor", &Mistral3::factor, recipe::integer(recipe::at_least(1)), Mistral3::factor_doc)
          .field("bias", &Mistral3::bias, recipe::boolean(), "Whether the last two linears have biases.")
          .field("norm_eps", &Mistral3::norm_eps, recipe::number(recipe::above(0)),
                 "The epsilon of the RMSNorm of patches, which is that of the decoder's norms.")
          .done());
}

nlohmann::json Mistral3::config_json() const {
  nlohmann::json out = SquaresOfPatches::config_json();
  if (bias) out["bias"] = true;
  out["norm_eps"] = norm_eps;
  return out;
}

void Mistral3::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "factor", "bias", "norm_eps"});
  factor = reader.whole("factor", 2, 1, 64);
  bias = reader.flag("bias", false);
  norm_eps = reader.number("norm_eps", 1e-5, 0, 1);
}

// Initialized as transformers does it.
WeightLayout Mistral3::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer normal{Initializer::Kind::normal, 0.02}, zero, one{Initializer::Kind::constant, 1};
  WeightLayout out;
  out.tensors = {{"norm.weight", {encoder_width}, one},
                 {"patch_merger.merging_layer.weight", {encoder_width, encoder_width * factor * factor}, normal},
                 {"linear_1.weight", {decoder_width, encoder_width}, normal},
                 {"linear_2.weight", {decoder_width, decoder_width}, normal}};
  if (bias)
    for (const char* name : {"linear_1.bias", "linear_2.bias"}) out.tensors.push_back({name, {decoder_width}, zero});
  return out;
}

} // namespace fvlm::connector
