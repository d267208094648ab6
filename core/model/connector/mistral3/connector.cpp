// The connector of Mistral Small 3.1, Ministral 3 and LightOnOCR: a decoder row for every square of patches.
#include "model/connector/framewise.h"
#include "model/connector/mistral3/settings.h"
#include "model/encoder/vit_layer.h"

namespace fvlm::model {
namespace {

class Mistral3Connector : public FramewiseConnector {
 public:
  Mistral3Connector(const connector::Mistral3& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts),
        factor_(settings.factor), norm_{parameters.weight("norm.weight"), {}, settings.norm_eps},
        merging_(parameters.weight("patch_merger.merging_layer.weight")) {
    const auto linear = [&](const std::string& stem) -> Operations::Layer {
      return {parameters.weight(stem + ".weight"), settings.bias ? parameters.weight(stem + ".bias") : ops::Weight()};
    };
    first_ = linear("linear_1");
    second_ = linear("linear_2");
  }

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    Input patches = input;
    patches.hidden = norm_(tape, ops, input.hidden);
    const Value squares = squares_of_patches(tape, patches, factor_, SquareOrder::by_feature);
    return ops.gelu_mlp(tape, ops.linear(tape, squares, merging_), first_, second_);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t square = factor_ * factor_, inner = parts_.encoder.width(), width = parts_.decoder.width();
    return ForwardFlops{
               product_flops(inner * square, inner) + product_flops(inner, width) + product_flops(width, width), 0} *
           static_cast<double>(tokens / square);
  }

  int64_t factor_;
  VitNorm norm_;
  ops::Weight merging_;
  Operations::Layer first_, second_;
};

} // namespace

std::unique_ptr<Connector> mistral3_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                              Parameters& parameters) {
  return std::make_unique<Mistral3Connector>(static_cast<const connector::Mistral3&>(settings), parts, parameters);
}

} // namespace fvlm::model
