#include "model/decoder/decoder.h"

#include "base/error.h"
#include "model/decoder/llama.h"

#include <fmt/format.h>

namespace fvlm::model {

std::unique_ptr<Decoder> make_decoder(const DecoderConfig& config, Parameters& parameters) {
  if (config.model_type == "llama") return std::make_unique<Llama>(config, parameters);
  throw Error(ErrorKind::data, fmt::format("no decoder of model_type '{}' is built in", config.model_type));
}

} // namespace fvlm::model
