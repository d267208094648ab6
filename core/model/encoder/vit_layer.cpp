#include "model/encoder/vit_layer.h"

#include "base/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <fmt/format.h>

namespace fvlm::model {
namespace {

// For each of `count` patches the trained one of `side` at the same fraction of the line, computed with transformers'
// operations in float32: rounding decides where a fraction meets a boundary.
at::Tensor buckets(int64_t count, int64_t side) {
  const double step = 1.0 / static_cast<double>(side);
  const at::Tensor boundaries = at::arange(step, 1.0, step, at::kFloat);
  const at::Tensor fractions = at::arange(count, at::kFloat) * (1.0F / static_cast<float>(count));
  return at::bucketize(fractions.clamp_max(1.0 - 1e-6), boundaries, false, true);
}

} // namespace

at::Tensor patches_of(const at::Tensor& frames, int64_t patch, at::ScalarType type, int64_t width, int64_t times) {
  const at::Tensor moments = frames.dim() == 5 ? frames : frames.unsqueeze(1);
  const int64_t n = frames.size(0), channels = frames.size(-3), rows = frames.size(-2) / patch,
                columns = frames.size(-1) / patch, own = channels * times * patch * patch;
  at::Tensor patches = at::empty({n * rows * columns, width}, frames.options().dtype(type));
  if (width > own) patches.narrow(1, own, width - own).zero_();
  patches.narrow(1, 0, own)
      .unflatten(1, {channels, times, patch, patch})
      .unflatten(0, {n, rows, columns})
      .copy_(moments.narrow(3, 0, rows * patch)
                 .narrow(4, 0, columns * patch)
                 .unflatten(3, {rows, patch})
                 .unflatten(5, {columns, patch})
                 .permute({0, 3, 5, 2, 1, 4, 6}));
  return patches;
}

VitEmbedding::VitEmbedding(const VisionConfig& config, const Names& names, Parameters& parameters)
    : config_(config), class_rows_(names.class_token ? 1 : 0),
      patches_begin_(class_rows_ + config.num_register_tokens) {
  const auto weight = [&](const std::string& name) { return parameters.weight("vision.embeddings." + name); };
  if (names.class_token) class_token_ = weight(names.class_token);
  if (config.num_register_tokens > 0) registers_ = weight("register_tokens");
  position_ = weight(names.position);
  patch_weight_ = weight(names.patch + std::string(".weight")).as_matrix();
  if (names.patch_bias) patch_bias_ = weight(names.patch + std::string(".bias"));
  if (names.patch_norm) patch_norm_ = {weight(names.patch_norm + std::string(".weight")), {}, config.layer_norm_eps};
}

int64_t VitEmbedding::tokens(int64_t height, int64_t image_width) const {
  return patches_begin_ + (height / config_.patch_size) * (image_width / config_.patch_size);
}

// [trained patches, patches]: the resampling as a matrix. On a GPU LibTorch's own interpolation takes as long as a
// layer, and its backward pass accumulates in no fixed order.
at::Tensor VitEmbedding::resampling(int64_t rows, int64_t columns, at::ScalarType type) const {
  const int64_t side = config_.grid(), patches = side * side;
  auto& shares = resampling_[{rows, columns}];
  if (shares.defined()) return shares;
  const at::Tensor each = at::eye(patches, position_.value().options().dtype(type));
  if (!config_.position_buckets) {
    const at::Tensor grid = each.view({1, patches, side, side});
    shares = (config_.position_antialias ? at::_upsample_bicubic2d_aa(grid, {rows, columns}, false)
                                         : at::upsample_bicubic2d(grid, {rows, columns}, false))
                 .view({patches, rows * columns});
  } else {
    const at::Tensor index = buckets(rows, side).unsqueeze(1) * side + buckets(columns, side).unsqueeze(0);
    shares = each.index_select(1, index.flatten().to(each.device()));
  }
  return shares;
}

Value VitEmbedding::positions(Tape& tape, int64_t rows, int64_t columns) const {
  const int64_t side = config_.grid(), width = config_.hidden_size;
  const at::Tensor table = position_.value().view({class_rows_ + side * side, width});
  if (rows == side && columns == side && !config_.position_buckets) {
    Value y(table, tape.records(position_));
    if (y.requires_grad())
      tape.push([weight = position_, out = y.gradient] {
        const at::Tensor d = out->take();
        if (d.defined()) weight.add_gradient(d.view_as(weight.value()));
      });
    return y;
  }
  // As in transformers, narrower types are interpolated in float32 and rounded.
  const auto type = table.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor shares = resampling(rows, columns, type);
  const at::Tensor resampled = at::mm(shares.t(), table.narrow(0, class_rows_, side * side).to(type));
  Value y(at::concat({table.narrow(0, 0, class_rows_), resampled.to(table.scalar_type())}), tape.records(position_));
  if (y.requires_grad())
    tape.push([weight = position_, shares, type, class_rows = class_rows_, out = y.gradient] {
      const at::Tensor d = out->take();
      if (!d.defined()) return;
      const at::Tensor of_patches = d.narrow(0, class_rows, shares.size(1)).to(type);
      weight.add_gradient(
          at::concat({d.narrow(0, 0, class_rows).to(type), at::mm(shares, of_patches)}).view_as(weight.value()));
    });
  return y;
}

Value VitEmbedding::operator()(Tape& tape, Operations& ops, const at::Tensor& frames,
                               const Value& appended_rows) const {
  const int64_t n = frames.size(0), patch = config_.patch_size, width = config_.hidden_size;
  if (frames.size(1) != config_.num_channels || frames.size(2) < patch || frames.size(3) < patch)
    throw Error(ErrorKind::data,
                "frames [n, {}, {}, {}] do not fit the vision tower: it reads {} channels and patches of {} x {}",
                frames.size(1), frames.size(2), frames.size(3), config_.num_channels, patch, patch);
  const int64_t rows = frames.size(2) / patch, columns = frames.size(3) / patch, class_rows = class_rows_,
                first = patches_begin_, tokens = first + rows * columns,
                rows_per_frame = tokens + (appended_rows.defined() ? 1 : 0);
  const Value pixels(patches_of(frames, patch, ops.options().dtype, ops.padded(patch_weight_.value().size(1))));
  Value patches = ops.linear(tape, pixels, ops.padded(tape, patch_weight_), patch_bias_);
  if (patch_norm_.weight.defined()) patches = patch_norm_(tape, ops, patches);
  const Value position = positions(tape, rows, columns);

  const at::Tensor x = at::empty({n, rows_per_frame, width}, ops.tensor_options());
  if (class_rows > 0) {
    const at::Tensor class_row = position.data.narrow(0, 0, 1) + class_token_.value().view({1, width});
    x.narrow(1, 0, 1).copy_(class_row.expand({n, 1, width}));
  }
  if (registers_.defined()) x.narrow(1, class_rows, first - class_rows).copy_(registers_.value().expand({n, -1, -1}));
  at::Tensor rest = x.narrow(1, first, rows * columns);
  at::add_out(rest, patches.data.view({n, rows * columns, width}), position.data.narrow(0, class_rows, rows * columns));
  if (appended_rows.defined()) x.select(1, tokens).copy_(appended_rows.data);
  Value y(x.view({n * rows_per_frame, width}),
          tape.records(patches, position, class_token_, registers_, appended_rows));
  if (!y.requires_grad()) return y;
  tape.push([n, class_rows, first, tokens, rows_per_frame, width, patches = patches.gradient,
             position = position.gradient, token = class_token_, registers = registers_,
             appended_rows = appended_rows.gradient, out = y.gradient] {
    const at::Tensor gradient = out->take();
    if (!gradient.defined()) return;
    const at::Tensor d = gradient.view({n, rows_per_frame, width});
    if (appended_rows) appended_rows->add(d.select(1, tokens).contiguous());
    const auto wide = gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor over_frames = d.narrow(1, 0, tokens).sum(0, false, wide);
    const auto of_rows = [&](int64_t begin, int64_t end) { return over_frames.narrow(0, begin, end - begin); };
    if (position)
      position->add(first == class_rows ? over_frames : at::concat({of_rows(0, class_rows), of_rows(first, tokens)}));
    if (registers.requires_grad()) registers.add_gradient(of_rows(class_rows, first).view_as(registers.value()));
    if (token.requires_grad()) token.add_gradient(of_rows(0, 1).view_as(token.value()));
    if (patches) patches->add(d.narrow(1, first, tokens - first).reshape({n * (tokens - first), width}));
  });
  return y;
}

ops::Gelu gelu_of(const VisionConfig& config) {
  if (config.hidden_act == "quick_gelu") return ops::Gelu::quick;
  return config.hidden_act == "gelu_pytorch_tanh" ? ops::Gelu::tanh : ops::Gelu::exact;
}

VitLayer::VitLayer(const VisionConfig& config, const std::string& prefix, const Names& names, Parameters& parameters)
    : heads(config.num_attention_heads), head_dim(config.head_dim()), is_gated(names.gate != nullptr) {
  const auto one = [&](const std::string& rest) { return parameters.weight(prefix + rest); };
  const auto linear = [&](const std::string& stem) -> ops::Operations::Layer {
    return {one(stem + ".weight"), is_gated ? ops::Weight() : one(stem + ".bias")};
  };
  const auto norm = [&](const std::string& stem) -> VitNorm {
    return {one(stem + ".weight"), config.rms_norm ? ops::Weight() : one(stem + ".bias"), config.layer_norm_eps};
  };
  const auto fused = [&](const std::vector<const char*>& parts) {
    std::vector<std::string> weights, biases;
    for (const char* part : parts) {
      weights.push_back(fmt::format("{}{}.weight", prefix, part));
      biases.push_back(fmt::format("{}{}.bias", prefix, part));
    }
    return ops::Operations::Layer{parameters.fused(weights),
                                  config.attention_bias ? parameters.fused(biases) : ops::Weight()};
  };
  before_attention = norm(names.before_attention);
  before_mlp = norm(names.before_mlp);
  query = fused({names.query});
  qkv = fused({names.query, names.key, names.value});
  keys_values = fused({names.key, names.value});
  out = linear(names.out);
  up = is_gated ? fused({names.gate, names.up}) : linear(names.up);
  down = linear(names.down);
  if (names.attention_scale) attention_scale = one(names.attention_scale);
  if (names.mlp_scale) mlp_scale = one(names.mlp_scale);
  if (config.use_qk_norm) {
    query_norm = one(names.query_norm + std::string(".weight"));
    key_norm = one(names.key_norm + std::string(".weight"));
  }
  activation = gelu_of(config);
}

Value VitLayer::queries_keys_values(Tape& tape, Operations& ops, const Value& x) const {
  return ops.linear(tape, before_attention(tape, ops, x), qkv.weight, qkv.bias);
}

Value VitLayer::attend(Tape& tape, Operations& ops, const Value& x, const Segments& segments) const {
  const int64_t width = heads * head_dim;
  const Value qkv = queries_keys_values(tape, ops, x);
  ops::Heads q{qkv, 0, heads}, k{qkv, width, heads};
  if (query_norm.defined()) {
    constexpr double epsilon = 1e-6; // that of transformers, whatever layer_norm_eps is
    q = {ops.rmsnorm_heads(tape, {qkv, 0, 1}, width, query_norm, epsilon), 0, heads};
    k = {ops.rmsnorm_heads(tape, {qkv, width, 1}, width, key_norm, epsilon), 0, heads};
  }
  return ops.attention(tape, q, k, {qkv, 2 * width, heads}, segments, segments, {head_dim});
}

Value VitLayer::finish(Tape& tape, Operations& ops, const Value& x, const Value& attended_rows,
                       const VisualCache::FoldedLayer& folded, Operations::Compensation* compensation) const {
  const bool is_folded = folded.attention.weight.defined();
  if (is_folded || !attention_scale.defined()) {
    const Value attended = ops.linear(tape, attended_rows, is_folded ? folded.attention : out, x, compensation);
    if (is_gated)
      return ops.linear_of_swiglu(tape, ops.linear(tape, before_mlp(tape, ops, attended), up.weight), down, attended);
    return ops.gelu_mlp(tape, before_mlp(tape, ops, attended), up, is_folded ? folded.mlp : down, attended,
                        compensation, activation);
  }
  const Value attended =
      ops.layerscale(tape, ops.linear(tape, attended_rows, out.weight, out.bias), attention_scale, x);
  const Value inner = ops.gelu_mlp(tape, before_mlp(tape, ops, attended), up, down, {}, nullptr, activation);
  return ops.layerscale(tape, inner, mlp_scale, attended);
}

ForwardFlops vit_layer_flops(const VisionConfig& config) {
  const int64_t width = config.hidden_size;
  return {2 * product_flops(width, width) +
              (config.hidden_act == "silu" ? 3 : 2) * product_flops(width, config.intermediate_size),
          0};
}

double vit_frame_flops(const VisionConfig& config, int64_t tokens, int64_t patches, int64_t layers, int64_t with_keys,
                       bool trains) {
  const int64_t width = config.hidden_size, pixels = config.num_channels * config.patch_size * config.patch_size;
  const auto rows = static_cast<double>(tokens), whole = static_cast<double>(layers);
  const ForwardFlops embed{product_flops(pixels, width) * static_cast<double>(patches), 0};
  const ForwardFlops keys_values{2 * product_flops(width, width) * rows * static_cast<double>(with_keys), 0};
  const ForwardFlops attention{0, attention_pair_flops(width) * rows * rows * whole};
  return with_backward(embed, trains, false) +
         with_backward(vit_layer_flops(config) * (rows * whole) + keys_values + attention, trains, trains);
}

} // namespace fvlm::model
