// The connector of LLaVA: a decoder row for every token of the encoder, and with newlines one more for every line.
#include "base/error.h"
#include "model/connector/framewise.h"
#include "model/connector/mlp/settings.h"
#include "recipe/bilinear_place.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/kron.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <map>
#include <optional>

namespace fvlm::model {
namespace {

// Squares of side x side patches [frames * side * side, width], with the newline behind each of their lines.
Value with_newlines(Tape& tape, const Value& patches, const ops::Weight& newline, int64_t side) {
  const int64_t width = patches.data.size(1);
  const auto in_lines = [side, width](const at::Tensor& rows) { return rows.view({-1, side + 1, width}); };
  Value y(at::empty({patches.data.size(0) / side * (side + 1), width}, patches.data.options()),
          tape.records(patches, newline));
  const at::Tensor lines = in_lines(y.data);
  lines.narrow(1, 0, side).copy_(patches.data.view({-1, side, width}));
  lines.select(1, side).copy_(newline.value().expand({lines.size(0), width}));
  if (!y.requires_grad()) return y;
  tape.push([in_lines, side, width, newline, in = patches.gradient, out = y.gradient] {
    const at::Tensor d = out->take();
    if (!d.defined()) return;
    if (in) in->add(in_lines(d).narrow(1, 0, side).reshape({-1, width}));
    if (newline.requires_grad())
      newline.add_gradient(in_lines(d).select(1, side).sum(0, false, newline.gradient().scalar_type()));
  });
  return y;
}

// [pooled, side]: of lines of patches that are resampled bilinearly.
at::Tensor resampling(int64_t pooled, int64_t side) {
  at::Tensor shares = at::zeros({pooled, side}, at::kFloat);
  auto of = shares.accessor<float, 2>();
  for (int64_t i = 0; i < pooled; ++i) {
    const BilinearPlace place(i, pooled, side);
    of[i][place.first] += 1 - place.share;
    of[i][place.second] += place.share;
  }
  return shares;
}

class MlpConnector : public FramewiseConnector {
 public:
  MlpConnector(const connector::Mlp& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), first_{parameters.weight("linear_1.weight"), parameters.weight("linear_1.bias")},
        second_{parameters.weight("linear_2.weight"), parameters.weight("linear_2.bias")} {
    if (settings.newline) newline_ = parameters.weight("image_newline");
    video_pooling_ = settings.video_pooling;
  }

 private:
  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    Value patches = ops.gelu_mlp(tape, input.hidden, first_, second_);
    if (!newline_ && !video_pooling_) return patches;
    const int64_t count = patches.data.size(0) / input.frames, side = connector::Mlp::side_of(count);
    if (side * side != count)
      throw Error(ErrorKind::data, "frames of {} tokens are no square of patches, which has lines", count)
          .advise("take an encoder without a class token, or one that drops it (vision_feature_select_strategy = "
                  "\"default\")");
    Value rows = newline_ ? with_newlines(tape, patches, *newline_, side) : patches;
    if (!video_pooling_) return rows;
    return join_rows(tape, rows, mix_rows(tape, patches, pooling(side, ops.tensor_options())), input.frames);
  }

  // [pooled patches, patches]. Computed once, since a captured pass cannot copy from the host.
  const at::Tensor& pooling(int64_t side, const at::TensorOptions& options) const {
    at::Tensor& shares = pooling_[side];
    if (shares.defined()) return shares;
    const at::Tensor lines = resampling(FrameLines{side}.pooled_side(), side);
    return shares = at::kron(lines, lines).to(options);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t width = parts_.decoder.width();
    const int64_t pooled = FrameLines{connector::Mlp::side_of(tokens)}.pooled_side();
    const double mixed = video_pooling_ ? product_flops(pooled * pooled, width) : 0;
    return ForwardFlops{product_flops(parts_.encoder.width(), width) + product_flops(width, width) + mixed, 0} *
           static_cast<double>(tokens);
  }

  Operations::Layer first_, second_;
  std::optional<ops::Weight> newline_;
  bool video_pooling_ = false;
  mutable std::map<int64_t, at::Tensor> pooling_; // by patches in a line
};

} // namespace

std::unique_ptr<Connector> mlp_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                         Parameters& parameters) {
  return std::make_unique<MlpConnector>(static_cast<const connector::Mlp&>(settings), parts, parameters);
}

} // namespace fvlm::model
