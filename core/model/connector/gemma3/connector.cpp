// The connector of Gemma 3: a decoder row for the mean of every square of factor x factor patches.
#include "base/error.h"
#include "model/connector/framewise.h"
#include "model/connector/gemma3/settings.h"
#include "ops/pointwise.h"

#include <ATen/ops/zeros.h>

#include <cmath>
#include <map>

namespace fvlm::model {
namespace {

class Gemma3Connector : public FramewiseConnector {
 public:
  Gemma3Connector(const connector::Gemma3& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), factor_(settings.factor), norm_(parameters.weight("mm_soft_emb_norm.weight")),
        projection_(parameters.weight("mm_input_projection_weight")) {}

  BidirectionalRows bidirectional_rows() const override { return BidirectionalRows::visual; }

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    constexpr double epsilon = 1e-6; // that of SigLIP's norms
    const at::Tensor& shares = shares_of(input.hidden.data.size(0) / input.frames, ops.tensor_options());
    const Value means = mix_rows(tape, input.hidden, shares);
    return ops::matmul(tape, ops.rmsnorm(tape, means, {}, norm_.plus_one(), epsilon).y, projection_);
  }

  // [rows, patches]: what each patch adds to each mean. Computed once, since a captured pass cannot copy from the host.
  const at::Tensor& shares_of(int64_t patches, const at::TensorOptions& options) const {
    at::Tensor& shares = shares_[patches];
    if (shares.defined()) return shares;
    const int64_t side = std::llround(std::sqrt(static_cast<double>(patches)));
    if (side * side != patches || side % factor_ != 0)
      throw Error(ErrorKind::data,
                  "a frame has {} tokens, which are no square of patches that {} divides in both directions", patches,
                  factor_)
          .advise("take an encoder without a class token, and a factor that divides image_size / patch_size");
    const int64_t rows = side / factor_;
    const at::Tensor all = at::zeros({rows, rows, side, side}, at::kDouble);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < rows; ++column)
        all[row][column]
            .narrow(0, row * factor_, factor_)
            .narrow(1, column * factor_, factor_)
            .fill_(1 / static_cast<double>(factor_ * factor_));
    return shares = all.view({rows * rows, patches}).to(options);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t rows = tokens / (factor_ * factor_);
    return ForwardFlops{product_flops(parts_.encoder.width(), parts_.decoder.width()), 0} * static_cast<double>(rows);
  }

  int64_t factor_;
  ops::Weight norm_, projection_;
  mutable std::map<int64_t, at::Tensor> shares_; // by patches
};

} // namespace

std::unique_ptr<Connector> gemma3_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                            Parameters& parameters) {
  return std::make_unique<Gemma3Connector>(static_cast<const connector::Gemma3&>(settings), parts, parameters);
}

} // namespace fvlm::model
