#include "every_patch.h"

#include "base/config_reader.h"
#include "model/weights/layout.h"
#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace fvlm {
namespace connector {

Settings every_patch_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      recipe::record<EveryPatch>("EveryPatch", "every_patch", "Every patch's hidden state, through one linear.")
          .done());
}

WeightLayout EveryPatch::layout(int64_t encoder_width, int64_t decoder_width) const {
  const Initializer fill{Initializer::Kind::uniform, 1 / std::sqrt(static_cast<double>(encoder_width))};
  WeightLayout out;
  out.tensors = {{"to_decoder.weight", {decoder_width, encoder_width}, fill},
                 {"to_decoder.bias", {decoder_width}, fill}};
  return out;
}

nlohmann::json EveryPatch::config_json() const {
  return nlohmann::json::object();
}

void EveryPatch::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind"});
}

} // namespace connector

namespace model {
namespace {

class EveryPatchConnector : public Connector {
 public:
  EveryPatchConnector(const Parts& parts, Parameters& parameters)
      : Connector(parts), to_decoder_{parameters.weight("to_decoder.weight"), parameters.weight("to_decoder.bias")} {}

  VisualTokens encode(Tape& tape, Operations& ops, const Pack& pack, const EncodeRequest& request) const override {
    const Value hidden = parts_.encoder.forward(tape, ops, pack.frames, pack.patches, pack.maps);
    request.end_phase("vision", "connector");
    VisualTokens out;
    out.tokens = to_tokens(tape, ops, hidden, pack.frames.size(0));
    request.end_phase("connector", nullptr);
    return out;
  }

  double flops(const FlopsRequest& request) const override {
    const ForwardFlops linear{product_flops(parts_.encoder.width(), parts_.decoder.width()), 0};
    const double rows = request.work.frames * static_cast<double>(request.tokens - 1);
    return request.work.frames * parts_.encoder.flops(request.tokens, request.trained.vision) +
           with_backward(linear * rows, request.trained.connector, request.trained.vision);
  }

 private:
  // Without the first token of each frame, CLS.
  Value to_tokens(Tape& tape, Operations& ops, const Value& hidden, int64_t frames) const {
    const int64_t tokens = hidden.data.size(0) / frames, width = hidden.data.size(1);
    const auto patches = [=](const at::Tensor& all) {
      return all.view({frames, tokens, width}).narrow(1, 1, tokens - 1);
    };
    Value kept(patches(hidden.data).reshape({-1, width}), tape.records(hidden));
    if (kept.requires_grad())
      tape.push([patches, shape = hidden.data.sizes().vec(), in = hidden.gradient, out = kept.gradient] {
        const at::Tensor d = out->take();
        if (!d.defined()) return;
        at::Tensor all = at::zeros(shape, d.options());
        patches(all).copy_(d.view_as(patches(all)));
        in->add(all);
      });
    return ops.linear(tape, kept, to_decoder_.weight, to_decoder_.bias);
  }

  ops::Operations::Layer to_decoder_;
};

} // namespace

std::unique_ptr<Connector> every_patch_connector(const plan::ConnectorSettings&, const Parts& parts,
                                                 Parameters& parameters) {
  return std::make_unique<EveryPatchConnector>(parts, parameters);
}

} // namespace model
} // namespace fvlm
