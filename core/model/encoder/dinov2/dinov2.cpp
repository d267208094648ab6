// DINOv2: a pre-norm ViT with LayerScale.
#include "model/encoder/attention_maps.h"
#include "model/encoder/encoder.h"
#include "model/encoder/vit_layer.h"
#include "ops/rows.h"

#include <fmt/format.h>

#include <vector>

namespace fvlm::model {
namespace {

constexpr VitEmbedding::Names embedding_names{"cls_token", "position_embeddings", "patch_embeddings.projection", true};
constexpr VitLayer::Names layer_names{"norm1",
                                      "attention.attention.query",
                                      "attention.attention.key",
                                      "attention.attention.value",
                                      "attention.output.dense",
                                      "norm2",
                                      "mlp.fc1",
                                      "mlp.fc2",
                                      "layer_scale1.lambda1",
                                      "layer_scale2.lambda1",
                                      nullptr,
                                      nullptr};

class Dinov2 : public Encoder, public LayerwiseEncoder {
 public:
  Dinov2(const VisionConfig& config, Parameters& parameters);

  int64_t width() const override { return config_.hidden_size; }
  int64_t layers() const override { return config_.num_hidden_layers; }
  int64_t heads() const override { return config_.num_attention_heads; }
  const LayerwiseEncoder* layerwise() const override { return this; }
  int64_t tokens_per_frame(int64_t height, int64_t image_width) const override {
    return embedding_.tokens(height, image_width);
  }
  // As transformers' last_hidden_state.
  Value forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                const PackMaps& maps) const override;
  VisualCache encode(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                     const Segments& queries, const EncodeOptions& options) const override;
  Value attend(Tape& tape, Operations& ops, const Value& x, const VisualCache& cache, bool shallow,
               AttentionMaps* maps) const override;
  EncodedAndAttended encode_and_attend(Tape& tape, Operations& ops, const at::Tensor& frames, const Value& x,
                                       const AppendedQueries& appended, const EncodeOptions& options) const override;
  bool trains() const override { return embedding_.requires_grad(); }
  double flops(int64_t tokens, bool trains) const override;
  double encode_flops(int64_t tokens, bool trains) const override;
  double attend_flops(int64_t tokens, bool shallow, bool trains, bool inputs) const override;

 private:
  using Folded = std::vector<VisualCache::FoldedLayer>;
  Folded fold(Tape& tape, Operations& ops, const EncodeOptions& options) const;
  // Runs layers [0, count) on all rows and returns their keys and values. `appended_compensation`: rounding error of
  // the appended rows, or null if there are none.
  std::vector<VisualCache::Layer> run(Tape& tape, Operations& ops, Value& x, size_t count, const Segments& rows,
                                      const Segments& keys, const Folded& folded,
                                      at::Tensor* appended_compensation = nullptr) const;
  VisualCache::Layer keys_values(Tape& tape, Operations& ops, const VitLayer& layer, const Value& x) const;
  // One layer for the queries alone, one row for each frame.
  struct QueryStream;
  void attend_layer(Tape& tape, Operations& ops, size_t layer, QueryStream& stream, const VisualCache& cache,
                    AttentionMaps* maps) const;
  Value normed(Tape& tape, Operations& ops, QueryStream& stream, const VitNorm& norm) const;

  VisionConfig config_;
  int64_t head_dim_;
  VitEmbedding embedding_;
  std::vector<VitLayer> layers_;
  VitNorm final_;
};

Dinov2::Dinov2(const VisionConfig& config, Parameters& parameters)
    : config_(config), head_dim_(config.head_dim()), embedding_(config, embedding_names, parameters) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    layers_.emplace_back(config, fmt::format("vision.encoder.layer.{}.", i), layer_names, parameters);
  final_ = {parameters.weight("vision.layernorm.weight"), parameters.weight("vision.layernorm.bias"),
            config.layer_norm_eps};
}

// The residual stream of the queries, one row for each frame. The next norm adds the pending branch and compensates the
// rounding of the sum: these rows are few, and they are all that the decoder gets to see.
struct Dinov2::QueryStream {
  Value branch, residual;
  at::Tensor compensation;
};

Value Dinov2::normed(Tape& tape, Operations& ops, QueryStream& stream, const VitNorm& norm) const {
  auto [y, sum] =
      ops.layernorm(tape, stream.branch, stream.residual, norm.weight, norm.bias, norm.epsilon, &stream.compensation);
  stream.residual = std::move(sum);
  return std::move(y);
}

// float16 underflows below 6e-8, which products of scales and weights can reach. The scales of quantized weights are
// their own, and a weight of bfloat16 among float32 would be expanded.
Dinov2::Folded Dinov2::fold(Tape& tape, Operations& ops, const EncodeOptions& options) const {
  Folded folded(layers_.size());
  if (!options.fold_layer_scale || ops.options().dtype == at::kHalf) return folded;
  std::vector<Operations::LayerWithScale> attention, mlp;
  for (const VitLayer& layer : layers_) {
    for (const ops::Weight* each : {&layer.out.weight, &layer.down.weight})
      if (!each->is_plain() || each->value().scalar_type() != ops.options().dtype) return folded;
    if (ops.observes_linears()) return folded;
    attention.push_back({layer.out, layer.attention_scale});
    mlp.push_back({layer.down, layer.mlp_scale});
  }
  auto of_attention = ops.fold_scale(tape, attention), of_mlp = ops.fold_scale(tape, mlp);
  for (size_t i = 0; i < layers_.size(); ++i) folded[i] = {std::move(of_attention[i]), std::move(of_mlp[i])};
  return folded;
}

