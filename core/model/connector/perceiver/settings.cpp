#include "model/connector/perceiver/settings.h"

#include "base/config_reader.h"
#include "model/connector/projector_layout.h"
#include "model/connector/settings.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

namespace fvlm::connector {

using namespace recipe;

Settings perceiver_settings() {
  return recipe::alternative<plan::ConnectorSettings>(
      record<Perceiver>("Perceiver", "perceiver",
                        "Learned queries attend to the tokens of a frame, and a projector takes them to the decoder.")
          .usage("fvlm.perceiver { queries = 64 }")
          .field("queries", &Perceiver::queries, integer(at_least(1)), "Decoder rows of a frame.")
          .field("layers", &Perceiver::layers, integer(at_least(1)), "Layers of cross-attention and MLP.")
          .field("heads", &Perceiver::heads, integer(at_least(1)), "Heads; the encoder's width is divided among them.")
          .field("projector_width", &Perceiver::projector_width, integer(at_least(1)),
                 "Features between the two linears of the projector.")
          .done());
}

std::vector<plan::ConnectorMode> Perceiver::modes() const {
  return {{"resampled", "one pass", "one pass of the queries over every image"}};
}

nlohmann::json Perceiver::config_json() const {
  return {{"queries", queries}, {"layers", layers}, {"heads", heads}, {"projector_width", projector_width}};
}

void Perceiver::read_config(ConfigReader& reader) {
  reader.refuse_unknown(std::array{"kind", "queries", "layers", "heads", "projector_width"});
  queries = reader.whole("queries", std::nullopt, 1, 1 << 16);
  layers = reader.whole("layers", std::nullopt, 1, 1 << 10);
  heads = reader.whole("heads", std::nullopt, 1, 1 << 10);
  projector_width = reader.whole("projector_width", std::nullopt, 1, 1 << 20);
}

// Names and initial values of the public GhostVis.
WeightLayout Perceiver::layout(int64_t encoder_width, int64_t decoder_width) const {
  const int64_t width = encoder_width, inner = 4 * width;
  const Initializer zero, one{Initializer::Kind::constant, 1};
  const auto uniform = [](double bound) { return Initializer{Initializer::Kind::uniform, bound}; };
  const auto by_inputs = [&](int64_t inputs) { return uniform(1 / std::sqrt(static_cast<double>(inputs))); };
  WeightLayout out;
  out.tensors.push_back({"vision_resampler.queries", {1, queries, width}, {Initializer::Kind::normal, 0.02}});
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto add = [&](const char* name, std::vector<int64_t> shape, const Initializer& fill) {
      out.tensors.push_back({fmt::format("vision_resampler.layers.{}.{}", layer, name), std::move(shape), fill});
    };
    for (const char* norm : {"norm1", "norm2"}) {
      add(fmt::format("{}.weight", norm).c_str(), {width}, one);
      add(fmt::format("{}.bias", norm).c_str(), {width}, zero);
    }
    add("cross_attn.in_proj_weight", {3 * width, width}, uniform(std::sqrt(1.5 / static_cast<double>(width))));
    add("cross_attn.in_proj_bias", {3 * width}, zero);
    add("cross_attn.out_proj.weight", {width, width}, by_inputs(width));
    add("cross_attn.out_proj.bias", {width}, zero);
    add("mlp.0.weight", {inner, width}, by_inputs(width));
    add("mlp.0.bias", {inner}, by_inputs(width));
    add("mlp.2.weight", {width, inner}, by_inputs(inner));
    add("mlp.2.bias", {width}, by_inputs(inner));
  }
  append_projector(out, width, projector_width, decoder_width);
  return out;
}

} // namespace fvlm::connector
