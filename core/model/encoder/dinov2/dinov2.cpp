#include "model/encoder/dinov2/dinov2.h"

#include "base/error.h"
#include "model/encoder/attention_maps.h"
#include "model/flops.h"
#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <fmt/format.h>

namespace fvlm::model {
namespace {

std::string layer_name(int64_t index, const char* suffix) {
  return fmt::format("vision.encoder.layer.{}.{}", index, suffix);
}

// Cuts frames into patches, one for each row: [n * rows * columns, 3 * patch * patch], zero-padded to `width` columns.
at::Tensor patches_of(const at::Tensor& frames, int64_t patch, at::ScalarType type, int64_t width) {
  const int64_t n = frames.size(0), channels = frames.size(1), rows = frames.size(2) / patch,
                columns = frames.size(3) / patch, own = channels * patch * patch;
  const at::Tensor patches = at::empty({n * rows * columns, width}, frames.options().dtype(type));
  if (width > own) patches.narrow(1, own, width - own).zero_();
  patches.narrow(1, 0, own)
      .unflatten(1, {channels, patch, patch})
      .unflatten(0, {n, rows, columns})
      .copy_(frames.narrow(2, 0, rows * patch)
                 .narrow(3, 0, columns * patch)
                 .unflatten(2, {rows, patch})
                 .unflatten(4, {columns, patch})
                 .permute({0, 2, 4, 1, 3, 5}));
  return patches;
}

} // namespace

Dinov2::Dinov2(const VisionConfig& config, Parameters& parameters) : config_(config), head_dim_(config.head_dim()) {
  const std::string embeddings = "vision.embeddings.";
  class_token_ = parameters.weight(embeddings + "cls_token");
  position_ = parameters.weight(embeddings + "position_embeddings");
  patch_weight_ = parameters.weight(embeddings + "patch_embeddings.projection.weight").as_matrix();
  patch_bias_ = parameters.weight(embeddings + "patch_embeddings.projection.bias");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const auto one = [&](const std::string& rest) { return parameters.weight(layer_name(i, rest.c_str())); };
    const auto linear = [&](const std::string& stem) -> ops::Operations::Layer {
      return {one(stem + ".weight"), one(stem + ".bias")};
    };
    const auto norm = [&](const std::string& stem) -> Norm { return {one(stem + ".weight"), one(stem + ".bias")}; };
    const auto fused = [&](const std::vector<const char*>& parts) {
      ops::Operations::Layer layer;
      std::vector<std::string> weights, biases;
      for (const char* part : parts) {
        weights.push_back(fmt::format("{}{}.weight", layer_name(i, "attention.attention."), part));
        biases.push_back(fmt::format("{}{}.bias", layer_name(i, "attention.attention."), part));
      }
      layer.weight = parameters.fused(weights);
      layer.bias = parameters.fused(biases);
      return layer;
    };
    Layer layer;
    layer.before_attention = norm("norm1");
    layer.before_mlp = norm("norm2");
    layer.query = fused({"query"});
    layer.qkv = fused({"query", "key", "value"});
    layer.keys_values = fused({"key", "value"});
    layer.out = linear("attention.output.dense");
    layer.up = linear("mlp.fc1");
    layer.down = linear("mlp.fc2");
    layer.attention_scale = one("layer_scale1.lambda1");
    layer.mlp_scale = one("layer_scale2.lambda1");
    layers_.push_back(std::move(layer));
  }
  final_ = {parameters.weight("vision.layernorm.weight"), parameters.weight("vision.layernorm.bias")};
}

int64_t Dinov2::tokens_per_frame(int64_t height, int64_t image_width) const {
  return 1 + (height / config_.patch_size) * (image_width / config_.patch_size);
}

// [trained patches, patches]: the bicubic interpolation as a matrix. On a GPU LibTorch's own interpolation takes as
// long as a layer, and its backward pass accumulates in no fixed order.
at::Tensor Dinov2::resampling(int64_t rows, int64_t columns, at::ScalarType type) const {
  const int64_t side = config_.grid(), patches = side * side;
  auto& shares = resampling_[{rows, columns}];
  if (!shares.defined()) {
    const at::Tensor each = at::eye(patches, position_.value().options().dtype(type)).view({1, patches, side, side});
    shares = at::upsample_bicubic2d(each, {rows, columns}, false).view({patches, rows * columns});
  }
  return shares;
}

