// The connector of Granite Docling: a decoder row for every square of factor x factor patches.
#include "base/error.h"
#include "model/connector/framewise.h"
#include "model/connector/granite_docling/settings.h"
#include "model/encoder/vit_layer.h"
#include "ops/pointwise.h"
#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/pow.h>

#include <cmath>
#include <map>

namespace fvlm::model {
namespace {

constexpr double norm_epsilon = 1e-5;

class GraniteDoclingConnector : public FramewiseConnector {
 public:
  GraniteDoclingConnector(const connector::GraniteDocling& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), factor_(settings.factor), projection_(parameters.weight("coarse.projection.weight")),
        output_(parameters.weight("mlp_fc2.weight")) {
    const int64_t width = parts.decoder.width();
    if (width % 4 != 0)
      throw Error(ErrorKind::data, "the decoder's rows have {} features, and positions of squares need a multiple of 4",
                  width)
          .advise("take another decoder, or the connector fvlm.internvl");
    const auto norm = [&](const std::string& stem) -> VitNorm {
      return {parameters.weight(stem + ".weight"), parameters.weight(stem + ".bias"), norm_epsilon};
    };
    const auto linear = [&](const std::string& stem) -> Operations::Layer {
      return {parameters.weight(stem + ".weight"), parameters.weight(stem + ".bias")};
    };
    before_squares_ = norm("ln_in"), before_gelu_ = norm("ln_mid"), behind_ = norm("ln_out");
    for (int64_t i = 0; i < settings.deepstack; ++i) {
      const std::string stem = connector::GraniteDocling::merger(i);
      mergers_.push_back({norm(stem + "layer_norm"), linear(stem + "linear_1"), linear(stem + "linear_2")});
    }
  }

  int64_t deepstack_layers() const override { return std::ssize(mergers_); }

 private:
  struct Merger {
    VitNorm norm;
    Operations::Layer first, second;
  };

  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    Input patches = input;
    patches.hidden = before_squares_(tape, ops, input.hidden);
    const Value squares = ops.linear(tape, squares_of_patches(tape, patches, factor_), projection_);
    const at::Tensor& positions = positions_of(squares.data.size(0) / input.frames, ops.tensor_options());
    const Value placed = ops::add(tape, squares, Value(positions.repeat({input.frames, 1})));
    const Value inner = ops.gelu(tape, before_gelu_(tape, ops, placed), ops::Gelu::exact);
    std::vector<Value> rows{behind_(tape, ops, ops.linear(tape, inner, output_))};
    for (size_t i = 0; i < mergers_.size(); ++i) {
      patches.hidden = input.further.at(i);
      const Value merged = mergers_[i].norm(tape, ops, squares_of_patches(tape, patches, factor_));
      rows.push_back(ops.gelu_mlp(tape, merged, mergers_[i].first, mergers_[i].second));
    }
    return rows.size() == 1 ? rows[0] : ops::join_columns(tape, rows);
  }

  // [rows of a frame, decoder width]: sines and cosines of the column, then those of the line. Computed once, since a
  // captured pass cannot copy from the host.
  const at::Tensor& positions_of(int64_t rows, const at::TensorOptions& options) const {
    at::Tensor& positions = positions_[rows];
    if (positions.defined()) return positions;
    constexpr double longest_period = 10000;
    const int64_t side = std::llround(std::sqrt(static_cast<double>(rows))), quarter = parts_.decoder.width() / 4;
    const at::Tensor places = at::arange(rows, at::kLong), line = places.div(side, "floor"),
                     rates = at::pow(longest_period, at::arange(quarter, at::kDouble) / -quarter);
    std::vector<at::Tensor> features;
    for (const at::Tensor& place : {places - line * side, line}) {
      const at::Tensor angles = place.to(at::kDouble).unsqueeze(1) * rates;
      features.insert(features.end(), {angles.sin(), angles.cos()});
    }
    return positions = at::concat(features, 1).to(options);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t square = factor_ * factor_, width = parts_.decoder.width();
    const double each = product_flops(parts_.encoder.width() * square, width) + product_flops(width, width);
    return ForwardFlops{each, 0} * static_cast<double>(tokens / square * (1 + std::ssize(mergers_)));
  }

  int64_t factor_;
  VitNorm before_squares_, before_gelu_, behind_;
  ops::Weight projection_, output_;
  std::vector<Merger> mergers_;
  mutable std::map<int64_t, at::Tensor> positions_; // by rows of a frame
};

} // namespace

std::unique_ptr<Connector> granite_docling_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                                     Parameters& parameters) {
  return std::make_unique<GraniteDoclingConnector>(static_cast<const connector::GraniteDocling&>(settings), parts,
                                                   parameters);
}

} // namespace fvlm::model
