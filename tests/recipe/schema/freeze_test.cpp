// From a Value tree to a Plan: defaults, derived values, --set, provenance, JSON, hash, differences.
#include "objective/dpo/settings.h"
#include "objective/next_token/settings.h"
#include "small_recipe.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::recipe;
using namespace fvlm::recipe::build;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

namespace {

// The Plan of a good recipe; a mistake fails the test.
struct Frozen {
  Frozen(Value recipe, const std::vector<std::string>& sets = {}, Reader::Call call = {}) : reader(std::move(call)) {
    plan = freeze(std::move(recipe), sets, reader);
    for (const auto& mistake : reader.mistakes.list()) ADD_FAILURE() << mistake.text();
  }
  std::string source(const std::string& path) const {
    const Origin* origin = reader.value_origin(path);
    return origin ? where(*origin) : "default";
  }
  plan::Stage& stage(size_t i = 0) { return plan.stages.at(i); }
  Reader reader;
  plan::Plan plan;
};

Frozen with_stage(const std::vector<Key>& more, const std::vector<std::string>& sets = {}) {
  return Frozen(small_recipe({small_stage("align", more)}), sets);
}

Value fresh_model() {
  return table(
      3, "model",
      {key("vision", 4,
           table(4, "dinov2", {key("width", 4, 64), key("layers", 4, 2), key("heads", 4, 4), key("patch_size", 4, 8)})),
       key("decoder", 5,
           table(5, "llama", {key("width", 5, 64), key("layers", 5, 2), key("heads", 5, 4), key("tokenizer", 5, "t")})),
       key("image_size", 6, 32)});
}

} // namespace

TEST(Freeze, FillsDefaultsAndDerivesStepsRatesAndTheChainOfStages) {
  auto second = small_stage(
      "instruct", {key("schedule", 16, table(16, "cosine", {key("warmup", 16, 0.03)})), key("samples", 14, 1000000)});
  Frozen frozen(small_recipe({small_stage(), second}));
  EXPECT_EQ(frozen.plan.seed, 42);
  EXPECT_EQ(frozen.stage(0).from, "model");
  EXPECT_EQ(frozen.stage(1).from, "align");
  EXPECT_EQ(frozen.stage(0).steps, 32); // 1000 / 32 = 31.25
  EXPECT_EQ(frozen.stage(1).steps, 31250);
  EXPECT_EQ(frozen.stage(1).warmup_steps, 938); // 937.5
  EXPECT_THAT(plan::common(frozen.stage(0).optimizer).lr,
              ElementsAre(std::pair("connector", 1e-3), std::pair("decoder", 1e-3), std::pair("vision", 1e-3)));
  EXPECT_EQ(plan::common(frozen.stage(0).optimizer).weight_decay.at("vision"), 0.01);
  EXPECT_EQ(frozen.plan.kernels["attention"], plan::BackendPreferences{"auto"});
}

TEST(Freeze, SizesOfFreshTowersFollowFromTheirWidth) {
  Frozen frozen(small_recipe({small_stage()}, {key("model", 3, fresh_model())}));
  EXPECT_EQ(std::get<plan::Dinov2>(frozen.plan.model.vision).mlp, 256);
  EXPECT_EQ(std::get<plan::Llama>(frozen.plan.model.decoder).kv_heads, 4);
}

TEST(Freeze, FrozenGroupHasNoRate) {
  auto lr = table(13, "", {key("connector", 13, 1e-3)});
  auto frozen = with_stage({key("optimizer", 13, table(13, "adamw", {key("lr", 13, lr)})),
                            key("freeze", 16, table(16, "", {}, {value(16, "vision"), value(16, "decoder")}))});
  EXPECT_THAT(plan::common(frozen.stage().optimizer).lr, ElementsAre(std::pair("connector", 1e-3)));
}

