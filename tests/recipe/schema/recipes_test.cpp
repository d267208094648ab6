// The bundled recipes have the numbers of the public release, and the pages generated from the schema are current.
#include "base/file.h"
#include "model/connector/foveated/settings.h"
#include "objective/dpo/settings.h"
#include "objective/next_token/settings.h"
#include "recipe/reference.h"
#include "recipe/resolve.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::recipe;
using testing::ElementsAre;

namespace {

const std::filesystem::path folder = FVLM_RECIPES;

Resolved bundled(const std::string& name, std::map<std::string, std::string> args = {}) {
  return resolve({.file = folder / name, .args = std::move(args), .library = folder / "lib"});
}

struct Expected {
  std::string recipe, decoder;
  double connector, vision, decoder_rate, to, instruct, prefer;
};
void PrintTo(const Expected& expected, std::ostream* out) {
  *out << expected.recipe;
}

class Family : public testing::TestWithParam<Expected> {};

void expect_rates(const plan::Stage& stage, double connector, double vision, double decoder) {
  EXPECT_THAT(plan::common(stage.optimizer).lr, ElementsAre(std::pair("connector", connector),
                                                            std::pair("decoder", decoder), std::pair("vision", vision)))
      << stage.name;
}

} // namespace

TEST_P(Family, HasTheNumbersOfTheRelease) {
  const Expected& expected = GetParam();
  auto resolved = bundled(expected.recipe);
  const plan::Plan& plan = resolved.plan;
  EXPECT_EQ(plan.seed, 42);
  EXPECT_EQ(plan.precision, plan::Precision::bf16);
  EXPECT_EQ(plan.model.image_size, 224);
  EXPECT_EQ(plan.model.connector.as<connector::Foveated>()->query_dim, 384);
  EXPECT_EQ(plan.model.connector.as<connector::Foveated>()->visual_scale, 0.14);
  EXPECT_EQ(std::get<std::string>(plan.model.vision), "weights/dinov2-small");
  EXPECT_EQ(std::get<std::string>(plan.model.decoder), "weights/" + expected.decoder);

  ASSERT_EQ(plan.stages.size(), 3u);
  const auto &align = plan.stages[0], &instruct = plan.stages[1], &prefer = plan.stages[2];
  for (const plan::Stage* stage : {&align, &instruct, &prefer}) {
    const auto& adamw = std::get<plan::AdamW>(stage->optimizer);
    EXPECT_THAT(adamw.betas, ElementsAre(0.9, 0.999));
    EXPECT_EQ(adamw.eps, 1e-8);
    EXPECT_EQ(adamw.clip, 1);
    EXPECT_THAT(adamw.weight_decay,
                ElementsAre(std::pair("connector", 0.01), std::pair("decoder", 0.01), std::pair("vision", 0.01)));
    EXPECT_EQ(adamw.moments, plan::Moments::fp32);
    EXPECT_EQ(stage->batch.samples, 32);
    EXPECT_EQ(stage->data.max_frames, 64);
    EXPECT_TRUE(stage->freeze.empty());
  }

  EXPECT_EQ(align.name, "align");
  EXPECT_EQ(align.from, "model");
  EXPECT_EQ(align.samples, 1000000);
  EXPECT_EQ(align.steps, 31250);
  EXPECT_EQ(align.warmup_steps, 938); // 3 %
  EXPECT_EQ(align.data.max_text_tokens, 512);
  EXPECT_EQ(align.data.text_ratio, 0.14);
  EXPECT_EQ(align.data.replicate_image_frames, 1);
  EXPECT_EQ(align.objective.at(0).as<objective::NextToken>()->on, plan::LossOn::all);
  EXPECT_EQ(std::get<plan::Converging>(align.schedule).to, expected.to);
  expect_rates(align, expected.connector, expected.vision, expected.decoder_rate);

  EXPECT_EQ(instruct.name, "instruct");
  EXPECT_EQ(instruct.from, "align");
  EXPECT_EQ(instruct.steps, 31250);
  EXPECT_EQ(instruct.warmup_steps, 938);
  EXPECT_EQ(instruct.data.max_text_tokens, 1024);
  EXPECT_EQ(instruct.data.text_ratio, 0.14);
  EXPECT_EQ(instruct.data.replicate_image_frames, 8);
  EXPECT_EQ(instruct.objective.at(0).as<objective::NextToken>()->on, plan::LossOn::answer);
  EXPECT_EQ(std::get<plan::Cosine>(instruct.schedule).to_share, 0.1);
  expect_rates(instruct, expected.instruct, expected.instruct, expected.instruct);

  EXPECT_EQ(prefer.name, "prefer");
  EXPECT_EQ(prefer.from, "instruct");
  EXPECT_EQ(prefer.samples, 83000);
  EXPECT_EQ(prefer.steps, 2594);       // 83,000 / 32 = 2593.75
  EXPECT_EQ(prefer.warmup_steps, 259); // 10 %
  EXPECT_EQ(prefer.data.max_text_tokens, 1024);
  EXPECT_EQ(prefer.data.replicate_image_frames, 8);
  EXPECT_EQ(prefer.objective.at(0).as<objective::Dpo>()->beta, 0.1);
  EXPECT_EQ(std::get<plan::Cosine>(prefer.schedule).to_share, 0.1);
  expect_rates(prefer, expected.prefer, expected.prefer, expected.prefer);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, Family,
    testing::Values(Expected{"fvlm-135m.lua", "SmolLM2-135M-Instruct", 1e-3, 1e-5, 1e-5, 3e-5, 3e-5, 1e-6},
                    Expected{"fvlm-360m.lua", "SmolLM2-360M-Instruct", 1e-3, 1e-5, 1e-5, 3e-5, 3e-5, 1e-6},
                    Expected{"fvlm-1.7b.lua", "SmolLM2-1.7B-Instruct", 3e-4, 3e-6, 3e-6, 1e-5, 1e-5, 5e-7}),
    [](const auto& info) {
      std::string name = info.param.decoder.substr(8, 4);
      return "fvlm_" + name.substr(0, name.find_first_of("M.")) + (name[1] == '.' ? "_7B" : "M");
    });

