#include "model/connector/framewise.h"

#include "base/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/matmul.h>
#include <fmt/format.h>

#include <cmath>

namespace fvlm::model {
namespace {

// Records that y was made of x, whose gradient `back` computes from y's.
template <class Back>
Value recorded(Tape& tape, const Value& x, at::Tensor data, Back back) {
  Value y(std::move(data), tape.records(x));
  if (!y.requires_grad()) return y;
  tape.push([back = std::move(back), in = x.gradient, out = y.gradient] {
    const at::Tensor d = out->take();
    if (d.defined()) in->add(back(d));
  });
  return y;
}

} // namespace

FramewiseConnector::Input FramewiseConnector::read(Tape& tape, Operations& ops, const Pack& pack,
                                                   const EncodeRequest& request) const {
  std::vector<Value> hidden =
      parts_.encoder.forward_with_layers(tape, ops, pack.encoder_input(), pack.patches, pack.maps);
  Input input{hidden[0],    pack.encoder_slots, pack.patches,
              request.mode, request.decoder,    {hidden.begin() + 1, hidden.end()}};
  request.end_phase("vision", "connector");
  return input;
}

VisualTokens FramewiseConnector::encode(Tape& tape, Operations& ops, const Pack& pack,
                                        const EncodeRequest& request) const {
  const Input input = read(tape, ops, pack, request);
  VisualTokens out;
  AttentionMaps maps;
  out.tokens = connect(tape, ops, input, request.outputs == EncodeOutputs::tokens_and_attention ? &maps : nullptr);
  if (!maps.layers.empty()) {
    out.attention = maps.stacked();
    out.query_attention = maps.of_queries();
  }
  if (const at::Tensor& source = pack.frame_source; source.defined()) {
    const int64_t rows = out.tokens.data.size(0) / input.frames;
    const at::Tensor of_rows = at::arange(rows, source.options());
    out.tokens = ops::gather_repeated_rows(tape, out.tokens, (source.unsqueeze(1) * rows + of_rows).flatten());
    for (at::Tensor* own : {&out.attention, &out.query_attention})
      if (own->defined()) *own = own->index_select(0, source);
  }
  request.end_phase("connector", nullptr);
  return out;
}

double FramewiseConnector::flops(const FlopsRequest& request) const {
  const auto& [tokens, work, trained, mode] = request;
  double encoder = 0;
  if (!parts_.encoder.reads_cells())
    encoder = work.encoded_frames * parts_.encoder.flops(tokens, trained.vision);
  else
    for (const ImageGrid& image : work.images) encoder += parts_.encoder.image_flops(image, trained.vision);
  return encoder + with_backward(connect_flops(tokens) * work.encoded_frames, trained.connector, trained.vision);
}

Value FramewiseConnector::squares_of_patches(Tape& tape, const Input& input, int64_t factor, SquareOrder order) {
  const int64_t patches = input.hidden.data.size(0) / input.frames;
  const auto side = std::llround(std::sqrt(static_cast<double>(patches)));
  if (side * side != patches || side % factor != 0)
    throw Error(
        ErrorKind::data,
        "frames of {} tokens are not a square of patches whose side is divisible by the factor {} of the pixel shuffle",
        patches, factor)
        .advise("choose an image size that is a multiple of the patch size times the factor, and an encoder without a "
                "CLS token or one that drops it (vision_feature_select_strategy = \"default\")");
  return space_to_depth(tape, input.hidden, side, side, factor, order);
}

Value space_to_depth(Tape& tape, const Value& patches, int64_t rows, int64_t columns, int64_t factor,
                     SquareOrder order) {
  const int64_t width = patches.data.size(1), frames = patches.data.size(0) / (rows * columns);
  const std::vector<int64_t> lines{frames, rows / factor, factor, columns / factor, factor, width};
  std::vector<int64_t> to_squares{0, 1, 3, 2, 4, 5}, to_lines = to_squares; // the axes of `lines`, and back
  if (order == SquareOrder::by_feature) to_squares = {0, 1, 3, 5, 2, 4}, to_lines = {0, 1, 4, 2, 5, 3};
  const at::Tensor squares = patches.data.view(lines).permute(to_squares);
  return recorded(tape, patches, squares.reshape({-1, factor * factor * width}),
                  [shape = squares.sizes().vec(), to_lines, width](const at::Tensor& d) {
                    return d.view(shape)
                        .permute(to_lines)
                        .reshape({-1, width})
                        .contiguous(); // a view otherwise, where there is one square
                  });
}

Value mix_rows(Tape& tape, const Value& x, const at::Tensor& shares) {
  const int64_t width = x.data.size(1);
  const auto mixed = [width](const at::Tensor& by, const at::Tensor& rows) {
    return at::matmul(by, rows.view({-1, by.size(1), width})).view({-1, width});
  };
  const at::Tensor own = shares.to(x.data.scalar_type());
  return recorded(tape, x, mixed(own, x.data), [own, mixed](const at::Tensor& d) { return mixed(own.t(), d); });
}

Value join_rows(Tape& tape, const Value& first, const Value& second, int64_t frames) {
  const int64_t width = first.data.size(1), rows = first.data.size(0) / frames, others = second.data.size(0) / frames;
  const auto by_frame = [frames, width](const at::Tensor& x) { return x.view({frames, -1, width}); };
  Value y(at::concat({by_frame(first.data), by_frame(second.data)}, 1).view({-1, width}), tape.records(first, second));
  if (!y.requires_grad()) return y;
  tape.push([by_frame, rows, others, width, d_first = first.gradient, d_second = second.gradient, out = y.gradient] {
    const at::Tensor d = out->take();
    if (!d.defined()) return;
    if (d_first) d_first->add(by_frame(d).narrow(1, 0, rows).reshape({-1, width}));
    if (d_second) d_second->add(by_frame(d).narrow(1, rows, others).reshape({-1, width}));
  });
  return y;
}

Value repeat_rows(Tape& tape, const ops::Weight& rows, int64_t frames) {
  const int64_t width = rows.value().size(-1), count = rows.value().numel() / width;
  const at::Tensor data = rows.value().view({count, width}).repeat({frames, 1});
  Value y(data, tape.records(rows));
  if (!y.requires_grad()) return y;
  tape.push([rows, frames, count, width, out = y.gradient] {
    const at::Tensor d = out->take();
    if (!d.defined()) return;
    const at::Tensor sum = d.view({frames, count, width}).sum(0, false, rows.gradient().scalar_type());
    rows.add_gradient(sum.view_as(rows.value()));
  });
  return y;
}

Projector::Projector(Parameters& parameters, const std::string& stem) {
  const auto layer = [&](const char* index) -> Operations::Layer {
    return {parameters.weight(stem + index + ".weight"), parameters.weight(stem + index + ".bias")};
  };
  up_ = layer(".0");
  down_ = layer(".3");
  norm_ = layer(".4");
}

Value Projector::operator()(Tape& tape, Operations& ops, const Value& x) const {
  constexpr double epsilon = 1e-5;
  return ops.layernorm(tape, ops.gelu_mlp(tape, x, up_, down_), norm_.weight, norm_.bias, epsilon);
}

} // namespace fvlm::model