TEST(Freeze, CustomGroupsTakeTheDefaultRate) {
  auto lr = table(13, "", {key("connector", 13, 1e-3), key("default", 14, 1e-5)});
  auto model = table(
      3, "model",
      {key("vision", 3, "v"), key("decoder", 3, "d"), key("groups", 3, table(3, "", {key("norms", 3, "*norm*")}))});
  Frozen frozen(small_recipe({small_stage("align", {key("optimizer", 13, table(13, "adamw", {key("lr", 13, lr)}))})},
                             {key("model", 3, model)}));
  EXPECT_EQ(plan::common(frozen.stage().optimizer).lr.at("norms"), 1e-5);
  EXPECT_EQ(frozen.source("stages.align.optimizer.lr.norms"), "r.lua:14");
  EXPECT_EQ(frozen.source("stages.align.optimizer.lr.connector"), "r.lua:13");
  EXPECT_THAT(frozen.plan.model.groups.at("norms"), ElementsAre("*norm*"));
}

TEST(Freeze, TokenBudgetHasNoKnownNumberOfSteps) {
  auto frozen = with_stage({key("batch", 15, table(15, "", {key("tokens", 15, 65536), key("samples", 15, 96)}))});
  EXPECT_FALSE(frozen.stage().steps);
  EXPECT_EQ(frozen.stage().batch.tokens, 65536);
}

TEST(Freeze, ObjectiveIsOneTermOrASum) {
  auto terms = [](std::vector<Value> items, std::string constructor) {
    return table(12, std::move(constructor), {}, std::move(items));
  };
  std::vector<Value> two = {table(12, "dpo", {key("beta", 12, 0.2)}),
                            table(12, "next_token", {key("weight", 12, 0.1)})};
  for (const char* constructor : {"", "sum"}) {
    auto frozen = with_stage({key("objective", 12, terms(two, constructor))});
    ASSERT_THAT(frozen.stage().objective, SizeIs(2));
    EXPECT_EQ(frozen.stage().objective[0].as<objective::Dpo>()->beta, 0.2);
    EXPECT_EQ(frozen.stage().objective[1].as<objective::NextToken>()->weight.points, std::vector<double>{0.1});
    EXPECT_TRUE(frozen.stage().needs_pairs());
  }
}

TEST(Freeze, OneValueStandsForEveryField) {
  Frozen frozen(small_recipe({small_stage("align", {key("activation_checkpointing", 16, "all")})},
                             {key("kernels", 4, "reference"), key("speed", 5, false)}));
  EXPECT_EQ(frozen.plan.kernels["rope"], plan::BackendPreferences{"reference"});
  EXPECT_FALSE(frozen.plan.speed.graphs);
  EXPECT_TRUE(frozen.stage().activation_checkpointing.decoder.covers(5));
  EXPECT_EQ(frozen.source("kernels.rope"), "r.lua:4");
}

TEST(Freeze, ActivationCheckpointingByStrideAndByName) {
  auto spec =
      table(16, "",
            {key("vision", 16, table(16, "", {key("every", 16, 3)})),
             key("decoder", 16, table(16, "", {key("layers", 16, table(16, "", {}, {value(16, 0), value(16, 7)}))}))});
  auto frozen = with_stage({key("activation_checkpointing", 16, spec)});
  const auto& both = frozen.stage().activation_checkpointing;
  EXPECT_TRUE(both.vision.covers(6));
  EXPECT_FALSE(both.vision.covers(7));
  EXPECT_TRUE(both.decoder.covers(7));
  EXPECT_FALSE(both.decoder.covers(1));
}

