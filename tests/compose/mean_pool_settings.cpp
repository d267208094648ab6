#include "base/config_reader.h"
#include "mean_pool.h"
#include "model/weights/layout.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace fvlm::connector {

Settings mean_pool_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<MeanPool>("MeanPool", "mean_pool", "The mean of a frame's hidden states, through one linear.")
          .field("scale", &MeanPool::scale, recipe::number(recipe::above(0)), "Factor on every visual token.")
          .done());
}

WeightLayout MeanPool::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer fill{Initializer::Kind::uniform, 1 / std::sqrt(static_cast<double>(encoder_width))};
  WeightLayout out;
  out.tensors = {{"to_decoder.weight", {decoder_width, encoder_width}, fill},
                 {"to_decoder.bias", {decoder_width}, fill}};
  return out;
}

nlohmann::json MeanPool::config_json() const {
  return {{"scale", scale}};
}

void MeanPool::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "scale"});
  scale = reader.number("scale", std::nullopt, 1e-12, 1e12);
}

} // namespace fvlm::connector
