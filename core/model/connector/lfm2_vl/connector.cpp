// The connector of LFM2-VL, LFM3-VL and MiniCPM-V: a decoder row for every square of factor x factor patches.
#include "model/connector/framewise.h"
#include "model/connector/lfm2_vl/settings.h"
#include "model/encoder/vit_layer.h"

namespace fvlm::model {
namespace {

class Lfm2VlConnector : public FramewiseConnector {
 public:
  Lfm2VlConnector(const connector::Lfm2Vl& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), factor_(settings.factor), hidden_(settings.hidden),
        norms_patches_(settings.norm_patches) {
    const auto linear = [&](const std::string& stem) -> Operations::Layer {
      return {parameters.weight(stem + ".weight"), settings.bias ? parameters.weight(stem + ".bias") : ops::Weight()};
    };
    if (settings.norm)
      norm_ = {parameters.weight("layer_norm.weight"), parameters.weight("layer_norm.bias"), settings.norm_eps};
    first_ = linear("linear_1");
    second_ = linear("linear_2");
  }

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    const auto normed = [&](const Value& rows, bool applies) {
      return norm_.weight.defined() && applies ? norm_(tape, ops, rows) : rows;
    };
    Input patches = input;
    patches.hidden = normed(input.hidden, norms_patches_);
    return ops.gelu_mlp(tape, normed(squares_of_patches(tape, patches, factor_), !norms_patches_), first_, second_);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t square = factor_ * factor_;
    return ForwardFlops{product_flops(parts_.encoder.width() * square, hidden_) +
                            product_flops(hidden_, parts_.decoder.width()),
                        0} *
           static_cast<double>(tokens / square);
  }

  int64_t factor_, hidden_;
  bool norms_patches_;
  VitNorm norm_; // an undefined weight: there is none
  Operations::Layer first_, second_;
};

} // namespace

std::unique_ptr<Connector> lfm2_vl_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                             Parameters& parameters) {
  return std::make_unique<Lfm2VlConnector>(static_cast<const connector::Lfm2Vl&>(settings), parts, parameters);
}

} // namespace fvlm::model