std::vector<VisualCache::Layer> Dinov2::run(Tape& tape, Operations& ops, Value& x, size_t count, const Segments& rows,
                                            const Segments& keys, const Folded& folded,
                                            at::Tensor* appended_compensation) const {
  const int64_t heads = config_.num_attention_heads, width = config_.hidden_size;
  std::vector<VisualCache::Layer> kept;
  for (size_t i = 0; i < count; ++i) {
    const VitLayer& layer = layers_[i];
    const auto block = [this, &ops, &layer, folded_layer = folded[i], heads, width, rows, keys,
                        compensates = appended_compensation != nullptr](Tape& inner, const std::vector<Value>& in) {
      const Value qkv = layer.queries_keys_values(inner, ops, in[0]);
      // Queries that read these keys and values have a gradient of their own, which is added to what attention writes
      // here.
      const Value kv = ops.slice_columns(inner, qkv, width, 2 * width);
      const Value attended_rows = ops.attention(inner, {qkv, 0, heads}, {qkv, width, heads}, {qkv, 2 * width, heads},
                                                rows, keys, {head_dim_}, {}, kv);
      Operations::Compensation compensation{rows.max_length, in.size() > 1 ? in[1].data : at::Tensor()};
      std::vector<Value> out{
          layer.finish(inner, ops, in[0], attended_rows, folded_layer, compensates ? &compensation : nullptr), kv};
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

VisualCache::Layer Dinov2::keys_values(Tape& tape, Operations& ops, const VitLayer& layer, const Value& x) const {
  const int64_t heads = config_.num_attention_heads;
  const Value kv =
      ops.linear(tape, layer.before_attention(tape, ops, x), layer.keys_values.weight, layer.keys_values.bias);
  return {{kv, 0, heads}, {kv, config_.hidden_size, heads}};
}

VisualCache Dinov2::encode(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                           const Segments& queries, const EncodeOptions& options) const {
  const Tape::LightCheckpointing lean(tape, recompute.light);
  Folded folded = fold(tape, ops, options);
  Value x = embedding_(tape, ops, frames);
  const size_t whole = layers_.size() - (options.skip_last_patches ? 1 : 0);
  VisualCache cache{run(tape, ops, x, whole, tokens, tokens, folded), tokens, queries, std::move(folded)};
  if (options.skip_last_patches) cache.layers.push_back(keys_values(tape, ops, layers_.back(), x));
  return cache;
}

Value Dinov2::forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& tokens,
                      const PackMaps&) const {
  const Tape::LightCheckpointing lean(tape, recompute.light);
  Value x = embedding_(tape, ops, frames);
  run(tape, ops, x, layers_.size(), tokens, tokens, Folded(layers_.size()));
  return final_(tape, ops, x);
}

LayerwiseEncoder::EncodedAndAttended Dinov2::encode_and_attend(Tape& tape, Operations& ops, const at::Tensor& frames,
                                                               const Value& appended_rows,
                                                               const AppendedQueries& appended,
                                                               const EncodeOptions& options) const {
  const Tape::LightCheckpointing lean(tape, recompute.light);
  Folded folded = fold(tape, ops, options);
  Value x = embedding_(tape, ops, frames, appended_rows);
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
  const VitLayer& layer = layers_[index];
  const auto& [keys, values] = cache.layers[index];
  const Value q =
      ops.linear(tape, normed(tape, ops, stream, layer.before_attention), layer.query.weight, layer.query.bias);
  if (maps) maps->add(q.data, keys, cache.tokens.max_length, head_dim_, 1, cache.shared);
  const Value attended_rows =
      ops.attention(tape, {q, 0, heads}, keys, values, cache.queries, cache.tokens, {head_dim_});
  const auto& folded_layer = cache.folded[index];
  if (folded_layer.attention.weight.defined()) {
    stream.branch = ops.linear(tape, attended_rows, folded_layer.attention.weight, folded_layer.attention.bias);
    stream.branch = ops.gelu_mlp(tape, normed(tape, ops, stream, layer.before_mlp), layer.up, folded_layer.mlp);
  } else {
    stream = {layer.finish(tape, ops, stream.residual, attended_rows), {}, {}};
  }
}

Value Dinov2::attend(Tape& tape, Operations& ops, const Value& query, const VisualCache& cache, bool shallow,
                     AttentionMaps* maps) const {
  QueryStream stream{query, {}, {}};
  for (size_t i = shallow ? layers_.size() - 1 : 0; i < layers_.size(); ++i)
    attend_layer(tape, ops, i, stream, cache, maps);
  return normed(tape, ops, stream, final_);
}

double Dinov2::flops(int64_t tokens, bool trains) const {
  const int64_t layers = config_.num_hidden_layers;
  return vit_frame_flops(config_, tokens, tokens - 1 - config_.num_register_tokens, layers, layers, trains);
}

double Dinov2::encode_flops(int64_t tokens, bool trains) const {
  const int64_t layers = config_.num_hidden_layers;
  return vit_frame_flops(config_, tokens, tokens - 1 - config_.num_register_tokens, layers - 1, layers, trains);
}

double Dinov2::attend_flops(int64_t tokens, bool shallow, bool trains, bool inputs) const {
  const auto layers = static_cast<double>(shallow ? 1 : config_.num_hidden_layers), keys = static_cast<double>(tokens);
  const ForwardFlops attention{0, attention_pair_flops(config_.hidden_size) * keys};
  return with_backward((vit_layer_flops(config_) + attention) * layers, trains, inputs, trains);
}

} // namespace

std::unique_ptr<Encoder> dinov2_encoder(const VisionConfig& config, Parameters& parameters) {
  return std::make_unique<Dinov2>(config, parameters);
}

} // namespace fvlm::model
