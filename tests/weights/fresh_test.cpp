#include "model/weights/connector.h"
#include "model/weights/initialize.h"
#include "weights/foveated.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>

using namespace fvlm;

namespace {

std::vector<float> fresh(const TensorSpec& spec, uint64_t seed) {
  std::vector<float> out(TensorInfo{spec.name, DType::f32, spec.shape}.elements());
  initialize_weights(out, spec.fill, seed, "connector." + spec.name);
  return out;
}

} // namespace

TEST(Fresh, ConnectorIsInitializedLikePytorchLayers) {
  VisionConfig vision = read_vision_config({{"model_type", "dinov2"}}, "c");
  DecoderConfig decoder =
      read_decoder_config({{"model_type", "llama"}, {"hidden_size", 1024}, {"num_attention_heads", 8}}, "c");
  for (const TensorSpec& spec : layout_of(foveated(4000), vision, {decoder}).tensors) {
    auto values = fresh(spec, 42);
    double count = static_cast<double>(values.size()), mean = 0, squares = 0, largest = 0;
    for (float value : values)
      mean += value, squares += value * value, largest = std::max<double>(largest, std::abs(value));
    mean /= count, squares /= count;
    if (spec.name.starts_with("q_")) {
      EXPECT_NEAR(mean, 0, 5 / std::sqrt(count)) << spec.name;
      EXPECT_NEAR(squares, 1, 5 * std::sqrt(2 / count)) << spec.name;
    } else {
      int64_t inputs = spec.name.starts_with("query_input") ? 4000 : spec.name.starts_with("llm_to_query") ? 1024 : 768;
      double bound = 1 / std::sqrt(static_cast<double>(inputs));
      EXPECT_LE(largest, bound) << spec.name;
      EXPECT_GT(largest, 0.99 * bound) << spec.name;
      EXPECT_NEAR(mean, 0, 5 * bound / std::sqrt(3 * count)) << spec.name;
      EXPECT_NEAR(squares, bound * bound / 3, 5 * bound * bound * 0.2981 / std::sqrt(count)) << spec.name;
    }
  }
}

TEST(Fresh, GhostVisStartsWithBranchesAndLogitsOfZero) {
  const DecoderConfig config = read_decoder_config({{"model_type", "ghostvis"},
                                                    {"vocab_size", 100},
                                                    {"hidden_size", 256},
                                                    {"intermediate_size", 704},
                                                    {"num_hidden_layers", 1},
                                                    {"num_attention_heads", 2},
                                                    {"num_key_value_heads", 1}},
                                                   "c");
  const std::map<std::string, double> deviations{{"model.embed_tokens.weight", 1},
                                                 {"model.layers.0.self_attn.q_proj.weight", 1 / std::sqrt(256.0)},
                                                 {"model.layers.0.self_attn.k_proj.weight", std::sqrt(0.5 / 256)},
                                                 {"model.layers.0.self_attn.v_proj.weight", std::sqrt(0.5 / 256)},
                                                 {"model.layers.0.mlp.gate_proj.weight", 1 / std::sqrt(256.0)},
                                                 {"model.layers.0.mlp.up_proj.weight", 1 / std::sqrt(256.0)}};
  size_t drawn = 0;
  for (const TensorSpec& spec : layout_of(config).tensors) {
    const auto found = deviations.find(spec.name);
    const auto values = fresh(spec, 3);
    double squares = 0;
    for (const float value : values) squares += value * value;
    const double deviation = std::sqrt(squares / static_cast<double>(values.size()));
    if (found == deviations.end()) {
      EXPECT_EQ(deviation, 0) << spec.name << ": o_proj, down_proj, the head and biases are 0";
      continue;
    }
    ++drawn;
    EXPECT_NEAR(deviation / found->second, 1, 0.02) << spec.name;
  }
  EXPECT_EQ(drawn, deviations.size());
}

TEST(Fresh, ValuesDependOnSeedAndNameOnly) {
  Initializer normal{Initializer::Kind::normal, 1};
  std::vector<float> whole(1000), piece(300);
  initialize_weights(whole, normal, 7, "a");
  initialize_weights(piece, normal, 7, "a", 601);
  EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + 601));
  std::vector<float> other(1000);
  initialize_weights(other, normal, 8, "a");
  EXPECT_NE(whole, other);
  initialize_weights(other, normal, 7, "b");
  EXPECT_NE(whole, other);
}

TEST(Fresh, TensorOfManyThreadsEqualsItsPieces) {
  const Initializer normal{Initializer::Kind::normal, 1};
  std::vector<float> whole(200001), piece(1);
  initialize_weights(whole, normal, 7, "a");
  for (const size_t at : {0, 65535, 65536, 131071, 131072, 200000}) {
    initialize_weights(piece, normal, 7, "a", at);
    EXPECT_EQ(whole[at], piece[0]) << at;
  }
}
