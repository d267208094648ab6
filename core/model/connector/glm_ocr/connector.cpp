// The connector of GLM-OCR and GLM-4.1V: a decoder row for every square of factor x factor patches.
#include "model/connector/framewise.h"
#include "model/connector/glm_ocr/settings.h"
#include "model/encoder/vit_layer.h"
#include "ops/rows.h"

namespace fvlm::model {
namespace {

class GlmOcrConnector : public FramewiseConnector {
 public:
  GlmOcrConnector(const connector::GlmOcr& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), factor_(settings.factor),
        hidden_(settings.hidden), downsample_{parameters.weight("downsample.weight").as_matrix(),
                                              parameters.weight("downsample.bias")},
        projection_(parameters.weight("proj.weight")), norm_{parameters.weight("post_projection_norm.weight"),
                                                             parameters.weight("post_projection_norm.bias"), 1e-5},
        gate_(parameters.weight("gate_proj.weight")),
        up_(parameters.weight("up_proj.weight")), down_{parameters.weight("down_proj.weight"), {}} {}

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    const Value squares = squares_of_patches(tape, input, factor_, SquareOrder::by_feature),
                rows = ops.linear(tape, squares, downsample_.weight, downsample_.bias),
                normed = norm_(tape, ops, ops.linear(tape, rows, projection_)),
                x = ops.gelu(tape, normed, ops::Gelu::exact);
    const Value gate_up = ops::join_columns(tape, {ops.linear(tape, x, gate_), ops.linear(tape, x, up_)});
    return ops.linear_of_swiglu(tape, gate_up, down_);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t square = factor_ * factor_, width = parts_.decoder.width();
    return ForwardFlops{product_flops(parts_.encoder.width() * square, width) + product_flops(width, width) +
                            3 * product_flops(width, hidden_),
                        0} *
           static_cast<double>(tokens / square);
  }

  int64_t factor_, hidden_;
  Operations::Layer downsample_;
  ops::Weight projection_;
  VitNorm norm_;
  ops::Weight gate_, up_;
  Operations::Layer down_;
};

} // namespace

std::unique_ptr<Connector> glm_ocr_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                             Parameters& parameters) {
  return std::make_unique<GlmOcrConnector>(static_cast<const connector::GlmOcr&>(settings), parts, parameters);
}

} // namespace fvlm::model
