#include "model/connector/byte_latents/settings.h"

#include "base/config_reader.h"
#include "model/connector/settings.h"
#include "model/weights/layout.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace fvlm::connector {

using namespace recipe;

Settings byte_latents_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      record<ByteLatents>("ByteLatents", "byte_latents",
                          "Learned latents attend to the bytes of a text, and an adapter takes them to the decoder, as "
                          "loud as its own embeddings: LatentWire. The encoder is fvlm.bytes.")
          .usage("fvlm.byte_latents { latents = 8 }")
          .field("latents", &ByteLatents::latents, integer(at_least(1)),
                 "Decoder rows of a text, which all decoders share.")
          .field("private_latents", &ByteLatents::private_latents, integer(at_least(0)),
                 "Further rows, of a pooler that each decoder has of its own.")
          .field("heads", &ByteLatents::heads, integer(at_least(1)),
                 "Heads of the poolers; the encoder's width is divided among them.")
          .field("color", &ByteLatents::color, boolean(),
                 "Standardize each row, and give its columns the mean and deviation of the decoder's embeddings, which "
                 "are learned from there.")
          .done());
}

std::vector<plan::ConnectorMode> ByteLatents::modes() const {
  const auto sent = [](const char* name) {
    return plan::ConnectorMode{name, fmt::format("the latents are sent to the decoder as {}", name), "", false};
  };
  return {{"latents", "one pass", "one pass of the latents over every text"},
          sent("fp16"),
          sent("int8"),
          sent("int6"),
          sent("int4")};
}

int64_t wire_bits(std::string_view mode) {
  return mode == "fp16" ? 16 : mode == "int8" ? 8 : mode == "int6" ? 6 : mode == "int4" ? 4 : 0;
}

std::optional<int64_t> ByteLatents::wire_bytes(const Wire& wire) const {
  const int64_t values = (latents + wire.decoders * private_latents) * wire.encoder_width, bits = wire_bits(wire.mode),
                scales = bits == 16 ? 0 : (values + wire_group - 1) / wire_group;
  if (bits == 0) return {};
  return (values * bits + 7) / 8 + 2 * scales;
}

nlohmann::json ByteLatents::config_json() const {
  return {{"latents", latents}, {"private_latents", private_latents}, {"heads", heads}, {"color", color}};
}

void ByteLatents::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "latents", "private_latents", "heads", "color"});
  latents = reader.whole("latents", std::nullopt, 1, 1 << 16);
  private_latents = reader.whole("private_latents", 0, 0, 1 << 16);
  heads = reader.whole("heads", 8, 1, 1 << 10);
  color = reader.flag("color", false);
}

namespace {

Initializer uniform(double bound) {
  return {Initializer::Kind::uniform, bound};
}

Initializer by_inputs(int64_t inputs) {
  return uniform(1 / std::sqrt(static_cast<double>(inputs)));
}

struct Builder {
  WeightLayout& layout;
  std::string stem;

  void add(const std::string& name, std::vector<int64_t> shape, const Initializer& fill) {
    layout.tensors.push_back({stem + name, std::move(shape), fill});
  }
  void norm(const std::string& name, int64_t width) {
    add(name + ".weight", {width}, {Initializer::Kind::constant, 1});
    add(name + ".bias", {width}, {});
  }
  // PyTorch's nn.Linear.
  void linear(const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", {out, in}, by_inputs(in));
    add(name + ".bias", {out}, by_inputs(in));
  }
  void xavier(const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", {out, in}, uniform(std::sqrt(6 / static_cast<double>(in + out))));
    add(name + ".bias", {out}, {});
  }
};

void append_pooler(Builder to, int64_t latents, int64_t width) {
  to.add("latent", {latents, width}, {Initializer::Kind::normal, 1 / std::sqrt(static_cast<double>(width))});
  to.add("cross_attn.in_proj_weight", {3 * width, width}, uniform(std::sqrt(1.5 / static_cast<double>(width))));
  to.add("cross_attn.in_proj_bias", {3 * width}, {});
  to.add("cross_attn.out_proj.weight", {width, width}, by_inputs(width));
  to.add("cross_attn.out_proj.bias", {width}, {});
  to.norm("gate.0", width);
  to.linear("gate.1", width, width);
  to.norm("ff.0", width);
  to.linear("ff.1", 2 * width, width);
  to.linear("ff.3", width, 2 * width);
}

void append_adapter(Builder to, int64_t width, int64_t decoder_width, bool color) {
  const int64_t inner = 2 * width;
  to.norm("input_norm", width);
  to.xavier("proj_in", inner, width);
  to.xavier("mid", inner, inner);
  to.xavier("proj_out", decoder_width, inner);
  to.xavier("skip", decoder_width, width);
  to.xavier("film_scale", decoder_width, width);
  to.xavier("film_shift", decoder_width, width);
  to.norm("out_norm", decoder_width);
  // A factor that is never trained: the calibration of the rows cancels it.
  to.add("scale", {1}, {Initializer::Kind::constant, 1});
  to.layout.tensors.back().parameter = false;
  if (!color) return;
  to.add("color.gamma", {decoder_width}, {Initializer::Kind::constant, 1});
  to.add("color.beta", {decoder_width}, {});
}

} // namespace

// Names and initial values of the public LatentWire.
WeightLayout ByteLatents::layout(int64_t encoder_width, int64_t decoder_width) const {
  WeightLayout out;
  append_pooler({out, "shared_pooler."}, latents, encoder_width);
  append_decoder(out, plan::decoder_name(0), encoder_width, decoder_width);
  return out;
}

void ByteLatents::append_decoder(WeightLayout& out, const std::string& decoder, int64_t encoder_width,
                                 int64_t decoder_width) const {
  if (private_latents > 0) append_pooler({out, "private_poolers." + decoder + "."}, private_latents, encoder_width);
  append_adapter({out, "adapter." + decoder + "."}, encoder_width, decoder_width, color);
}

} // namespace fvlm::connector
