// The connector of Qwen2-VL and Qwen2.5-VL: a decoder row for every cell of an image. The encoder's rows of a cell are
// its patches line by line.
#include "model/connector/framewise.h"
#include "model/connector/qwen2_vl/settings.h"
#include "model/encoder/vit_layer.h"

namespace fvlm::model {
namespace {

class Qwen2VlConnector : public FramewiseConnector {
 public:
  Qwen2VlConnector(const connector::Qwen2Vl& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts),
        factor_(settings.factor), norm_{parameters.weight("ln_q.weight"),
                                        settings.rms_norm ? ops::Weight() : parameters.weight("ln_q.bias"), 1e-6},
        first_{parameters.weight("mlp.0.weight"), parameters.weight("mlp.0.bias")},
        second_{parameters.weight("mlp.2.weight"), parameters.weight("mlp.2.bias")} {}

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    const Value patches = norm_(tape, ops, input.hidden);
    Input cells = input;
    cells.hidden = patches;
    return ops.gelu_mlp(tape, squares_of_patches(tape, cells, factor_), first_, second_);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t square = factor_ * factor_, width = parts_.encoder.width() * square;
    return ForwardFlops{product_flops(width, width) + product_flops(width, parts_.decoder.width()), 0} *
           static_cast<double>(tokens / square);
  }

  int64_t factor_;
  VitNorm norm_;
  Operations::Layer first_, second_;
};

} // namespace

std::unique_ptr<Connector> qwen2_vl_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                              Parameters& parameters) {
  return std::make_unique<Qwen2VlConnector>(static_cast<const connector::Qwen2Vl&>(settings), parts, parameters);
}

} // namespace fvlm::model
