// Learned latents attend to the bytes of a text, and an adapter takes them to the decoder.
#include "base/error.h"
#include "model/connector/byte_latents/calibration.h"
#include "model/connector/byte_latents/settings.h"
#include "model/connector/byte_latents/wire.h"
#include "model/connector/framewise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <optional>

namespace fvlm::model {
namespace {

constexpr double epsilon = 1e-5;

struct WeightsOf {
  Parameters& parameters;
  std::string stem;

  Operations::Layer pair(const char* weight, const char* bias) const {
    return {parameters.weight(stem + weight), parameters.weight(stem + bias)};
  }
  Operations::Layer operator()(const std::string& name) const {
    return pair((name + ".weight").c_str(), (name + ".bias").c_str());
  }
};

Value normed(Tape& tape, Operations& ops, const Value& x, const Operations::Layer& norm) {
  return ops.layernorm(tape, x, norm.weight, norm.bias, epsilon);
}

class Pooler {
 public:
  Pooler(const WeightsOf& weights, int64_t latents, int64_t heads, int64_t width)
      : latents_(latents), heads_(heads), latent_(weights.parameters.weight(weights.stem + "latent")),
        gate_norm_(weights("gate.0")), gate_(weights("gate.1")), mlp_norm_(weights("ff.0")), up_(weights("ff.1")),
        down_(weights("ff.3")) {
    const Operations::Layer fused = weights.pair("cross_attn.in_proj_weight", "cross_attn.in_proj_bias");
    query_ = {fused.weight.rows(0, width), fused.bias.rows(0, width)};
    keys_values_ = {fused.weight.rows(width, 2 * width), fused.bias.rows(width, 2 * width)};
    out_ = weights("cross_attn.out_proj");
  }

  // [frames * latents, width]
  Value operator()(Tape& tape, Operations& ops, const Value& features, const Segments& texts, int64_t frames) const {
    const int64_t width = features.data.size(1);
    // Slots without a text have no bytes, and nobody reads what their queries make of that.
    const Segments of_queries{at::arange(frames + 1, texts.cu_seqlens.options()) * latents_, {}, latents_, true};
    const Value latent = repeat_rows(tape, latent_, frames);
    const Value q = ops.linear(tape, latent, query_, {}), kv = ops.linear(tape, features, keys_values_, {});
    const Value read =
        ops.attention(tape, {q, 0, heads_}, {kv, 0, heads_}, {kv, width, heads_}, of_queries, texts, {width / heads_});
    const Value attended = ops.linear(tape, read, out_, latent);
    const Value gate = ops.linear(tape, normed(tape, ops, attended, gate_norm_), gate_, {});
    const Value mixed = gated(tape, attended, latent, gate);
    return ops.gelu_mlp(tape, normed(tape, ops, mixed, mlp_norm_), up_, down_, mixed);
  }

  ForwardFlops flops(int64_t tokens, int64_t width) const {
    const auto rows = static_cast<double>(latents_), keys = static_cast<double>(tokens);
    const ForwardFlops row{3 * product_flops(width, width) + 2 * product_flops(width, 2 * width),
                           attention_pair_flops(width) * keys};
    return row * rows + ForwardFlops{2 * product_flops(width, width), 0} * keys;
  }

 private:
  int64_t latents_, heads_;
  ops::Weight latent_;
  Operations::Layer query_, keys_values_, out_, gate_norm_, gate_, mlp_norm_, up_, down_;
};

class Adapter {
 public:
  Adapter(const WeightsOf& weights, bool color)
      : input_norm_(weights("input_norm")), in_(weights("proj_in")), mid_(weights("mid")), out_(weights("proj_out")),
        skip_(weights("skip")), film_scale_(weights("film_scale")), film_shift_(weights("film_shift")),
        output_norm_(weights("out_norm")) {
    if (color) color_ = weights.pair("color.gamma", "color.beta");
  }

  Value operator()(Tape& tape, Operations& ops, const Value& z) const {
    const Value x = normed(tape, ops, z, input_norm_);
    const Value first = ops.gelu(tape, ops.linear(tape, x, in_, {}), ops::Gelu::exact);
    Value y = ops.gelu_mlp(tape, first, mid_, out_, ops.linear(tape, x, skip_, {}));
    y = modulated(tape, y, ops.linear(tape, z, film_scale_, {}), ops.linear(tape, z, film_shift_, {}));
    y = normed(tape, ops, y, output_norm_);
    return color_.weight.defined() ? colored(tape, y, color_.weight, color_.bias) : y;
  }

  const Operations::Layer& color() const { return color_; }

  static ForwardFlops flops(int64_t width, int64_t decoder_width) {
    const int64_t inner = 2 * width;
    return {product_flops(width, inner) + product_flops(inner, inner) + product_flops(inner, decoder_width) +
                3 * product_flops(width, decoder_width),
            0};
  }

