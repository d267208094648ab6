// The connector of Gemma 4: a decoder row for the mean of every square of factor x factor patches.
#include "model/connector/framewise.h"
#include "model/connector/gemma4/settings.h"
#include "ops/pointwise.h"

#include <ATen/TensorOperators.h>

#include <cmath>

namespace fvlm::model {
namespace {

class Gemma4Connector : public FramewiseConnector {
 public:
  Gemma4Connector(const connector::Gemma4& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), factor_(settings.factor), epsilon_(settings.norm_eps),
        projection_(parameters.weight("embedding_projection.weight")) {
    if (!settings.standardize) return;
    bias_ = parameters.weight("std_bias").value();
    scale_ = parameters.weight("std_scale").value();
  }

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    const Value rows = means(tape, squares_of_patches(tape, input, factor_));
    return ops.linear(tape, ops.rmsnorm(tape, rows, {}, {}, epsilon_).y, projection_);
  }

  // Of the patches of each square, times the root of their width, and standardized. In float32: numbers may be large,
  // and differences of them small.
  Value means(Tape& tape, const Value& squares) const {
    const int64_t width = parts_.encoder.width(), patches = factor_ * factor_;
    const double scale = std::sqrt(static_cast<double>(width));
    at::Tensor mean = ops::widened(squares.data).view({-1, patches, width}).mean(1).mul_(scale);
    if (scale_.defined()) mean.sub_(bias_).mul_(scale_);
    Value y(mean.to(squares.data.scalar_type()), tape.records(squares));
    if (!y.requires_grad()) return y;
    tape.push([factors = scale_, share = scale / static_cast<double>(patches), patches,
               shape = squares.data.sizes().vec(), in = squares.gradient, out = y.gradient] {
      const at::Tensor d_y = out->take();
      if (!d_y.defined()) return;
      at::Tensor d = ops::widened(d_y) * share;
      if (factors.defined()) d.mul_(factors);
      in->add(d.to(d_y.scalar_type()).unsqueeze(1).expand({-1, patches, -1}).reshape(shape));
    });
    return y;
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t rows = tokens / (factor_ * factor_);
    return ForwardFlops{product_flops(parts_.encoder.width(), parts_.decoder.width()), 0} * static_cast<double>(rows);
  }

  int64_t factor_;
  double epsilon_;
  ops::Weight projection_;
  at::Tensor bias_, scale_; // undefined: rows are not standardized
};

} // namespace

std::unique_ptr<Connector> gemma4_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                            Parameters& parameters) {
  return std::make_unique<Gemma4Connector>(static_cast<const connector::Gemma4&>(settings), parts, parameters);
}

} // namespace fvlm::model
