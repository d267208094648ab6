// The connector of Idefics3 and SmolVLM: a decoder row for every square of factor x factor patches.
#include "model/connector/framewise.h"
#include "model/connector/pixel_shuffle/settings.h"

namespace fvlm::model {
namespace {

class PixelShuffleConnector : public FramewiseConnector {
 public:
  PixelShuffleConnector(const connector::PixelShuffle& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), factor_(settings.factor),
        projection_(parameters.weight("modality_projection.proj.weight")) {}

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    return ops.linear(tape, squares_of_patches(tape, input, factor_), projection_);
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
