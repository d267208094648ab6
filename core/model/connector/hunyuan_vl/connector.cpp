// The connector of HunyuanOCR: a decoder row for every square of factor x factor patches, and beside it the learned
// rows of images, see ImageRowOrder.
#include "model/connector/framewise.h"
#include "model/connector/hunyuan_vl/settings.h"
#include "ops/pointwise.h"

#include <ATen/ops/concat.h>

namespace fvlm::model {
namespace {

// [squares * rows_per_cell, width] of the rows of all squares and, behind them, the learned ones.
Value beside_squares(Tape& tape, const Value& rows) {
  constexpr int64_t learned = ImageRowOrder::rows_per_cell - 1;
  const int64_t squares = rows.data.size(0) - learned, width = rows.data.size(1);
  const at::Tensor own = rows.data.narrow(0, 0, squares).unsqueeze(1),
                   others = rows.data.narrow(0, squares, learned).unsqueeze(0).expand({squares, learned, width});
  Value y(at::concat({own, others}, 1).view({-1, width}), tape.records(rows));
  if (!y.requires_grad()) return y;
  tape.push([squares, width, in = rows.gradient, out = y.gradient] {
    const at::Tensor d_y = out->take();
    if (!d_y.defined()) return;
    const at::Tensor d = d_y.view({squares, ImageRowOrder::rows_per_cell, width});
    const at::Tensor d_learned = ops::widened(d.narrow(1, 1, learned)).sum(0).to(d.scalar_type());
    in->add(at::concat({d.select(1, ImageRowOrder::own), d_learned}));
  });
  return y;
}

class HunyuanVlConnector : public FramewiseConnector {
 public:
  HunyuanVlConnector(const connector::HunyuanVl& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), factor_(settings.factor),
        epsilon_(settings.norm_eps), merge_{parameters.weight("proj_conv.weight").as_matrix(),
                                            parameters.weight("proj_conv.bias")},
        widen_{parameters.weight("proj_out.weight").as_matrix(), parameters.weight("proj_out.bias")},
        project_{parameters.weight("mlp.weight"), parameters.weight("mlp.bias")},
        newline_(parameters.weight("image_newline")), begin_(parameters.weight("image_begin")),
        end_(parameters.weight("image_end")), before_(parameters.weight("before_rms.weight")),
        after_(parameters.weight("after_rms.weight")) {}

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    Input normed = input;
    normed.hidden = ops.rmsnorm(tape, input.hidden, {}, before_, epsilon_).y;
    const Value squares = squares_of_patches(tape, normed, factor_, SquareOrder::by_feature);
    const Value merged = ops.gelu_mlp(tape, squares, merge_, widen_, {}, nullptr, ops::Gelu::exact);
    const auto with_row = [&](const Value& rows, const ops::Weight& row) {
      return join_rows(tape, rows, repeat_rows(tape, row, 1), 1);
    };
    Value rows = ops.linear(tape, with_row(merged, newline_), project_.weight, project_.bias);
    rows = with_row(with_row(rows, begin_), end_);
    return beside_squares(tape, ops.rmsnorm(tape, rows, {}, after_, epsilon_).y);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t square = factor_ * factor_, width = parts_.encoder.width();
    return ForwardFlops{product_flops(width * square, 2 * width) + product_flops(2 * width, 4 * width) +
                            product_flops(4 * width, parts_.decoder.width()),
                        0} *
           static_cast<double>(tokens / square);
  }

  int64_t factor_;
  double epsilon_;
  Operations::Layer merge_, widen_, project_;
  ops::Weight newline_, begin_, end_, before_, after_;
};

} // namespace

std::unique_ptr<Connector> hunyuan_vl_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                                Parameters& parameters) {
  return std::make_unique<HunyuanVlConnector>(static_cast<const connector::HunyuanVl&>(settings), parts, parameters);
}

} // namespace fvlm::model