TEST(BundledRecipes, FamilyTakesItsFoldersAsArguments) {
  auto resolved =
      bundled("fvlm-360m.lua", {{"weights", "/w"}, {"data", "/d"}, {"vision", "dinov2-base"}, {"heldout", "/h"}});
  EXPECT_EQ(std::get<std::string>(resolved.plan.model.vision), "/w/dinov2-base");
  EXPECT_EQ(resolved.plan.stages[0].data.sources[0].shards[0], "/d/openvid/*.tar");
  EXPECT_EQ(resolved.plan.stages[2].evaluation.sets.at(0).measure, plan::Measure::preference);
  EXPECT_THAT(resolved.sources.at("model.vision"), testing::HasSubstr("--arg "));
}

TEST(BundledRecipes, QuickstartIsTinyAndStartsFromScratch) {
  auto plan = bundled("quickstart.lua").plan;
  const auto& vision = std::get<plan::Dinov2>(plan.model.vision);
  const auto& decoder = std::get<plan::Llama>(plan.model.decoder);
  EXPECT_EQ(plan.model.image_size, 32);
  EXPECT_EQ(vision.patch_size, 8);
  EXPECT_EQ(vision.width, 64);
  EXPECT_EQ(vision.layers, 2);
  EXPECT_EQ(decoder.width, 64);
  EXPECT_EQ(decoder.layers, 2);
  ASSERT_EQ(plan.stages.size(), 3u);
  for (const auto& stage : plan.stages) {
    EXPECT_EQ(stage.batch.samples, 32);
    EXPECT_EQ(stage.data.max_frames, 4);
  }
  EXPECT_TRUE(plan.stages[2].needs_pairs());
}