TEST(Freeze, SamplesAFunctionOverTheProgress) {
  std::vector<double> requested;
  Frozen frozen(small_recipe({small_stage("align", {key("schedule", 16, value(16, FunctionId{7}))})}), {},
                [&](FunctionId function, std::span<const Value> arguments) {
                  EXPECT_EQ(function.index, 7);
                  requested.push_back(std::get<double>(arguments[0].data));
                  return Value{1 - requested.back() / 2, {}};
                });
  const auto& curve = std::get<plan::Curve>(frozen.stage().schedule);
  ASSERT_EQ(requested.size(), 257u);
  EXPECT_EQ(requested.front(), 0);
  EXPECT_EQ(requested.back(), 1);
  EXPECT_EQ(curve.at(0.5), 0.75);
  EXPECT_DOUBLE_EQ(curve.at(0.3), 0.85); // between two points
  EXPECT_EQ(curve.at(2), 0.5);
  EXPECT_EQ(frozen.source("stages.align.schedule"), "r.lua:16");
}

TEST(Freeze, ReportsAFunctionWithInvalidNumbersAtItsLine) {
  auto mistakes = [](Value answer) {
    Reader reader([&](FunctionId, std::span<const Value>) { return answer; });
    freeze(small_recipe({small_stage("align", {key("schedule", 16, value(16, FunctionId{0}))})}), {}, reader);
    return reader.mistakes.list().at(0).text();
  };
  EXPECT_EQ(mistakes(value(1, -1)),
            "r.lua:16: stages.align.schedule: the function returns the number -1 at progress 0\n"
            "  it must return a number of at least 0");
  EXPECT_EQ(mistakes(Value{}), "r.lua:16: stages.align.schedule: the function returns nil at progress 0\n"
                               "  it must return a number of at least 0");
  Reader failing([](FunctionId, std::span<const Value>) -> Value {
    throw Error(ErrorKind::recipe, "attempt to index nil").at("r.lua:17");
  });
  freeze(small_recipe({small_stage("align", {key("schedule", 16, value(16, FunctionId{0}))})}), {}, failing);
  EXPECT_EQ(failing.mistakes.list().at(0).text(),
            "r.lua:16: stages.align.schedule: the function failed at 0: r.lua:17: attempt to index nil");
}

TEST(Mix, SharesFollowWeightsAndTheTextRatio) {
  plan::Mix mix;
  mix.sources.resize(3);
  mix.sources[0].weight.points = {3};
  mix.sources[1].weight.points = {1, 3};
  mix.sources[2].text = {"t.tar"};
  mix.sources[2].weight.points = {4};
  EXPECT_THAT(mix.shares(0), ElementsAre(3.0 / 8, 1.0 / 8, 0.5));
  EXPECT_THAT(mix.shares(1), ElementsAre(0.3, 0.3, 0.4));
  mix.text_ratio = 0.2;
  EXPECT_THAT(mix.shares(0), ElementsAre(testing::DoubleEq(0.6), testing::DoubleEq(0.2), 0.2));
}

TEST(Set, ChangesValuesAtAnyDepthByTheirType) {
  auto frozen =
      with_stage({}, {"seed=7", "stages.align.samples=64", "stages.align.optimizer.lr.vision=1e-6",
                      "kernels.attention=cudnn,reference", "stages.align.objective.on=all", "model.vision=123",
                      "stages.align.batch=16", "stages.align.data.sources[1].weight=2", "loader.workers=auto",
                      "stages.align.optimizer.betas=[0.9,0.95]", "stages.align.data.prompts.openvid=What is it?"});
  EXPECT_EQ(frozen.plan.seed, 7);
  EXPECT_EQ(frozen.stage().steps, 4);
  EXPECT_EQ(plan::common(frozen.stage().optimizer).lr.at("vision"), 1e-6);
  EXPECT_EQ(plan::common(frozen.stage().optimizer).lr.at("decoder"), 1e-3);
  EXPECT_THAT(frozen.plan.kernels["attention"], ElementsAre("cudnn", "reference"));
  EXPECT_EQ(frozen.stage().objective[0].as<objective::NextToken>()->on, plan::LossOn::all);
  EXPECT_EQ(std::get<std::string>(frozen.plan.model.vision), "123"); // a text field takes the text as it is
  EXPECT_EQ(frozen.stage().data.sources[0].weight.points, std::vector<double>{2});
  EXPECT_EQ(std::get<plan::AdamW>(frozen.stage().optimizer).betas[1], 0.95);
  EXPECT_EQ(frozen.stage().data.prompts.at("openvid"), "What is it?");
  EXPECT_EQ(frozen.source("stages.align.samples"), "--set stages.align.samples=64");
  EXPECT_EQ(frozen.source("stages.align.optimizer.lr.vision"), "--set stages.align.optimizer.lr.vision=1e-6");
  EXPECT_EQ(frozen.source("stages.align.optimizer.lr.decoder"), "r.lua:13");
}