// [1 + patches, width]: the position embedding, interpolated if the frames have another grid than in training.
Value Dinov2::positions(Tape& tape, int64_t rows, int64_t columns) const {
  const int64_t side = config_.grid(), width = config_.hidden_size;
  const at::Tensor table = position_.value().view({1 + side * side, width});
  if (rows == side && columns == side) {
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
  const at::Tensor resampled = at::mm(shares.t(), table.narrow(0, 1, side * side).to(type));
  Value y(at::concat({table.narrow(0, 0, 1), resampled.to(table.scalar_type())}), tape.records(position_));
  if (y.requires_grad())
    tape.push([weight = position_, shares, type, out = y.gradient] {
      const at::Tensor d = out->take();
      if (!d.defined()) return;
      const at::Tensor of_patches = d.narrow(0, 1, shares.size(1)).to(type);
      weight.add_gradient(at::concat({d.narrow(0, 0, 1).to(type), at::mm(shares, of_patches)}).view_as(weight.value()));
    });
  return y;
}

Value Dinov2::embed(Tape& tape, Operations& ops, const at::Tensor& frames, const Value& appended_rows) const {
  const int64_t n = frames.size(0), patch = config_.patch_size, width = config_.hidden_size;
  if (frames.size(1) != config_.num_channels || frames.size(2) < patch || frames.size(3) < patch)
    throw Error(ErrorKind::data,
                fmt::format("frames [n, {}, {}, {}] do not fit the vision tower: it reads {} channels "
                            "and patches of {} x {}",
                            frames.size(1), frames.size(2), frames.size(3), config_.num_channels, patch, patch));
  const int64_t rows = frames.size(2) / patch, columns = frames.size(3) / patch, tokens = 1 + rows * columns,
                rows_per_frame = tokens + (appended_rows.defined() ? 1 : 0);
  const Value pixels(patches_of(frames, patch, ops.options().dtype, ops.padded(patch_weight_.value().size(1))));
  const Value patches = ops.linear(tape, pixels, ops.padded(tape, patch_weight_), patch_bias_);
  const Value position = positions(tape, rows, columns);

  const at::Tensor x = at::empty({n, rows_per_frame, width}, ops.tensor_options());
  const at::Tensor first = position.data.narrow(0, 0, 1) + class_token_.value().view({1, width});
  x.narrow(1, 0, 1).copy_(first.expand({n, 1, width}));
  at::Tensor rest = x.narrow(1, 1, tokens - 1);
  at::add_out(rest, patches.data.view({n, tokens - 1, width}), position.data.narrow(0, 1, tokens - 1));
  if (appended_rows.defined()) x.select(1, tokens).copy_(appended_rows.data);
  Value y(x.view({n * rows_per_frame, width}), tape.records(patches, position, class_token_, appended_rows));
  if (!y.requires_grad()) return y;
  tape.push([n, tokens, rows_per_frame, width, patches = patches.gradient, position = position.gradient,
             token = class_token_, appended_rows = appended_rows.gradient, out = y.gradient] {
    const at::Tensor gradient = out->take();
    if (!gradient.defined()) return;
    const at::Tensor d = gradient.view({n, rows_per_frame, width});
    if (appended_rows) appended_rows->add(d.select(1, tokens).contiguous());
    const auto wide = gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor over_frames = d.narrow(1, 0, tokens).sum(0, false, wide);
    if (position) position->add(over_frames);
    if (token.requires_grad()) token.add_gradient(over_frames.narrow(0, 0, 1).view_as(token.value()));
    if (patches) patches->add(d.narrow(1, 1, tokens - 1).reshape({n * (tokens - 1), width}));
  });
  return y;
}

Value Dinov2::normed(Tape& tape, Operations& ops, const Value& x, const Norm& norm) const {
  return ops.layernorm(tape, x, norm.weight, norm.bias, config_.layer_norm_eps);
}

// The residual stream of the queries, one row for each frame. The next norm adds the pending branch and compensates the
// rounding of the sum: these rows are few, and they are all that the decoder gets to see.
struct Dinov2::QueryStream {
  Value branch, residual;
  at::Tensor compensation;
};

Value Dinov2::normed(Tape& tape, Operations& ops, QueryStream& stream, const Norm& norm) const {
  auto [y, sum] = ops.layernorm(tape, stream.branch, stream.residual, norm.weight, norm.bias, config_.layer_norm_eps,
                                &stream.compensation);
  stream.residual = std::move(sum);
  return std::move(y);
}

// float16 underflows below 6e-8, which products of scales and weights can reach.
Dinov2::Folded Dinov2::fold(Tape& tape, Operations& ops, const EncodeOptions& options) const {
  Folded folded(layers_.size());
  if (!options.fold_layer_scale || ops.options().dtype == at::kHalf) return folded;
  std::vector<Operations::LayerWithScale> attention, mlp;
  for (const Layer& layer : layers_) {
    attention.push_back({layer.out, layer.attention_scale});
    mlp.push_back({layer.down, layer.mlp_scale});
  }
  auto of_attention = ops.fold_scale(tape, attention), of_mlp = ops.fold_scale(tape, mlp);
  for (size_t i = 0; i < layers_.size(); ++i) folded[i] = {std::move(of_attention[i]), std::move(of_mlp[i])};
  return folded;
}

// The rest of a layer after its attention: both branches, scaled and added.
Value Dinov2::finish_layer(Tape& tape, Operations& ops, const Layer& layer,
                           const VisualCache::FoldedLayer& folded_layer, const Value& x, const Value& attended_rows,
                           Operations::Compensation* compensation) const {
  if (folded_layer.attention.weight.defined()) {
    const Value attended = ops.linear(tape, attended_rows, folded_layer.attention, x, compensation);
    return ops.gelu_mlp(tape, normed(tape, ops, attended, layer.before_mlp), layer.up, folded_layer.mlp, attended,
                        compensation);
  }
  const Value attended =
      ops.layerscale(tape, ops.linear(tape, attended_rows, layer.out.weight, layer.out.bias), layer.attention_scale, x);
  const Value inner = ops.gelu_mlp(tape, normed(tape, ops, attended, layer.before_mlp), layer.up, layer.down);
  return ops.layerscale(tape, inner, layer.mlp_scale, attended);
}

std::vector<VisualCache::Layer> Dinov2::run(Tape& tape, Operations& ops, Value& x, size_t count, const Segments& rows,
                                            const Segments& keys, const Folded& folded,
                                            at::Tensor* appended_compensation) const {
  const int64_t heads = config_.num_attention_heads, width = config_.hidden_size;
  std::vector<VisualCache::Layer> kept;
  for (size_t i = 0; i < count; ++i) {
    const Layer& layer = layers_[i];
    const auto block = [this, &ops, &layer, folded_layer = folded[i], heads, width, rows, keys,
                        compensates = appended_compensation != nullptr](Tape& inner, const std::vector<Value>& in) {
      const Value qkv =
          ops.linear(inner, normed(inner, ops, in[0], layer.before_attention), layer.qkv.weight, layer.qkv.bias);
      // Queries that read these keys and values have a gradient of their own, which is added to what attention writes
      // here.
      const Value kv = ops.slice_columns(inner, qkv, width, 2 * width);
      const Value attended_rows = ops.attention(inner, {qkv, 0, heads}, {qkv, width, heads}, {qkv, 2 * width, heads},
                                                rows, keys, {head_dim_}, {}, kv);
      Operations::Compensation compensation{rows.max_length, in.size() > 1 ? in[1].data : at::Tensor()};
      std::vector<Value> out{
          finish_layer(inner, ops, layer, folded_layer, in[0], attended_rows, compensates ? &compensation : nullptr),
          kv};
      if (compensation.value.defined()) out.emplace_back(compensation.value);
      return out;
    };
    std::vector<Value> in{x};
    if (appended_compensation && appended_compensation->defined()) in.emplace_back(*appended_compensation);
    const auto out = recompute.layer(static_cast<int64_t>(i)) ? ops::checkpointed(tape, in, block) : block(tape, in);
    x = out[0];
    if (out.size() > 2) *appended_compensation = out[2].data;
    kept.push_back({{out[1], 0, heads}, {out[1], width, heads}});
  }
  return kept;
}

VisualCache::Layer Dinov2::keys_values(Tape& tape, Operations& ops, const Layer& layer, const Value& x) const {
  const int64_t heads = config_.num_attention_heads;
  const Value kv =
      ops.linear(tape, normed(tape, ops, x, layer.before_attention), layer.keys_values.weight, layer.keys_values.bias);
  return {{kv, 0, heads}, {kv, config_.hidden_size, heads}};
}

VisualCache Dinov2::encode(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                           const Segments& queries, const EncodeOptions& options) const {
  const Tape::LightCheckpointing lean(tape, recompute.light);
  Folded folded = fold(tape, ops, options);
  Value x = embed(tape, ops, frames);
  const size_t whole = layers_.size() - (options.skip_last_patches ? 1 : 0);
  VisualCache cache{run(tape, ops, x, whole, tokens, tokens, folded), tokens, queries, std::move(folded)};
  if (options.skip_last_patches) cache.layers.push_back(keys_values(tape, ops, layers_.back(), x));
  return cache;
}

Value Dinov2::forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens) const {
  const Tape::LightCheckpointing lean(tape, recompute.light);
  Value x = embed(tape, ops, frames);
  run(tape, ops, x, layers_.size(), tokens, tokens, Folded(layers_.size()));
  return normed(tape, ops, x, final_);
}

