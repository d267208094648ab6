#include "model/encoder/encoder.h"

#include "base/error.h"
#include "model/encoder/dinov2.h"

#include <fmt/format.h>

namespace fvlm::model {

std::unique_ptr<Encoder> make_encoder(const VisionConfig& config, Parameters& parameters) {
  if (config.model_type == "dinov2") return std::make_unique<Dinov2>(config, parameters);
  throw Error(ErrorKind::data, fmt::format("no vision encoder of model_type '{}' is built in", config.model_type));
}

} // namespace fvlm::model
