// The connector of LLaVA: a decoder row for every token of the encoder.
#include "model/connector/framewise.h"

namespace fvlm::model {
namespace {

class MlpConnector : public FramewiseConnector {
 public:
  MlpConnector(const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), first_{parameters.weight("linear_1.weight"), parameters.weight("linear_1.bias")},
        second_{parameters.weight("linear_2.weight"), parameters.weight("linear_2.bias")} {}

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    return ops.gelu_mlp(tape, input.hidden, first_, second_);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t width = parts_.decoder.width();
    return ForwardFlops{product_flops(parts_.encoder.width(), width) + product_flops(width, width), 0} *
           static_cast<double>(tokens);
  }

  Operations::Layer first_, second_;
};

} // namespace

std::unique_ptr<Connector> mlp_connector(const plan::ConnectorSettings&, const Parts& parts, Parameters& parameters) {
  return std::make_unique<MlpConnector>(parts, parameters);
}

} // namespace fvlm::model
