// The connector of InternVL: a decoder row for every square of factor x factor patches.
#include "model/connector/framewise.h"
#include "model/connector/internvl/settings.h"

namespace fvlm::model {
namespace {

class InternVlConnector : public FramewiseConnector {
 public:
  InternVlConnector(const connector::InternVl& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), factor_(settings.factor), norm_weight_(parameters.weight("layer_norm.weight")),
        norm_bias_(parameters.weight("layer_norm.bias")), first_{parameters.weight("linear_1.weight"),
                                                                 parameters.weight("linear_1.bias")},
        second_{parameters.weight("linear_2.weight"), parameters.weight("linear_2.bias")} {}

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    constexpr double epsilon = 1e-5;
    const Value squares = squares_of_patches(tape, input, factor_);
    return ops.gelu_mlp(tape, ops.layernorm(tape, squares, norm_weight_, norm_bias_, epsilon), first_, second_);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t square = factor_ * factor_, width = parts_.decoder.width();
    return ForwardFlops{product_flops(parts_.encoder.width() * square, width) + product_flops(width, width), 0} *
           static_cast<double>(tokens / square);
  }

  int64_t factor_;
  ops::Weight norm_weight_, norm_bias_;
  Operations::Layer first_, second_;
};

} // namespace

std::unique_ptr<Connector> internvl_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                              Parameters& parameters) {
  return std::make_unique<InternVlConnector>(static_cast<const connector::InternVl&>(settings), parts, parameters);
}

} // namespace fvlm::model