 private:
  Operations::Layer input_norm_, in_, mid_, out_, skip_, film_scale_, film_shift_, output_norm_, color_;
};

// What a decoder has of its own.
struct Reader {
  std::optional<Pooler> pooler;
  Adapter adapter;
  EmbeddingRms rms;
};

class ByteLatentsConnector : public FramewiseConnector {
 public:
  ByteLatentsConnector(const connector::ByteLatents& settings, const Parts& parts, Parameters& parameters)
      : FramewiseConnector(parts), settings_(settings) {
    const int64_t width = parts.encoder.width();
    if (width % settings.heads != 0)
      throw Error(ErrorKind::data, "the encoder's width of {} is not divisible by the {} heads of fvlm.byte_latents",
                  width, settings.heads)
          .advise("choose another number of heads for fvlm.byte_latents");
    shared_.emplace(WeightsOf{parameters, "shared_pooler."}, settings.latents, settings.heads, width);
    for (size_t i = 0; i <= parts.further.size(); ++i) {
      const std::string name = plan::decoder_name(i) + ".";
      std::optional<Pooler> own;
      if (settings.private_latents > 0)
        own.emplace(WeightsOf{parameters, "private_poolers." + name}, settings.private_latents, settings.heads, width);
      readers_.push_back(
          {std::move(own), {{parameters, "adapter." + name}, settings.color}, EmbeddingRms(parts.decoder_at(i))});
    }
  }

  std::map<std::string, at::Tensor> initial_values() const override {
    std::map<std::string, at::Tensor> values;
    for (size_t i = 0; settings_.color && i < readers_.size(); ++i) {
      const Decoder& decoder = parts_.decoder_at(i);
      const at::Tensor table = decoder.embedding().value().to(at::kFloat) * decoder.token_scale();
      const std::string color = "adapter." + plan::decoder_name(i) + ".color.";
      values[color + "gamma"] = table.std(0);
      values[color + "beta"] = table.mean(0);
    }
    return values;
  }

  std::vector<Value> encode_for_all(Tape& tape, Operations& ops, const Pack& pack,
                                    const EncodeRequest& request) const override {
    const Input input = read(tape, ops, pack, request);
    const Value shared = pooled(tape, ops, *shared_, input);
    std::vector<Value> all;
    for (const Reader& reader : readers_) all.push_back(latents(tape, ops, input, shared, reader));
    request.end_phase("connector", nullptr);
    return all;
  }

  Value adapt(Tape& tape, Operations& ops, const Value& latents, int64_t frames, size_t decoder) const override {
    const Reader& reader = readers_[decoder];
    return calibrated(tape, reader.adapter(tape, ops, latents), frames, reader.rms.value());
  }

  double further_flops(const FlopsRequest& request, size_t decoder) const override {
    const auto& [tokens, work, trained, mode] = request;
    return with_backward(reader_flops(tokens, decoder) * work.frames, trained.connector, trained.vision);
  }

 private:
  static Value pooled(Tape& tape, Operations& ops, const Pooler& pooler, const Input& input) {
    return pooler(tape, ops, input.hidden, input.tokens, input.frames);
  }

  // The shared ones, then the decoder's own.
  static Value latents(Tape& tape, Operations& ops, const Input& input, const Value& shared, const Reader& reader) {
    Value z = reader.pooler ? join_rows(tape, shared, pooled(tape, ops, *reader.pooler, input), input.frames) : shared;
    if (connector::wire_bits(input.mode) == 0) return z;
    return Value(over_wire(z.data, input.frames, input.mode)); // inference alone
  }

  Value connect(Tape& tape, Operations& ops, const Input& input, AttentionMaps*) const override {
    const Value shared = pooled(tape, ops, *shared_, input);
    const Value z = latents(tape, ops, input, shared, readers_[input.decoder]);
    return adapt(tape, ops, z, input.frames, input.decoder);
  }

  ForwardFlops connect_flops(int64_t tokens) const override {
    return reader_flops(tokens, 0) + shared_->flops(tokens, parts_.encoder.width());
  }

  ForwardFlops reader_flops(int64_t tokens, size_t decoder) const {
    const int64_t width = parts_.encoder.width();
    const auto rows = static_cast<double>(settings_.latents + settings_.private_latents);
    const ForwardFlops adapter = Adapter::flops(width, parts_.decoder_at(decoder).width()) * rows;
    const auto& own = readers_[decoder].pooler;
    return own ? adapter + own->flops(tokens, width) : adapter;
  }

  connector::ByteLatents settings_;
  std::optional<Pooler> shared_;
  std::vector<Reader> readers_; // by decoder
};

} // namespace

std::unique_ptr<Connector> byte_latents_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                                  Parameters& parameters) {
  return std::make_unique<ByteLatentsConnector>(static_cast<const connector::ByteLatents&>(settings), parts,
                                                parameters);
}

} // namespace fvlm::model