TEST(Set, WordChoosesAKindAndLaterSetsContinueFromThere) {
  auto frozen = with_stage({}, {"stages.align.schedule=cosine", "stages.align.schedule.to_share=0.2",
                                "quantization=int8", "stages.align.quantization_aware=true"});
  EXPECT_EQ(std::get<plan::Cosine>(frozen.stage().schedule).to_share, 0.2);
  EXPECT_EQ(frozen.plan.quantization->scheme, "int8");
}

TEST(Set, AppliesToEveryStageAtOnce) {
  Frozen frozen(small_recipe({small_stage("a"), small_stage("b")}), {"stages.*.samples=32", "stages.2.samples=64"});
  EXPECT_EQ(frozen.stage(0).samples, 32);
  EXPECT_EQ(frozen.stage(1).samples, 64);
}

TEST(Set, ChangesSharedTablesInOnePlaceOnly) {
  Value shared = table(13, "adamw", {key("lr", 13, 1e-3)});
  Frozen frozen(small_recipe({small_stage("a", {key("optimizer", 13, shared)}),
                              small_stage("b", {key("optimizer", 13, shared)})}),
                {"stages.a.optimizer.eps=1e-6"});
  EXPECT_EQ(std::get<plan::AdamW>(frozen.stage(0).optimizer).eps, 1e-6);
  EXPECT_EQ(std::get<plan::AdamW>(frozen.stage(1).optimizer).eps, 1e-8);
}

TEST(Set, MistakesNameTheOptionAndTheNearestPath) {
  EXPECT_THAT(mistakes_of(small_recipe(), {"stages.algn.samples=3"}),
              ElementsAre("--set stages.algn.samples=3: stages: has no entry 'algn'\n  did you mean 'align'?"));
  EXPECT_THAT(
      mistakes_of(small_recipe(), {"stages.align.sample=3"}),
      ElementsAre("--set stages.align.sample=3: stages.align.sample: unknown key 'sample'\n  did you mean 'samples'?"));
  EXPECT_THAT(mistakes_of(small_recipe(), {"stages.align.samples=few"}),
              ElementsAre("--set stages.align.samples=few: stages.align.samples: expected an integer of at least "
                          "1, got the string \"few\""));
  EXPECT_THAT(mistakes_of(small_recipe(), {"stages.align.steps=3"}),
              ElementsAre("--set stages.align.steps=3: stages.align.steps: is computed and cannot be set\n"
                          "  set 'samples' instead; this is samples / batch, rounded up; absent where batches "
                          "are limited by tokens or frames."));
  EXPECT_THAT(mistakes_of(small_recipe(), {"seed.deep=3"}),
              ElementsAre("--set seed.deep=3: seed: has no part 'deep'\n  it is an integer of at least 0"));
  Reader reader;
  EXPECT_THROW(freeze(small_recipe(), {"seed"}, reader), Error);
}