TEST(BundledRecipes, GhostVisHasTheSizesAndStepsOfItsDepth) {
  for (const int64_t depth : {20, 32}) {
    const auto plan = bundled(fmt::format("ghostvis-d{}.lua", depth)).plan;
    const auto& decoder = std::get<plan::GhostVis>(plan.model.decoder);
    EXPECT_EQ(decoder.width(), depth == 20 ? 1280 : 2048);
    EXPECT_EQ(decoder.heads(), depth == 20 ? 10 : 16);
    EXPECT_EQ(decoder.kv_heads(), depth == 20 ? 5 : 8);
    EXPECT_EQ(decoder.mlp(), depth == 20 ? 3456 : 5568);
    ASSERT_EQ(plan.stages.size(), 3U);
    const plan::Stage &base = plan.stages[0], &align = plan.stages[1], &sft = plan.stages[2];
    EXPECT_EQ(base.data.documents, plan::Documents::joined);
    EXPECT_EQ(*base.batch.samples * base.data.max_text_tokens, 524288);
    EXPECT_NEAR(static_cast<double>(base.samples) * 2048, 20 * (depth == 20 ? 531.5e6 : 1.766e9), 0.001 * 20e9);
    const auto& muon = std::get<plan::Muon>(base.optimizer);
    const double width_scale = depth == 20 ? 0.7746 : 0.6124;
    EXPECT_NEAR(muon.others.lr.at("embedding"), 0.2 * width_scale, 1e-4);
    EXPECT_NEAR(muon.others.lr.at("head"), 0.004 * width_scale, 1e-6);
    EXPECT_EQ(muon.lr.at("decoder"), 0.02);
    EXPECT_EQ(muon.weight_decay.at("decoder"), 0);
    EXPECT_DOUBLE_EQ(muon.momentum_at(0), 0.85);
    EXPECT_DOUBLE_EQ(muon.momentum_at(150), 0.9);
    EXPECT_DOUBLE_EQ(muon.momentum_at(300), 0.95);
    EXPECT_EQ(muon.others.of("embedding").betas, (std::vector<double>{0.8, 0.95}));
    EXPECT_EQ(align.batch.samples, 256);
    EXPECT_THAT(align.freeze, testing::UnorderedElementsAre("vision", "decoder", "last_layers", "embedding", "head"));
    EXPECT_THAT(sft.freeze, testing::UnorderedElementsAre("vision", "decoder"));
    const auto& last = std::get<plan::Muon>(sft.optimizer);
    EXPECT_DOUBLE_EQ(last.lr.at("last_layers"), 0.0004);
    EXPECT_EQ(last.others.lr.at("connector"), 3e-5);
    EXPECT_EQ(last.others.of("connector").betas, (std::vector<double>{0.9, 0.95}));
    EXPECT_EQ(plan.model.groups.at("last_layers").front(), fmt::format("decoder.model.layers.{}.*", depth - 4));
  }
  EXPECT_EQ(bundled("ghostvis-d20.lua", {{"mid", "1e8"}}).plan.stages.at(4).data.max_text_tokens, 16384);
}

TEST(BundledRecipes, TinyGhostVisIsTrainedFromNothing) {
  const auto plan = bundled("tiny/ghostvis.lua").plan;
  ASSERT_EQ(plan.stages.size(), 4U);
  EXPECT_EQ(std::get<plan::GhostVis>(plan.model.decoder).depth, 2);
  EXPECT_EQ(plan.stages[0].data.documents, plan::Documents::joined);
}

TEST(BundledRecipes, AreValidWithoutModelsAndData) {
  size_t recipes = 0;
  for (const char* where : {"", "tiny"})
    for (const auto& entry : std::filesystem::directory_iterator(folder / where)) {
      const std::string name = (where / entry.path().filename()).string();
      if (!name.ends_with(".lua") || name.ends_with(".d.lua")) continue;
      ++recipes;
      EXPECT_FALSE(bundled(name).plan.stages.empty()) << name;
    }
  EXPECT_GE(recipes, 12U);
}

