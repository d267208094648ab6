// The connector of Idefics3 and SmolVLM: a decoder row for every square of factor x factor patches.
#include "base/error.h"
#include "model/connector/framewise.h"
#include "model/connector/pixel_shuffle/settings.h"

#include <fmt/format.h>

#include <cmath>

namespace fvlm::model {
namespace {

class PixelShuffleConnector : public FramewiseConnector {
 public:
  PixelShuffleConnector(const connector::PixelShuffle& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), factor_(settings.factor),
        projection_(parameters.weight("modality_projection.proj.weight")) {}

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    const int64_t patches = input.hidden.data.size(0) / input.frames;
    const auto side = std::llround(std::sqrt(static_cast<double>(patches)));
    if (side * side != patches || side % factor_ != 0)
      throw Error(ErrorKind::data,
                  fmt::format("frames of {} tokens are not a square of patches whose side is divisible by the "
                              "factor {} of the pixel shuffle",
                              patches, factor_))
          .advise("choose an image size that is a multiple of the patch size times the factor, and an encoder without "
                  "a CLS token "
                  "or one that drops it (vision_feature_select_strategy = \"default\")");
    return ops.linear(tape, space_to_depth(tape, input.hidden, side, side, factor_), projection_);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t square = factor_ * factor_;
    return ForwardFlops{product_flops(parts_.encoder.width() * square, parts_.decoder.width()), 0} *
           static_cast<double>(tokens / square);
  }

  int64_t factor_;
  ops::Weight projection_;
};

} // namespace

std::unique_ptr<Connector> pixel_shuffle_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                                   Parameters& parameters) {
  return std::make_unique<PixelShuffleConnector>(static_cast<const connector::PixelShuffle&>(settings), parts,
                                                 parameters);
}

} // namespace fvlm::model
