// Row i of a frame is the mean of its tokens floor(i T / rows) to ceil((i + 1) T / rows) - 1, as PyTorch's
// AdaptiveAvgPool1d has it, behind the projector of GhostVis.
#include "model/connector/average_pool/settings.h"
#include "model/connector/framewise.h"

#include <ATen/ops/zeros.h>

#include <map>

namespace fvlm::model {
namespace {

class AveragePoolConnector : public FramewiseConnector {
 public:
  AveragePoolConnector(const connector::AveragePool& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), settings_(settings), projector_(parameters, "vision_projector.mlp") {}

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    const at::Tensor& shares = shares_of(input.hidden.data.size(0) / input.frames, ops.tensor_options());
    return projector_(tape, ops, mix_rows(tape, input.hidden, shares));
  }

  // [rows, tokens]: what each token adds to each mean. Computed once, since a captured pass cannot copy from the host.
  const at::Tensor& shares_of(int64_t tokens, const at::TensorOptions& options) const {
    at::Tensor& shares = shares_[tokens];
    if (shares.defined()) return shares;
    const at::Tensor all = at::zeros({settings_.rows, tokens}, at::kDouble);
    for (int64_t row = 0; row < settings_.rows; ++row) {
      const int64_t begin = row * tokens / settings_.rows,
                    end = ((row + 1) * tokens + settings_.rows - 1) / settings_.rows;
      all.select(0, row).narrow(0, begin, end - begin).fill_(1 / static_cast<double>(end - begin));
    }
    return shares = all.to(options);
  }

  ForwardFlops connect_flops(int64_t) const override {
    const int64_t inner = settings_.projector_width;
    return ForwardFlops{product_flops(parts_.encoder.width(), inner) + product_flops(inner, parts_.decoder.width()),
                        0} *
           static_cast<double>(settings_.rows);
  }

  connector::AveragePool settings_;
  Projector projector_;
  mutable std::map<int64_t, at::Tensor> shares_; // by tokens
};

} // namespace

std::unique_ptr<Connector> average_pool_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                                  Parameters& parameters) {
  return std::make_unique<AveragePoolConnector>(static_cast<const connector::AveragePool&>(settings), parts,
                                                parameters);
}

} // namespace fvlm::model
