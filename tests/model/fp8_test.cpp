// Linears whose operands are rounded to e4m3 (OperationsOptions::fp8), beside the same model without.
#include "tiny.h"

#include <ATen/ops/dot.h>
#include <fmt/format.h>

using namespace fvlm;
using namespace fvlm::model;
using at::Tensor;

namespace {

class Fp8 : public testing::Test {
 protected:
  static ModelConfig config() {
    ModelConfig config = tiny_config();
    config.decoder.num_hidden_layers = 4;
    config.decoder.hidden_size = 96;
    config.decoder.head_dim = 24;
    config.decoder.intermediate_size = 192;
    return config;
  }
  void use_fp8() {
    tiny.operations.emplace(tiny.registry,
                            ops::OperationsOptions{.dtype = at::kDouble, .gradient_dtype = at::kDouble, .fp8 = true});
  }
  Pack pack() {
    Dice dice(5);
    return tiny.pack({random_sample(dice, 2, 39), random_sample(dice, 1, 54), random_sample(dice, 0, 70)});
  }
  std::vector<fvlm_kernels_query> fp8_queries() const {
    std::vector<fvlm_kernels_query> found;
    for (const auto& query : tiny.operations->queries())
      if (const auto* kernels = std::get_if<fvlm_kernels_query>(&query); kernels && kernels->options & FVLM_WITH_FP8)
        found.push_back(*kernels);
    return found;
  }

  Tiny tiny{config()};
};

double cosine(const Tensor& a, const Tensor& b) {
  return (at::dot(a.flatten(), b.flatten()) / (a.norm() * b.norm())).item<double>();
}

TEST_F(Fp8, GradientsPointWhereThoseWithoutRoundingDo) {
  const Pack input = pack();
  const Tensor weights = tiny.ones(input) / 10;
  const double exact_loss = tiny.losses(input, weights).sum().item<double>();
  const auto exact = tiny.take_gradients();
  use_fp8();
  const double rounded_loss = tiny.losses(input, weights).sum().item<double>();
  const auto rounded = tiny.take_gradients();
  EXPECT_NE(rounded_loss, exact_loss);
  EXPECT_NEAR(rounded_loss, exact_loss, 0.005 * exact_loss);
  ASSERT_EQ(rounded.size(), exact.size());
  // Keys' biases change no attention, so that their gradients are rounding errors.
  constexpr double nothing = 1e-9;
  for (const auto& [name, gradient] : exact) {
    if (gradient.norm().item<double>() < nothing) continue;
    // Where less cancels: the scores' gradients are differences, and a frame has a single row.
    const bool is_difference = name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos;
    const double least = name.starts_with("decoder.") && !is_difference ? 0.99 : 0.98;
    EXPECT_GE(cosine(gradient, rounded.at(name)), least) << name;
    EXPECT_FALSE(gradient.equal(rounded.at(name))) << name << ": nothing was rounded on its way";
  }
}

TEST_F(Fp8, IsForLinearsOfInnerLayersOfTheDecoder) {
  const std::set<std::string> of_layer{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                       "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
  std::set<std::string> expected, allowed;
  for (const char* layer : {"1", "2"})
    for (const std::string& name : of_layer)
      expected.insert(fmt::format("decoder.model.layers.{}.{}.weight", layer, name));
  for (const auto& parameter : tiny.model.parameters().all())
    if (parameter.allows_fp8) allowed.insert(parameter.name);
  EXPECT_EQ(allowed, expected);
  const Pack input = pack();
  tiny.losses(input, tiny.ones(input));
  EXPECT_TRUE(fp8_queries().empty()) << "without OperationsOptions::fp8";
  use_fp8();
  tiny.losses(input, tiny.ones(input));
  std::set<std::pair<int64_t, int64_t>> sizes;
  for (const auto& query : fp8_queries()) sizes.emplace(query.inner, query.width);
  EXPECT_EQ(sizes.size(), 4u) << "q, k and v; o; gate and up; down";
  EXPECT_FALSE(tiny.operations->did_without_fp8());
}

} // namespace
