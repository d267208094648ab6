#include "model/encoder/encoder.h"

#include "base/error.h"

#include <fmt/format.h>

#include <map>

namespace fvlm::model {

#define FVLM_ENCODER(name) std::unique_ptr<Encoder> name##_encoder(const VisionConfig&, Parameters&);
#include "model/encoder/encoders.inc"
#undef FVLM_ENCODER

namespace {

std::map<std::string, MakeEncoder>& all_encoders() {
  static std::map<std::string, MakeEncoder> all = {
#define FVLM_ENCODER(name) {#name, name##_encoder},
#include "model/encoder/encoders.inc"
#undef FVLM_ENCODER
  };
  return all;
}

} // namespace

std::unique_ptr<Encoder> make_encoder(const VisionConfig& config, Parameters& parameters) {
  const auto found = all_encoders().find(family_of(config).name);
  if (found == all_encoders().end())
    throw Error(ErrorKind::data, "no encoder of model_type '{}' is built in", config.model_type);
  return found->second(config, parameters);
}

void register_encoder(EncoderFamily family, MakeEncoder make) {
  all_encoders().emplace(family.name, make);
  add_family(std::move(family));
}

} // namespace fvlm::model
