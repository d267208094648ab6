#include "model/connector/average_pool/settings.h"

#include "base/config_reader.h"
#include "model/connector/projector_layout.h"
#include "model/connector/settings.h"

#include <nlohmann/json.hpp>

#include <array>

namespace fvlm::connector {

using namespace recipe;

Settings average_pool_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      record<AveragePool>(
          "AveragePool", "average_pool",
          "Averages the encoder's tokens of a frame in ranges, and a projector takes the means to the decoder.")
          .usage("fvlm.average_pool { rows = 64 }")
          .field("rows", &AveragePool::rows, integer(at_least(1)), "Ranges, and so decoder rows, of a frame.")
          .field("projector_width", &AveragePool::projector_width, integer(at_least(1)),
                 "Features between the two linears of the projector.")
          .done());
}

std::vector<plan::ConnectorMode> AveragePool::modes() const {
  return {{"pooled", "one pass", "one pass over the patches of every image"}};
}

nlohmann::json AveragePool::config_json() const {
  return {{"rows", rows}, {"projector_width", projector_width}};
}

void AveragePool::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "rows", "projector_width"});
  rows = reader.whole("rows", std::nullopt, 1, 1 << 16);
  projector_width = reader.whole("projector_width", std::nullopt, 1, 1 << 20);
}

WeightLayout AveragePool::layout(int64_t encoder_width, int64_t decoder_width) const {
  WeightLayout out;
  append_projector(out, encoder_width, projector_width, decoder_width);
  return out;
}

} // namespace fvlm::connector
