#include "model/connector/mlp/settings.h"

#include "base/config_reader.h"
#include "model/connector/settings.h"
#include "model/weights/layout.h"

#include <nlohmann/json.hpp>

#include <array>

namespace fvlm::connector {

Settings mlp_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<Mlp>("Mlp", "mlp",
                          "Every token of the encoder through two linears with a GELU between them, as in LLaVA.")
          .usage("fvlm.mlp {}")
          .done());
}

std::vector<plan::ConnectorMode> Mlp::modes() const {
  return {{"patches", "one pass", "one pass over the patches of every image"}};
}

nlohmann::json Mlp::config_json() const {
  return nlohmann::json::object();
}

void Mlp::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind"});
}

// Initialized as transformers does it.
WeightLayout Mlp::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer normal{Initializer::Kind::normal, 0.02}, zero;
  WeightLayout out;
  out.tensors = {{"linear_1.weight", {decoder_width, encoder_width}, normal},
                 {"linear_1.bias", {decoder_width}, zero},
                 {"linear_2.weight", {decoder_width, decoder_width}, normal},
                 {"linear_2.bias", {decoder_width}, zero}};
  return out;
}

} // namespace fvlm::connector
