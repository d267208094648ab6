// A perceiver resampler and a projector, as GhostVis has them: a decoder row for every query of a frame.
#include "base/error.h"
#include "model/connector/framewise.h"
#include "model/connector/perceiver/settings.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

namespace fvlm::model {
namespace {

constexpr double epsilon = 1e-5;

class PerceiverConnector : public FramewiseConnector {
 public:
  PerceiverConnector(const connector::Perceiver& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), settings_(settings), queries_(parameters.weight("vision_resampler.queries")),
        projector_(parameters, "vision_projector.mlp") {
    const int64_t width = parts.encoder.width();
    if (width % settings.heads != 0)
      throw Error(ErrorKind::data, "the encoder's width of {} is not divisible by the perceiver's {} heads", width,
                  settings.heads)
          .advise("choose another number of heads for fvlm.perceiver");
    for (int64_t i = 0; i < settings.layers; ++i) {
      const auto linear = [&](const char* weight, const char* bias) -> Operations::Layer {
        const std::string stem = fmt::format("vision_resampler.layers.{}.", i);
        return {parameters.weight(stem + weight), parameters.weight(stem + bias)};
      };
      const Operations::Layer fused = linear("cross_attn.in_proj_weight", "cross_attn.in_proj_bias");
      layers_.push_back({linear("norm1.weight", "norm1.bias"),
                         linear("norm2.weight", "norm2.bias"),
                         {fused.weight.rows(0, width), fused.bias.rows(0, width)},
                         {fused.weight.rows(width, 2 * width), fused.bias.rows(width, 2 * width)},
                         linear("cross_attn.out_proj.weight", "cross_attn.out_proj.bias"),
                         linear("mlp.0.weight", "mlp.0.bias"),
                         linear("mlp.2.weight", "mlp.2.bias")});
    }
  }

  bool has_attention() const override { return true; }

 private:
  struct Layer {
    Operations::Layer before_attention, before_mlp, query, keys_values, out, up, down;
  };

  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps* maps) const override {
    const int64_t heads = settings_.heads, width = parts_.encoder.width(), head_dim = width / heads;
    const Segments of_queries = query_segments(input);
    Value x = repeat_rows(tape, queries_, input.frames);
    for (const Layer& layer : layers_) {
      const Value normed = ops.layernorm(tape, x, layer.before_attention.weight, layer.before_attention.bias, epsilon);
      const Value q = ops.linear(tape, normed, layer.query, {});
      const Value kv = ops.linear(tape, input.hidden, layer.keys_values, {});
      if (maps) maps->add(q.data, {kv, 0, heads}, input.tokens.max_length, head_dim, settings_.queries);
      const Value read =
          ops.attention(tape, {q, 0, heads}, {kv, 0, heads}, {kv, width, heads}, of_queries, input.tokens, {head_dim});
      x = ops.linear(tape, read, layer.out, x);
      x = ops.gelu_mlp(tape, ops.layernorm(tape, x, layer.before_mlp.weight, layer.before_mlp.bias, epsilon), layer.up,
                       layer.down, x);
    }
    return projector_(tape, ops, x);
  }

  // A segment of queries for every segment of tokens. Slots without a frame have tokens of no segment, and their
  // queries belong to frames whose rows nobody reads.
  Segments query_segments(const Input& input) const {
    const at::TensorOptions ints = input.tokens.cu_seqlens.options();
    return {at::arange(input.frames + 1, ints) * settings_.queries, {}, settings_.queries, true};
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    const int64_t width = parts_.encoder.width(), inner = 4 * width, projected = settings_.projector_width;
    const auto rows = static_cast<double>(settings_.queries), keys = static_cast<double>(tokens),
               layers = static_cast<double>(settings_.layers);
    const ForwardFlops query{2 * product_flops(width, width) + 2 * product_flops(width, inner),
                             attention_pair_flops(width) * keys};
    const ForwardFlops keys_values{2 * product_flops(width, width), 0};
    const ForwardFlops projector{product_flops(width, projected) + product_flops(projected, parts_.decoder.width()), 0};
    return (query * rows + keys_values * keys) * layers + projector * rows;
  }

  connector::Perceiver settings_;
  ops::Weight queries_;
  std::vector<Layer> layers_;
  Projector projector_;
};

} // namespace

std::unique_ptr<Connector> perceiver_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                               Parameters& parameters) {
  return std::make_unique<PerceiverConnector>(static_cast<const connector::Perceiver&>(settings), parts, parameters);
}

} // namespace fvlm::model
