// The model alone: finite differences, activation checkpointing, frozen parts. parity_test.py compares it with PyTorch.
#include "model/shared_weight_gradients.h"
#include "recipe/plan.h"
#include "tiny.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

using namespace fvlm;
using namespace fvlm::model;
using at::Tensor;

namespace {

std::vector<Sample> some_samples() {
  Dice dice(11);
  return {random_sample(dice, 3, 7), random_sample(dice, 0, 5), random_sample(dice, 1, 4)};
}

void expect_same(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, gradient] : b) ops::expect_close(a.at(name), gradient, 1e-12, name);
}

class Differences : public testing::TestWithParam<bool> {};

// Every connector parameter and the tower's parts that attend() reads, in float64.
TEST_P(Differences, AgreeWithGradientsOfConnectorAndAttend) {
  ModelConfig config = tiny_config();
  if (GetParam()) config.connector.as<connector::Foveated>()->attend = connector::Attend::shallow;
  Tiny tiny(config);
  const Pack pack = tiny.pack(some_samples());
  const Tensor weights = tiny.ones(pack);
  tiny.losses(pack, weights);
  const auto gradients = tiny.take_gradients();
  const auto loss = [&] {
    ops::Tape none(ops::Tape::Mode::forward_only);
    const auto visual = tiny.model.encode(none, *tiny.operations, pack, "coarse_fine");
    const auto hidden = tiny.model.decode(none, *tiny.operations, visual.tokens, pack);
    return next_token_loss(none, *tiny.operations, tiny.model, hidden, pack, weights).mul(weights).sum().item<double>();
  };
  for (auto& parameter : tiny.model.parameters().all()) {
    const bool is_connector = !parameter.name.starts_with("vision.") && !parameter.name.starts_with("decoder.");
    if (!is_connector && parameter.name.find("layer.2.") == std::string::npos) continue;
    for (const int64_t element : {int64_t{0}, parameter.value.numel() / 2}) {
      const double expected = ops::difference(parameter.value, element, loss);
      const double actual = gradients.at(parameter.name).reshape({-1})[element].item<double>();
      EXPECT_NEAR(actual, expected, 1e-6 * std::max(1.0, std::abs(expected)))
          << parameter.name << " element " << element;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(attend, Differences, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "shallow" : "deep"; });

TEST(Model, RecomputedLayersGiveTheSameLossAndGradients) {
  Tiny tiny;
  const Pack pack = tiny.pack(some_samples());
  const Tensor loss = tiny.losses(pack, tiny.ones(pack));
  const auto kept = tiny.take_gradients();
  plan::Recompute planned;
  planned.layers = {0, 2};
  const std::map<std::string, std::pair<Recompute, std::vector<bool>>> choices = {
      {"none", {Recompute::none(), {false, false, false}}},
      {"all", {Recompute::all(), {true, true, true}}},
      {"every second", {Recompute::every(2), {true, false, true}}},
      {"some", {Recompute::only({1}), {false, true, false}}},
      {"light_only", {Recompute::light_only(), {false, false, false}}},
      {"a recipe's", {Recompute::from_plan(planned), {true, false, true}}},
      {"a recipe's silence", {Recompute::from_plan({}), {false, false, false}}},
      {"by name", {Recompute::parse("layers:0,1", 3), {true, true, false}}},
  };
  for (const auto& [name, choice] : choices) {
    SCOPED_TRACE(name);
    const auto& [recompute, expected] = choice;
    for (int64_t layer = 0; layer < 3; ++layer) EXPECT_EQ(recompute.layer(layer), expected[layer]) << "layer " << layer;
    tiny.model.encoder().recompute = recompute;
    tiny.model.decoder().recompute = recompute;
    ops::expect_close(tiny.losses(pack, tiny.ones(pack)), loss, 1e-12, "losses");
    expect_same(tiny.take_gradients(), kept);
  }
}

// Shared weight gradients, packs and frames take the same way in every family.
TEST(Model, RecomputesDecodersOfEveryFamily) {
  struct Family {
    const char* model_type;
    void (*change)(DecoderConfig& decoder);
  };
  for (const auto& [model_type, change] :
       {Family{"qwen2",
               [](DecoderConfig& decoder) {
                 decoder.qkv_bias = true;
                 decoder.rope_scaling = {.type = RopeScaling::Type::linear, .factor = 2};
               }},
        Family{"qwen3", [](DecoderConfig& decoder) { decoder.qk_norm = true; }},
        Family{"granite",
               [](DecoderConfig& decoder) {
                 decoder.embedding_multiplier = 12;
                 decoder.residual_multiplier = 0.22;
                 decoder.attention_multiplier = 0.5;
                 decoder.logits_scaling = 8;
               }},
        Family{
            "olmo2",
            [](DecoderConfig& decoder) { decoder.qk_row_norm = decoder.post_norms = true, decoder.pre_norms = false; }},
        Family{"gemma3_text",
               [](DecoderConfig& decoder) {
                 decoder.qk_norm = decoder.post_norms = decoder.unit_offset = true;
                 decoder.gelu_gate = decoder.scaled_tokens = true;
                 decoder.attention_multiplier = 0.5;
                 decoder.sliding_layers = {1, 0};
                 decoder.sliding_window = decoder.max_position_embeddings;
                 decoder.local_rope_theta = 100;
               }},
        Family{"smollm3",
               [](DecoderConfig& decoder) {
                 decoder.no_rope_layers = {0, 1};
               }},
        Family{"lfm2",
               [](DecoderConfig& decoder) {
                 decoder = convolving_config().decoder;
                 decoder.conv_bias = true;
               }},
        Family{"lfm3",
               [](DecoderConfig& decoder) {
                 decoder = convolving_config().decoder;
                 decoder.model_type = "lfm3";
                 decoder.head_gates = decoder.post_norms = true;
                 decoder.rope_scaling = {.type = RopeScaling::Type::proportional, .rotated_part = 0.5};
                 decoder.local_rope_theta = 100;
               }},
        Family{"qwen3_5", [](DecoderConfig& decoder) { decoder = recurrent_config().decoder; }},
        Family{"nanochat", [](DecoderConfig& decoder) {
                 decoder.norm_weights = decoder.gated_mlp = decoder.tie_word_embeddings = false;
                 decoder.qk_norm = decoder.embedding_norm = decoder.rope_reversed = true;
                 decoder.qkv_bias = decoder.out_bias = true;
                 decoder.final_logit_softcapping = 2;
               }}}) {
    SCOPED_TRACE(model_type);
    ModelConfig config = tiny_config();
    config.decoder.model_type = model_type;
    change(config.decoder);
    Tiny tiny(config);
    const Pack pack = tiny.pack(some_samples());
    const Tensor loss = tiny.losses(pack, tiny.ones(pack));
    const auto kept = tiny.take_gradients();
    for (const auto& [name, gradient] : kept) {
      const bool is_used = gradient.abs().max().item<double>() > 1e-9;
      EXPECT_TRUE(is_used || !name.starts_with("decoder.")) << name;
    }
    for (const Recompute& recompute : {Recompute::all(), Recompute::only({1}), Recompute::light_only()}) {
      tiny.model.decoder().recompute = recompute;
      ops::expect_close(tiny.losses(pack, tiny.ones(pack)), loss, 1e-12, "losses");
      expect_same(tiny.take_gradients(), kept);
    }
    tiny.model.decoder().recompute = Recompute::none();
    tiny.model.speed.joint_weight_gradients = false;
    ops::expect_close(tiny.losses(pack, tiny.ones(pack)), loss, 1e-12, "losses");
    expect_same(tiny.take_gradients(), kept);
  }
}

// The compensation of residual sums is passed from layer to layer, also into recomputed layers.
TEST(Model, RecomputedLayersGiveTheSameBitsInBfloat16) {
  Tiny tiny(tiny_config(), at::kBFloat16);
  tiny.model.speed.joint_weight_gradients = false; // recomputed layers do not take part in it
  const Pack pack = tiny.pack(some_samples());
  const Tensor loss = tiny.losses(pack, tiny.ones(pack));
  const auto kept = tiny.take_gradients();
  tiny.model.decoder().recompute = Recompute::all();
  EXPECT_TRUE(tiny.losses(pack, tiny.ones(pack)).equal(loss));
  for (const auto& [name, gradient] : tiny.take_gradients()) EXPECT_TRUE(gradient.equal(kept.at(name))) << name;
}

TEST(Model, TowerOptimizationsGiveTheSameLossAndGradients) {
  Tiny tiny;
  const auto samples = some_samples();
  Capacity wide = Capacity::of(samples, 1);
  wide.frames += 3;
  for (const Pack& pack : {tiny.pack(samples), tiny.pack(samples, wide)})
    for (const auto& recompute : {Recompute::none(), Recompute::all(), Recompute::light_only()})
      for (const std::string mode : {"coarse_fine", "coarse_only"}) {
        tiny.model.encoder().recompute = recompute;
        tiny.model.speed.coarse_in_tower = tiny.model.speed.skip_last_patches = tiny.model.speed.fold_layer_scale =
            false;
        const Tensor loss = tiny.losses(pack, tiny.ones(pack), mode);
        const auto gradients = tiny.take_gradients();
        EXPECT_GT(gradients.at("q_static").abs().max().item<double>(), 0);
        for (const auto& [appended, skips, folds] : {std::tuple{true, true, true},
                                                     {true, false, true},
                                                     {false, true, true},
                                                     {false, false, true},
                                                     {true, true, false}}) {
          SCOPED_TRACE(fmt::format("{} frame slots, {} layers again, mode {}, {}, {}, {}", pack.frames.size(0),
                                   recompute.layer(0) ? "all" : "no", mode, appended ? "coarse in tower" : "",
                                   skips ? "last patches skipped" : "", folds ? "scales folded" : ""));
          tiny.model.speed.coarse_in_tower = appended;
          tiny.model.speed.skip_last_patches = skips;
          tiny.model.speed.fold_layer_scale = folds;
          ops::expect_close(tiny.losses(pack, tiny.ones(pack), mode), loss, 1e-12, "losses");
          expect_same(tiny.take_gradients(), gradients);
        }
      }
}

TEST(Model, SharesProductsWhereLittleIsSaved) {
  DecoderConfig decoder; // SmolLM2-135M
  decoder.num_hidden_layers = 30;
  decoder.hidden_size = 576;
  decoder.intermediate_size = 1536;
  decoder.num_attention_heads = 9;
  decoder.num_key_value_heads = 3;
  decoder.head_dim = 64;
  const int64_t bytes_a_row = (960 + 576 + 3072 + 576) * 2, weights = 576 * (960 + 576 + 3072 + 1536),
                most = 4 * weights / bytes_a_row;
  EXPECT_TRUE(can_defer_gradients(decoder, most, 2));
  EXPECT_FALSE(can_defer_gradients(decoder, most + 1, 2));
  EXPECT_FALSE(can_defer_gradients(decoder, most, 4));
  decoder.num_hidden_layers = 1; // little in all, however small the weights
  EXPECT_TRUE(can_defer_gradients(decoder, (64 << 20) / bytes_a_row, 2));
}

TEST(Model, FrozenPartHasNoGradientAndOthersAreUnchanged) {
  Tiny whole;
  const Pack pack = whole.pack(some_samples());
  whole.losses(pack, whole.ones(pack));
  auto expected = whole.take_gradients();
  for (const std::string frozen : {"vision.", "decoder."}) {
    Tiny tiny(tiny_config(), at::kDouble, [&](const ParameterSpec& spec) { return !spec.name.starts_with(frozen); });
    tiny.losses(pack, tiny.ones(pack));
    auto rest = expected;
    std::erase_if(rest, [&](const auto& entry) { return entry.first.starts_with(frozen); });
    expect_same(tiny.take_gradients(), rest);
  }
}

TEST(Model, GradientsOfTwoPacksAddUp) {
  Tiny tiny;
  const auto samples = some_samples();
  const Pack first = tiny.pack({samples[0]}), second = tiny.pack({samples[2]});
  tiny.losses(first, tiny.ones(first));
  auto sum = tiny.take_gradients();
  tiny.losses(second, tiny.ones(second));
  for (const auto& [name, gradient] : tiny.take_gradients()) sum[name] += gradient;
  tiny.losses(first, tiny.ones(first));
  tiny.losses(second, tiny.ones(second));
  expect_same(tiny.take_gradients(), sum);
}

TEST(Model, TextAloneNeedsNoFrames) {
  Tiny tiny;
  Dice dice(2);
  const Pack pack = tiny.pack({random_sample(dice, 0, 6)});
  EXPECT_FALSE(pack.frames.defined());
  tiny.losses(pack, tiny.ones(pack));
  for (const auto& [name, gradient] : tiny.take_gradients())
    EXPECT_EQ(gradient.abs().max().item<double>() > 0, name.starts_with("decoder.")) << name;
}

TEST(Model, ReturnsAttentionMapsOnRequest) {
  Tiny tiny;
  Dice dice(6);
  const std::vector<Sample> samples{random_sample(dice, 3, 4), random_sample(dice, 0, 2), random_sample(dice, 1, 3)};
  const auto attention = [&](const Pack& pack, const std::string& mode,
                             EncodeOutputs outputs = EncodeOutputs::tokens_and_attention) {
    Tape none(Tape::Mode::forward_only);
    return tiny.model.encode(none, *tiny.operations, pack, mode, outputs).attention;
  };
  const Pack exact = tiny.pack(samples);
  EXPECT_FALSE(attention(exact, "coarse_fine", EncodeOutputs::tokens).defined());
  const Tensor fine = attention(exact, "coarse_fine"), one_by_one = attention(exact, "autoregressive");
  EXPECT_EQ(fine.sizes(), (std::vector<int64_t>{4, 3, 2, 5})) << "frames, layers, heads, CLS and patches";
  ops::expect_close(fine.sum(-1), at::ones({4, 3, 2}, at::kDouble), 1e-12, "sums");
  // The first frame of a video uses q_init in both modes.
  for (const int64_t first : {0, 3}) ops::expect_close(one_by_one[first], fine[first], 1e-12, "a first frame");
  EXPECT_GT((one_by_one[1] - fine[1]).abs().max().item<double>(), 1e-6) << "later ones with other queries";
  EXPECT_GT((attention(exact, "coarse_only")[0] - fine[0]).abs().max().item<double>(), 1e-6);

  Capacity wide = Capacity::of(samples, 1);
  wide.frames += 2;
  ops::expect_close(attention(tiny.pack(samples, wide), "coarse_fine").narrow(0, 0, 4), fine, 1e-12, "with padding");
}

// Frame 0 uses q_init, frame 1 a query made from frame 0's visual token: the whole computation for two frames.
TEST(Model, RefinedReadsVideosOfTwoFramesAsInUse) {
  Tiny tiny;
  Dice dice(8);
  const Pack pack = tiny.pack(
      {random_sample(dice, 2, 4), random_sample(dice, 0, 3), random_sample(dice, 1, 3), random_sample(dice, 2, 5)});
  const auto tokens = [&](const std::string& mode) {
    Tape none(Tape::Mode::forward_only);
    return tiny.model.encode(none, *tiny.operations, pack, mode).tokens.data;
  };
  const Tensor in_use = tokens("autoregressive");
  ops::expect_close(tokens("refined"), in_use, 1e-12, "visual tokens");
  EXPECT_GT((tokens("coarse_fine") - in_use).abs().max().item<double>(), 1e-6);
}

TEST(Model, RefinedTrainsNoStaticQueryAndIsCoarseFineForSingleFrames) {
  Tiny tiny;
  const auto samples = some_samples();
  const Pack pack = tiny.pack(samples);
  tiny.losses(pack, tiny.ones(pack), "refined");
  const auto gradients = tiny.take_gradients();
  EXPECT_EQ(gradients.at("q_static").abs().max().item<double>(), 0);
  EXPECT_GT(gradients.at("llm_to_query.weight").abs().max().item<double>(), 0);

  const Pack single = tiny.pack({samples[2]});
  const Tensor loss = tiny.losses(single, tiny.ones(single), "coarse_fine");
  const auto expected = tiny.take_gradients();
  ops::expect_close(tiny.losses(single, tiny.ones(single), "refined"), loss, 1e-12, "losses");
  expect_same(tiny.take_gradients(), expected);
}

TEST(Model, PreferenceMatchesItsFormula) {
  Tiny tiny;
  Dice dice(9);
  const Pack pack = tiny.pack({random_sample(dice, 2, 5, 2), random_sample(dice, 0, 6, 2)});
  const Tensor reference = ops::random({4}, 3).mul(0.1).sub(20);
  ops::Tape tape;
  const auto visual = tiny.model.encode(tape, *tiny.operations, pack, "coarse_fine");
  const auto hidden = tiny.model.decode(tape, *tiny.operations, visual.tokens, pack);
  const auto ours = log_probabilities(tape, *tiny.operations, tiny.model, hidden, pack);
  const auto result = dpo_loss(ours, reference, pack, 0.3, at::full({}, 0.5, at::kDouble));
  double loss = 0;
  std::vector<double> weight; // d loss / d (chosen - rejected), a pair
  for (int64_t pair = 0; pair < 2; ++pair) {
    const auto at = [&](const Tensor& of, int64_t side) { return of[2 * pair + side].item<double>(); };
    const double margin = 0.3 * ((at(ours.sum, 0) - at(reference, 0)) - (at(ours.sum, 1) - at(reference, 1)));
    loss += std::log1p(std::exp(-margin)) / 2;
    weight.push_back(-0.3 / (1 + std::exp(margin)) / 2);
  }
  EXPECT_NEAR(result.losses.mean().item<double>(), loss, 1e-12);
  const Tensor gradient = ours.losses.gradient->take();
  for (int64_t label = 0; label < gradient.numel(); ++label) {
    const int64_t text = pack.labels.sequences[label].item<int64_t>();
    const double expected = -weight[static_cast<size_t>(text / 2)] * (text % 2 == 0 ? 1 : -1);
    EXPECT_NEAR(gradient[label].item<double>(), expected, 1e-12) << "label " << label;
  }
}

} // namespace
