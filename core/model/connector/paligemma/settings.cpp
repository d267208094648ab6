#include "model/connector/paligemma/settings.h"

#include "base/config_reader.h"
#include "model/connector/settings.h"
#include "model/weights/layout.h"

#include <nlohmann/json.hpp>

#include <array>

namespace fvlm::connector {

Settings paligemma_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<PaliGemma>("PaliGemma", "paligemma",
                                "Every token of the encoder through one linear, as in PaliGemma. In the decoder all "
                                "rows of a prompt attend to each other.")
          .usage("fvlm.paligemma {}")
          .done());
}

std::vector<plan::ConnectorMode> PaliGemma::modes() const {
  return {{"patches", "one pass", "one pass over the patches of every image"}};
}

nlohmann::json PaliGemma::config_json() const {
  return nlohmann::json::object();
}

void PaliGemma::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind"});
}

// Initialized as transformers does it.
WeightLayout PaliGemma::layout(int64_t encoder_width, int64_t decoder_width) const {
  WeightLayout out;
  out.tensors = {{"linear.weight", {decoder_width, encoder_width}, Initializer{Initializer::Kind::normal, 0.02}},
                 {"linear.bias", {decoder_width}, Initializer{}}};
  return out;
}

} // namespace fvlm::connector
