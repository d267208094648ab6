// The connector of PaliGemma: a decoder row for every token of the encoder.
#include "model/connector/framewise.h"
#include "model/connector/paligemma/settings.h"

namespace fvlm::model {
namespace {

class PaliGemmaConnector : public FramewiseConnector {
 public:
  PaliGemmaConnector(const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), linear_{parameters.weight("linear.weight"), parameters.weight("linear.bias")} {}

  BidirectionalRows bidirectional_rows() const override { return BidirectionalRows::prompt; }

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    return ops.linear(tape, input.hidden, linear_.weight, linear_.bias);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    return ForwardFlops{product_flops(parts_.encoder.width(), parts_.decoder.width()), 0} * static_cast<double>(tokens);
  }

  Operations::Layer linear_;
};

} // namespace

std::unique_ptr<Connector> paligemma_connector(const plan::ConnectorSettings&, const Parts& parts,
                                               Parameters& parameters) {
  return std::make_unique<PaliGemmaConnector>(parts, parameters);
}

} // namespace fvlm::model
