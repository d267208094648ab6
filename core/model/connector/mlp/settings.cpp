#include "model/connector/mlp/settings.h"

#include "base/config_reader.h"
#include "model/connector/settings.h"
#include "model/weights/layout.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace fvlm::connector {

Settings mlp_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<Mlp>("Mlp", "mlp",
                          "Every token of the encoder through two linears with a GELU between them, as in LLaVA.")
          .usage("fvlm.mlp {}")
          .field("newline", &Mlp::newline, recipe::boolean(),
                 "A learned row behind each line of patches, as in LLaVA-NeXT, whose image processor cuts images into "
                 "tiles that the decoder reads as one picture.")
          .field("video_pooling", &Mlp::video_pooling, recipe::boolean(),
                 "Further rows of a frame, its patches at half the size, which stand for a frame of a video, as in "
                 "LLaVA-OneVision.")
          .done());
}

std::vector<plan::ConnectorMode> Mlp::modes() const {
  return {{"patches", "one pass", "one pass over the patches of every image"}};
}

nlohmann::json Mlp::config_json() const {
  nlohmann::json out = nlohmann::json::object();
  if (newline) out["newline"] = true;
  if (video_pooling) out["video_pooling"] = true;
  return out;
}

int64_t Mlp::side_of(int64_t patches) {
  return std::llround(std::sqrt(static_cast<double>(patches)));
}

void Mlp::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "newline", "video_pooling"});
  newline = reader.flag("newline", false);
  video_pooling = reader.flag("video_pooling", false);
}

// Initialized as transformers does it.
WeightLayout Mlp::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer normal{Initializer::Kind::normal, 0.02}, zero;
  WeightLayout out;
  out.tensors = {{"linear_1.weight", {decoder_width, encoder_width}, normal},
                 {"linear_1.bias", {decoder_width}, zero},
                 {"linear_2.weight", {decoder_width, decoder_width}, normal},
                 {"linear_2.bias", {decoder_width}, zero}};
  if (newline)
    out.tensors.push_back({"image_newline",
                           {decoder_width},
                           {Initializer::Kind::normal, 1 / std::sqrt(static_cast<double>(decoder_width))}});
  return out;
}

} // namespace fvlm::connector
