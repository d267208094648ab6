// The connector of Ovis2: a decoder row for every square of factor x factor patches, and behind those of a frame the
// learned rows of images, see ImageIndicators.
#include "model/connector/framewise.h"
#include "model/connector/ovis2/settings.h"
#include "ops/pointwise.h"

#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

namespace fvlm::model {
namespace {

// softmax(logits), with columns of zeros behind them up to `words`.
Value distribution(Tape& tape, const Value& logits, int64_t words) {
  const int64_t columns = logits.data.size(1);
  Value y(at::zeros({logits.data.size(0), words}, logits.data.options()), tape.records(logits));
  const at::Tensor shares = y.data.narrow(1, 0, columns);
  shares.copy_(at::softmax(logits.data, 1));
  if (!y.requires_grad()) return y;
  tape.push([shares, columns, in = logits.gradient, out = y.gradient] {
    const at::Tensor d = out->take();
    if (d.defined()) in->add(at::_softmax_backward_data(d.narrow(1, 0, columns), shares, 1, shares.scalar_type()));
  });
  return y;
}

class Ovis2Connector : public FramewiseConnector {
 public:
  Ovis2Connector(const connector::Ovis2& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), factor_(settings.factor), vocabulary_(settings.vocabulary),
        head_(parameters.weight("head_linear.weight")), norm_weight_(parameters.weight("head_norm.weight")),
        norm_bias_(parameters.weight("head_norm.bias")), table_(parameters.weight("visual_embeddings_table.weight")),
        indicators_(table_.rows(vocabulary_ - ImageIndicators::count, ImageIndicators::count)) {}

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    constexpr double epsilon = 1e-5;
    const Value squares = squares_of_patches(tape, input, factor_),
                logits = ops.layernorm(tape, ops.linear(tape, squares, head_), norm_weight_, norm_bias_, epsilon);
    // The words of indicators have no share, but keep the rows of the distribution aligned.
    const Value rows = ops::matmul(tape, distribution(tape, logits, vocabulary_), table_);
    return join_rows(tape, rows, repeat_rows(tape, indicators_, input.frames), input.frames);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t square = factor_ * factor_;
    return ForwardFlops{product_flops(parts_.encoder.width() * square, vocabulary_ - ImageIndicators::count) +
                            product_flops(vocabulary_, parts_.decoder.width()),
                        0} *
           static_cast<double>(tokens / square);
  }

  int64_t factor_, vocabulary_;
  ops::Weight head_, norm_weight_, norm_bias_, table_, indicators_;
};

} // namespace

std::unique_ptr<Connector> ovis2_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                           Parameters& parameters) {
  return std::make_unique<Ovis2Connector>(static_cast<const connector::Ovis2&>(settings), parts, parameters);
}

} // namespace fvlm::model
