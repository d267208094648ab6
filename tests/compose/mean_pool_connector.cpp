#include "mean_pool.h"
#include "model/connector/connector.h"
#include "ops/rows.h"

#include <ATen/TensorOperators.h>

namespace fvlm::model {
namespace {

class MeanPoolConnector : public Connector {
 public:
  MeanPoolConnector(double scale, const Parts& parts, Parameters& parameters)
      : Connector(parts),
        scale_(scale), to_decoder_{parameters.weight("to_decoder.weight"), parameters.weight("to_decoder.bias")} {}

  VisualTokens encode(Tape& tape, Operations& ops, const Pack& pack, const EncodeRequest& request) const override {
    const Value hidden = parts_.encoder.forward(tape, ops, pack.frames, pack.patches, pack.maps);
    request.end_phase("vision", "pool");
    VisualTokens out;
    out.tokens = to_tokens(tape, ops, hidden, pack.frames.size(0));
    request.end_phase("pool", nullptr);
    return out;
  }

  double flops(const FlopsRequest& request) const override {
    const ForwardFlops linear{product_flops(parts_.encoder.width(), parts_.decoder.width()), 0};
    return request.work.frames * parts_.encoder.flops(request.tokens, request.trained.vision) +
           with_backward(linear * request.work.frames, request.trained.connector, request.trained.vision);
  }

 private:
  Value to_tokens(Tape& tape, Operations& ops, const Value& hidden, int64_t frames) const {
    const int64_t tokens = hidden.data.size(0) / frames, width = hidden.data.size(1);
    Value mean(hidden.data.view({frames, tokens, width}).mean(1), tape.records(hidden));
    if (mean.requires_grad())
      tape.push([frames, tokens, width, in = hidden.gradient, out = mean.gradient] {
        const at::Tensor d = out->take();
        if (d.defined()) in->add((d / tokens).unsqueeze(1).expand({frames, tokens, width}).reshape({-1, width}));
      });
    return ops::scale(tape, ops.linear(tape, mean, to_decoder_.weight, to_decoder_.bias), scale_);
  }

  double scale_;
  ops::Operations::Layer to_decoder_;
};

} // namespace

std::unique_ptr<Connector> mean_pool_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                               Parameters& parameters) {
  const auto& own = static_cast<const connector::MeanPool&>(settings);
  return std::make_unique<MeanPoolConnector>(own.scale, parts, parameters);
}

} // namespace fvlm::model