TEST(PlanJson, ReadsBackToTheSameBytesAndHash) {
  auto control = table(17, "", {key("every", 17, 10), key("run", 17, value(17, FunctionId{3}))});
  std::vector<Value> terms = {table(12, "dpo", {}), table(12, "kl", {key("teacher", 12, "models/t")})};
  Frozen first(small_recipe(
      {small_stage(),
       small_stage(
           "prefer",
           {key("schedule", 16, table(16, "converging", {key("to", 16, 3e-5), key("warmup", 16, 0.1)})),
            key("objective", 12, table(12, "", {}, terms)), key("control", 17, control), key("from", 18, "model"),
            key("quantization_aware", 18, true),
            key("optimizer", 13,
                table(13, "muon", {key("lr", 13, 0.02), key("others", 14, table(14, "", {key("lr", 14, 3e-4)}))}))})},
      {key("model", 3, fresh_model()), key("quantization", 7, "int8")}));
  Json json = plan_json(first.plan);
  Reader reader;
  reader.reads_plan_file = true;
  auto again = freeze(from_json(Json::parse(json.dump()), {"plan.json", 0}), {}, reader);
  for (const auto& mistake : reader.mistakes.list()) ADD_FAILURE() << mistake.text();
  EXPECT_EQ(plan_json(again).dump(), json.dump());
  EXPECT_EQ(plan_hash(again), plan_hash(first.plan));
  EXPECT_THAT(differences(first.plan, again), IsEmpty());
}

TEST(PlanJson, RemovedKeysOfEarlierVersionsAreIgnored) {
  Json json = plan_json(Frozen(small_recipe()).plan);
  json["speed"]["overlap_vision"] = true;
  Reader reader;
  reader.reads_plan_file = true;
  freeze(from_json(json, {"plan.json", 0}), {}, reader);
  EXPECT_THAT(reader.mistakes.list(), IsEmpty());
}

TEST(PlanJson, BytesAndHashAreTheSameInEveryProcess) {
  Frozen frozen(small_recipe());
  EXPECT_EQ(plan_hash(frozen.plan), "1377505b5776727f5530285771697fe90e5007122167a5d5f9b815027808030a");
}

TEST(PlanHash, ChangesOnlyWithWhatChangesNumbers) {
  auto hash = [](const std::vector<std::string>& sets) { return plan_hash(Frozen(small_recipe(), sets).plan); };
  std::string plain = hash({});
  for (const char* set : {"name=other", "log_every=3", "checkpoint.every=7", "loader.workers=2"})
    EXPECT_EQ(hash({set}), plain) << set;
  for (const char* set :
       {"seed=3", "precision=fp32", "stages.align.samples=64", "kernels.loss=reference", "speed.graphs=false",
        "speed.shared_repeated_frames=false", "stages.align.optimizer.eps=1e-9", "model.vision=other"})
    EXPECT_NE(hash({set}), plain) << set;
}

TEST(Differences, NameThePathAndBothValues) {
  Frozen left(small_recipe()), right(small_recipe(), {"seed=7", "stages.align.schedule=cosine"});
  std::vector<std::string> texts;
  for (const auto& d : differences(left.plan, right.plan))
    texts.push_back(d.path + " " + d.left.dump() + " " + d.right.dump());
  EXPECT_THAT(texts, ElementsAre("seed 42 7", "stages.align.schedule.kind \"constant\" \"cosine\"",
                                 "stages.align.schedule.to_share null 0.1"));
}

TEST(Actions, OfAControlFunction) {
  EXPECT_THAT(read_actions(Value{}), IsEmpty());
  auto half = table(1, "scale_lr", {}, {}, {value(1, 0.5)});
  auto actions = read_actions(table(1, "", {}, {half, table(1, "save", {}), table(1, "stop_stage", {})}));
  ASSERT_THAT(actions, SizeIs(3));
  EXPECT_EQ(std::get<plan::ScaleRate>(actions[0]).factor, 0.5);
  EXPECT_THAT(read_actions(half), SizeIs(1));
  EXPECT_THROW(read_actions(table(1, "scale_lr", {}, {}, {value(1, -1)})), RecipeError);
  EXPECT_THROW(read_actions(value(1, "stop")), RecipeError);
}