LayerwiseEncoder::EncodedAndAttended Dinov2::encode_and_attend(Tape& tape, Operations& ops, const at::Tensor& frames,
                                                               const Value& appended_rows,
                                                               const AppendedQueries& appended,
                                                               const EncodeOptions& options) const {
  const Tape::LightCheckpointing lean(tape, recompute.light);
  Folded folded = fold(tape, ops, options);
  Value x = embed(tape, ops, frames, appended_rows);
  const size_t last = layers_.size() - 1, whole = options.skip_last_patches ? last : last + 1;
  at::Tensor compensation;
  VisualCache cache{run(tape, ops, x, whole, appended.rows, appended.keys, folded, &compensation), appended.keys,
                    appended.queries, std::move(folded)};
  QueryStream stream{
      ops::strided_rows(tape, x, appended.rows.max_length, appended.rows.max_length - 1), {}, compensation};
  if (options.skip_last_patches) {
    cache.layers.push_back(keys_values(tape, ops, layers_[last], x));
    attend_layer(tape, ops, last, stream, cache, nullptr);
  }
  return {std::move(cache), normed(tape, ops, stream, final_)};
}

void Dinov2::attend_layer(Tape& tape, Operations& ops, size_t index, QueryStream& stream, const VisualCache& cache,
                          AttentionMaps* maps) const {
  const int64_t heads = config_.num_attention_heads;
  const Layer& layer = layers_[index];
  const auto& [keys, values] = cache.layers[index];
  const Value q =
      ops.linear(tape, normed(tape, ops, stream, layer.before_attention), layer.query.weight, layer.query.bias);
  if (maps) maps->add(q.data, keys, cache.tokens.max_length, head_dim_);
  const Value attended_rows =
      ops.attention(tape, {q, 0, heads}, keys, values, cache.queries, cache.tokens, {head_dim_});
  const auto& folded_layer = cache.folded[index];
  if (folded_layer.attention.weight.defined()) {
    stream.branch = ops.linear(tape, attended_rows, folded_layer.attention.weight, folded_layer.attention.bias);
    stream.branch = ops.gelu_mlp(tape, normed(tape, ops, stream, layer.before_mlp), layer.up, folded_layer.mlp);
  } else {
    stream = {finish_layer(tape, ops, layer, folded_layer, stream.residual, attended_rows), {}, {}};
  }
}

