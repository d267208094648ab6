// The connector of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and PaddleOCR-VL: a decoder row for every cell of an image.
// The encoder's rows of a cell are its patches line by line.
#include "model/connector/framewise.h"
#include "model/connector/qwen2_vl/settings.h"
#include "model/encoder/vit_layer.h"
#include "ops/rows.h"

namespace fvlm::model {
namespace {

class Qwen2VlConnector : public FramewiseConnector {
 public:
  Qwen2VlConnector(const connector::Qwen2Vl& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), factor_(settings.factor) {
    const auto linear = [&](const std::string& stem) -> Operations::Layer {
      return {parameters.weight(stem + ".weight"), parameters.weight(stem + ".bias")};
    };
    const auto norm = [&](const std::string& stem) -> VitNorm {
      return {parameters.weight(stem + ".weight"),
              settings.rms_norm ? ops::Weight() : parameters.weight(stem + ".bias"), settings.norm_eps};
    };
    mergers_.push_back({norm("ln_q"), linear("mlp.0"), linear("mlp.2")});
    for (int64_t i = 0; i < settings.deepstack; ++i) {
      const std::string stem = connector::Qwen2Vl::deepstack_merger(i);
      mergers_.push_back({norm(stem + "norm"), linear(stem + "linear_fc1"), linear(stem + "linear_fc2")});
    }
  }

  int64_t deepstack_layers() const override { return std::ssize(mergers_) - 1; }

 private:
  struct Merger {
    VitNorm norm;
    Operations::Layer first, second;
  };

  // The first one normalizes patches, those of DeepStack cells.
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    Input patches = input;
    patches.hidden = mergers_[0].norm(tape, ops, input.hidden);
    std::vector<Value> rows{
        ops.gelu_mlp(tape, squares_of_patches(tape, patches, factor_), mergers_[0].first, mergers_[0].second)};
    for (size_t i = 1; i < mergers_.size(); ++i) {
      patches.hidden = input.further.at(i - 1);
      const Value cells = mergers_[i].norm(tape, ops, squares_of_patches(tape, patches, factor_));
      rows.push_back(ops.gelu_mlp(tape, cells, mergers_[i].first, mergers_[i].second));
    }
    return rows.size() == 1 ? rows[0] : ops::join_columns(tape, rows);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t square = factor_ * factor_, width = parts_.encoder.width() * square,
                  rows = tokens / square * std::ssize(mergers_);
    return ForwardFlops{product_flops(width, width) + product_flops(width, parts_.decoder.width()), 0} *
           static_cast<double>(rows);
  }

  int64_t factor_;
  std::vector<Merger> mergers_;
};

} // namespace

std::unique_ptr<Connector> qwen2_vl_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                              Parameters& parameters) {
  return std::make_unique<Qwen2VlConnector>(static_cast<const connector::Qwen2Vl&>(settings), parts, parameters);
}

} // namespace fvlm::model