TEST(BundledRecipes, SmolVlmStartsFromAnImportedFolder) {
  const auto plan = bundled("smolvlm-256m.lua", {{"model", "models/m"}, {"heldout", "h"}}).plan;
  EXPECT_EQ(std::get<std::string>(plan.model.vision), "models/m/vision");
  EXPECT_EQ(plan.model.image_size, 512);
  EXPECT_EQ(plan.model.connector->name(), "pixel_shuffle");
  ASSERT_EQ(plan.stages.size(), 2U);
  const plan::Stage &sft = plan.stages[0], &dpo = plan.stages[1];
  EXPECT_EQ(sft.from, "models/m");
  EXPECT_EQ(sft.data.max_frames, 17);
  EXPECT_EQ(sft.data.chat_template, "default");
  EXPECT_EQ(sft.warmup_steps, 50);
  EXPECT_THAT(plan::common(sft.optimizer).lr,
              ElementsAre(std::pair("connector", 1e-4), std::pair("decoder", 1e-4), std::pair("vision", 1e-5)));
  EXPECT_EQ(dpo.from, "sft");
  EXPECT_EQ(dpo.objective.at(0).as<objective::Dpo>()->beta, 0.1);
  EXPECT_EQ(plan::common(dpo.optimizer).lr.at("decoder"), 1e-6);
  EXPECT_EQ(dpo.evaluation.sets.at(0).measure, plan::Measure::preference);
}

TEST(BundledRecipes, LlavaHasTheNumbersOfTheRelease) {
  const auto plan = bundled("llava.lua").plan;
  EXPECT_EQ(plan.model.image_size, 336);
  EXPECT_EQ(plan.model.connector->name(), "mlp");
  ASSERT_EQ(plan.stages.size(), 2U);
  const plan::Stage &align = plan.stages[0], &sft = plan.stages[1];
  EXPECT_EQ(align.from, "model");
  EXPECT_EQ(align.steps, 2181); // 558,128 / 256
  EXPECT_EQ(sft.steps, 5198);   // 665,298 / 128
  EXPECT_THAT(align.freeze, ElementsAre("vision", "decoder"));
  EXPECT_THAT(sft.freeze, ElementsAre("vision"));
  EXPECT_THAT(plan::common(align.optimizer).lr, ElementsAre(std::pair("connector", 1e-3)));
  EXPECT_EQ(plan::common(sft.optimizer).lr.at("decoder"), 2e-5);
  const auto other = bundled("llava.lua", {{"decoder", "vicuna"}}).plan;
  EXPECT_EQ(std::get<std::string>(other.model.decoder), "vicuna");
}

TEST(Reference, CommittedPageAndStubsAreCurrent) {
  EXPECT_TRUE(read_file(folder / "REFERENCE.md") == reference_page())
      << "run: fvlm-engine recipe reference > recipes/REFERENCE.md";
  EXPECT_TRUE(read_file(folder / "fvlm.d.lua") == editor_stubs())
      << "run: fvlm-engine recipe stubs > recipes/fvlm.d.lua";
}

TEST(Reference, StubsLetAnEditorTakeShortForms) {
  std::string stubs = editor_stubs();
  for (const char* field :
       {"batch integer|fvlm.Batch ", "kernels? string|(string)[]|fvlm.Kernels ", "speed? boolean|fvlm.Speed ",
        "quantization? string|fvlm.Quantization ", "[integer] string|(string)[]|fvlm.Source ",
        "activation_checkpointing? \"none\"|\"light\"|\"all\"|fvlm.ActivationCheckpointing "})
    EXPECT_THAT(stubs, testing::HasSubstr(std::string("---@field ") + field));
}