Value Dinov2::attend(Tape& tape, Operations& ops, const Value& query, const VisualCache& cache, bool shallow,
                     AttentionMaps* maps) const {
  QueryStream stream{query, {}, {}};
  for (size_t i = shallow ? layers_.size() - 1 : 0; i < layers_.size(); ++i)
    attend_layer(tape, ops, i, stream, cache, maps);
  return normed(tape, ops, stream, final_);
}

// Of one row: query and output of attention, and both products of the MLP.
static ForwardFlops layer_flops(const VisionConfig& config) {
  const int64_t width = config.hidden_size;
  return {2 * product_flops(width, width) + 2 * product_flops(width, config.intermediate_size), 0};
}

// A frame as tokens, whose pixels have no gradient, through `layers` whole layers; keys and values are computed in all.
static double frame_flops(const VisionConfig& config, int64_t tokens, int64_t layers, bool trains) {
  const int64_t width = config.hidden_size, pixels = config.num_channels * config.patch_size * config.patch_size;
  const auto rows = static_cast<double>(tokens), whole = static_cast<double>(layers),
             all = static_cast<double>(config.num_hidden_layers);
  const ForwardFlops embed{product_flops(pixels, width) * (rows - 1), 0};
  const ForwardFlops keys_values{2 * product_flops(width, width) * rows * all, 0};
  const ForwardFlops attention{0, attention_pair_flops(width) * rows * rows * whole};
  return with_backward(embed, trains, false) +
         with_backward(layer_flops(config) * (rows * whole) + keys_values + attention, trains, trains);
}

double Dinov2::flops(int64_t tokens, bool trains) const {
  return frame_flops(config_, tokens, config_.num_hidden_layers, trains);
}

double Dinov2::encode_flops(int64_t tokens, bool trains) const {
  return frame_flops(config_, tokens, config_.num_hidden_layers - 1, trains);
}

double Dinov2::attend_flops(int64_t tokens, bool shallow, bool trains, bool inputs) const {
  const auto layers = static_cast<double>(shallow ? 1 : config_.num_hidden_layers), keys = static_cast<double>(tokens);
  const ForwardFlops attention{0, attention_pair_flops(config_.hidden_size) * keys};
  return with_backward((layer_flops(config_) + attention) * layers, trains, inputs, trains);
}

std::unique_ptr<Encoder> dinov2_encoder(const VisionConfig& config, Parameters& parameters) {
  return std::make_unique<Dinov2>(config, parameters);
}

} // namespace fvlm::model
