// Errors of the schema: file and line, path, expected and actual value, suggestion.
#include "recipe/schema/table.h"
#include "small_recipe.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::recipe;
using namespace fvlm::recipe::build;
using testing::ElementsAre;
using testing::IsEmpty;

namespace {

Key optimizer(std::vector<Key> keys) {
  return key("optimizer", 13, table(13, "adamw", std::move(keys)));
}

} // namespace

TEST(Mistakes, NoneInAGoodRecipe) {
  EXPECT_THAT(mistakes_of(small_recipe()), IsEmpty());
}

TEST(Mistakes, UnknownKeyNamesTheNearestAtEachLevel) {
  EXPECT_THAT(mistakes_of(small_recipe({small_stage()}, {key("sede", 4, 1)})),
              ElementsAre("r.lua:4: sede: unknown key 'sede'\n  did you mean 'seed'?"));
  EXPECT_THAT(of_stage({key("objektive", 16, 1)}),
              ElementsAre("r.lua:16: stages.align.objektive: unknown key 'objektive'\n  did you mean 'objective'?"));
  EXPECT_THAT(of_stage({optimizer({key("lr", 13, 1e-3), key("weight_decy", 14, 0)})}),
              ElementsAre("r.lua:14: stages.align.optimizer.weight_decy: unknown key 'weight_decy'\n"
                          "  did you mean 'weight_decay'?"));
  EXPECT_THAT(
      of_stage({key("data", 11, table(11, "mix", {}, {table(12, "", {key("wieght", 12, 1)}, {value(12, "a.tar")})}))}),
      ElementsAre("r.lua:12: stages.align.data.sources[1].wieght: unknown key 'wieght'\n  did you mean 'weight'?"));
}

TEST(Mistakes, UnknownKeyWithoutANearOneListsAll) {
  EXPECT_THAT(
      of_stage({key("batch", 15, table(15, "", {key("zebra", 15, 1)}))}),
      ElementsAre("r.lua:15: stages.align.batch.zebra: unknown key 'zebra'\n  known here: samples, tokens, frames"));
}

TEST(Mistakes, RecognizesKeysOfOtherProgramsAndTables) {
  EXPECT_THAT(of_stage({key("lr", 16, 1e-3)}),
              ElementsAre("r.lua:16: stages.align.lr: unknown key 'lr'\n  it belongs in 'optimizer', as 'lr'"));
  EXPECT_THAT(of_stage({key("max_grad_norm", 16, 1)}),
              ElementsAre("r.lua:16: stages.align.max_grad_norm: unknown key 'max_grad_norm'\n"
                          "  it belongs in 'optimizer', as 'clip'"));
  EXPECT_THAT(of_stage({key("gradient_checkpointing", 16, true)}),
              ElementsAre("r.lua:16: stages.align.gradient_checkpointing: unknown key 'gradient_checkpointing'\n"
                          "  it is called 'activation_checkpointing' here"));
}

TEST(Mistakes, KeysOfOtherProgramsSayWhatToWrite) {
  using testing::EndsWith;
  using testing::HasSubstr;
  const auto stage = [](const char* name, int value) { return of_stage({key(name, 16, value)}); };
  EXPECT_THAT(stage("max_steps", 100),
              ElementsAre(EndsWith("set samples = steps x batch: a stage is as long as its samples")));
  for (const char* name : {"gradient_accumulation_steps", "per_device_train_batch_size"})
    EXPECT_THAT(stage(name, 4), ElementsAre(HasSubstr("packing = { segments = N } limits one"))) << name;
  EXPECT_THAT(stage("cutoff_len", 512), ElementsAre(EndsWith("it belongs in 'data', as 'max_text_tokens'")));
  const auto recipe = [](const char* name, Value value) {
    return mistakes_of(small_recipe({small_stage()}, {key(name, 4, std::move(value))}));
  };
  EXPECT_THAT(recipe("output_dir", value(4, "out")), ElementsAre(HasSubstr("train --run-dir")));
  EXPECT_THAT(recipe("bf16", value(4, true)),
              ElementsAre(EndsWith("write precision = \"bf16\", or on the command line --set precision=bf16")));
  EXPECT_THAT(recipe("cutoff_len", value(4, 512)), ElementsAre(HasSubstr("max_text_tokens")));
  EXPECT_THAT(recipe("precision", value(4, "float32")), ElementsAre(HasSubstr("\"fp32\" is float32")));
}

TEST(Mistakes, NamesOfPeftAndLlamaFactoryAreKnown) {
  using testing::EndsWith;
  using testing::HasSubstr;
  const Value lora = table(
      5, "lora",
      {key("r", 5, 16), key("lora_alpha", 5, 32), key("lora_dropout", 5, 0.1), key("target_modules", 5, "q_proj")});
  const Value model =
      table(3, "model", {key("vision", 3, "weights/v"), key("decoder", 3, "weights/d"), key("adapters", 5, lora)});
  const auto of_lora = mistakes_of(small_recipe({small_stage()}, {key("model", 3, model)}));
  ASSERT_EQ(of_lora.size(), 4u) << "and no word of a rank that is missing";
  const char* const own[] = {"rank", "alpha", "dropout", "targets"};
  for (size_t i = 0; i < 4; ++i) EXPECT_THAT(of_lora[i], EndsWith(fmt::format("it is called '{}' here", own[i])));
  EXPECT_THAT(of_stage({key("lr_scheduler_type", 16, "cosine")}), ElementsAre(HasSubstr("schedule = fvlm.cosine")));
  EXPECT_THAT(of_stage({key("eval_steps", 16, 100)}), ElementsAre(EndsWith("it belongs in 'evaluation', as 'every'")));
  EXPECT_THAT(of_stage({key("save_steps", 16, 100)}), ElementsAre(EndsWith("checkpoint = { every = ... }")));
  const auto recipe = [](const char* name) { return mistakes_of(small_recipe({small_stage()}, {key(name, 4, 1)})); };
  for (const char* name : {"flash_attn", "attn_implementation"})
    EXPECT_THAT(recipe(name), ElementsAre(HasSubstr("kernels = { attention"))) << name;
  EXPECT_THAT(recipe("quantization_bit"), ElementsAre(HasSubstr("export --quantize int4")));
  EXPECT_THAT(mistakes_of(small_recipe(), {"lr=10"}), ElementsAre(EndsWith("--set stages.*.optimizer.lr=...")));
}

TEST(Mistakes, EpochsUnderAnotherNameAreALength) {
  auto copy = std::make_shared<Table>(*as_table(small_stage("align")));
  for (auto& [name, field] : copy->fields)
    if (name == "samples") name = "num_train_epochs";
  EXPECT_THAT(mistakes_of(small_recipe({table_value(copy)})),
              ElementsAre("r.lua:14: stages.align.num_train_epochs: unknown key 'num_train_epochs'\n  it is called "
                          "'epochs' here"));
}

TEST(Mistakes, AnEntryInPlaceOfItsTableSaysHowToWriteIt) {
  using testing::EndsWith;
  EXPECT_THAT(of_stage({key("data", 11, "x/*.tar")}), ElementsAre(EndsWith("\n  write fvlm.mix { \"x/*.tar\" }")));
  EXPECT_THAT(of_stage({key("evaluation", 16, table(16, "evaluation", {}, {}, {value(16, "x")}))}),
              ElementsAre(EndsWith("\n  write { fvlm.evaluation ... }")));
  const auto data = key("data", 17, table(17, "mix", {}, {value(17, "a.tar")}));
  EXPECT_THAT(of_stage({key("evaluation", 16, table(16, "", {key("every", 16, 100), data}))}),
              ElementsAre(testing::HasSubstr("--set stages.align.evaluation.sets.NAME.data=..., or "
                                             "stages.align.evaluation.sets.*.data for all")));
}

TEST(Mistakes, RemovedKeyIsNamedAsRemoved) {
  const auto speed = key("speed", 4, table(4, "", {key("overlap_vision", 5, false)}));
  const std::string what = "speed.overlap_vision: was removed: it was 1 to 3 % slower wherever it was measured\n"
                           "  remove it: it does not affect results";
  EXPECT_THAT(mistakes_of(small_recipe({small_stage()}, {speed})), ElementsAre("r.lua:5: " + what));
  EXPECT_THAT(mistakes_of(small_recipe(), {"speed.overlap_vision=true"}),
              ElementsAre("--set speed.overlap_vision=true: " + what));
}

TEST(Mistakes, MisspelledRequiredKeyIsOneMistake) {
  auto without_batch = [](const char* name) {
    auto stage = small_stage("align");
    auto copy = std::make_shared<Table>(*as_table(stage));
    std::erase_if(copy->fields, [](const auto& field) { return field.first == "batch"; });
    copy->fields.emplace_back(name, value(15, 32));
    return mistakes_of(small_recipe({table_value(copy)}));
  };
  EXPECT_THAT(without_batch("batchSize"),
              ElementsAre("r.lua:15: stages.align.batchSize: unknown key 'batchSize'\n  it is called 'batch' here"));
  EXPECT_THAT(without_batch("bacth"),
              ElementsAre("r.lua:15: stages.align.bacth: unknown key 'bacth'\n  did you mean 'batch'?"));
  EXPECT_EQ(without_batch("zebra").size(), 2u);
}

TEST(Mistakes, AMisspeltOptimizerIsOneMistake) {
  auto copy = std::make_shared<Table>(*as_table(small_stage("align")));
  for (auto& [name, field] : copy->fields)
    if (name == "optimizer") name = "optimiser";
  EXPECT_THAT(mistakes_of(small_recipe({table_value(copy)})),
              ElementsAre("r.lua:13: stages.align.optimiser: unknown key 'optimiser'\n  did you mean 'optimizer'?"));
}

TEST(Mistakes, AWarmupInStepsIsToldThatItIsAShare) {
  EXPECT_THAT(of_stage({key("schedule", 16, table(16, "cosine", {key("warmup", 17, 100)}))}),
              ElementsAre("r.lua:17: stages.align.schedule.warmup: expected a number from 0 to 1, got the number 100\n"
                          "  it is a fraction of the stage's steps: warmup = 0.01 is 100 of 10,000 steps"));
}

TEST(Mistakes, ABatchByMemoryIsToldOfPacking) {
  EXPECT_THAT(
      of_stage({key("batch", 16, "auto")}),
      ElementsAre("r.lua:16: stages.align.batch: expected an integer of at least 1 or a table { samples, tokens, "
                  "frames }, got the string \"auto\"\n"
                  "  it decides what is learned; for packs as large as memory allows: packing = { tokens = "
                  "\"memory\" }"));
}

TEST(Mistakes, AKeyOfAStageOrASourceSaysWhereItGoes) {
  EXPECT_THAT(
      mistakes_of(small_recipe(), {"samples=10"}),
      ElementsAre("--set samples=10: samples: unknown key 'samples'\n  each of the stages has its own: fvlm.stage "
                  "\"name\" { samples = ... }, and on the command line --set stages.NAME.samples=..., or "
                  "stages.*.samples for all"));
  EXPECT_THAT(
      of_stage({key("data", 11, table(11, "mix", {key("weight", 11, 0.5)}, {value(11, "a.tar")}))}),
      ElementsAre("r.lua:11: stages.align.data.weight: unknown key 'weight'\n  each of the sources has its own: "
                  "write it into the table of that entry, { ..., weight = ... }"));
}

TEST(Mistakes, ATildeIsNotExpanded) {
  const Value model = table(3, "model", {key("vision", 3, "~/weights/v"), key("decoder", 3, "weights/~d")});
  EXPECT_THAT(mistakes_of(small_recipe({small_stage()}, {key("model", 3, model)})),
              ElementsAre(testing::StartsWith("r.lua:3: model.vision: '~/weights/v': a recipe does not expand '~'\n")));
}

TEST(Mistakes, WorkersHaveAnUpperBound) {
  EXPECT_THAT(
      mistakes_of(small_recipe(), {"loader.workers=1000000"}),
      ElementsAre(testing::HasSubstr("loader.workers: expected an integer from 1 to 1024, got the number 1000000")));
}

TEST(Mistakes, ShortFormThatFitsNoFieldIsOneMistake) {
  EXPECT_THAT(mistakes_of(small_recipe({small_stage()}, {key("speed", 4, "fast")})),
              ElementsAre("r.lua:4: speed: expected true or false, or a table { graphs, overlap_copies, "
                          "coarse_in_tower, skip_last_patches, ... }, got the string \"fast\""));
  EXPECT_THAT(of_stage({key("batch", 15, "32")}),
              ElementsAre("r.lua:15: stages.align.batch: expected an integer of at least 1 or a table { samples, "
                          "tokens, frames }, got the string \"32\"\n  write the number without quotes: 32"));
}

TEST(Mistakes, RecognizesAKindInQuotes) {
  EXPECT_THAT(of_stage({key("optimizer", 13, "adamW")}),
              ElementsAre("r.lua:13: stages.align.optimizer: expected fvlm.adamw { }, fvlm.muon { } or fvlm.optimizer "
                          "{ }, got the string \"adamW\"\n  did you mean fvlm.adamw { }?"));
}

TEST(Mistakes, LrAndWeightDecayAreNoOptionsOfAnAlgorithm) {
  const auto options = [](const char* name) {
    return of_stage(
        {key("optimizer", 13,
             table(13, "optimizer", {key("lr", 13, 1e-3), key("options", 14, table(14, "", {key(name, 15, 0.1)}))}, {},
                   {value(13, "lion")}))});
  };
  EXPECT_THAT(
      options("lr"),
      ElementsAre("r.lua:15: stages.align.optimizer.options.lr: `lr` is not an option of the algorithm\n  write "
                  "it outside of `options`: it may differ by parameter group"));
  EXPECT_THAT(options("weight_decay"), testing::SizeIs(1));
  EXPECT_THAT(options("beta1"), testing::IsEmpty());
}

TEST(Mistakes, ComputedValueSaysWhatToSet) {
  EXPECT_THAT(
      of_stage({key("steps", 15, 100)}),
      ElementsAre("r.lua:15: stages.align.steps: is computed and cannot be set\n  set 'samples' instead; "
                  "this is samples / batch, rounded up; absent where batches are limited by tokens or frames."));
}

TEST(Mistakes, WrongTypeSaysWhatWasExpectedAndGot) {
  EXPECT_THAT(
      of_stage({key("samples", 14, "many")}),
      ElementsAre("r.lua:14: stages.align.samples: expected an integer of at least 1, got the string \"many\""));
  EXPECT_THAT(of_stage({key("samples", 14, 0.5)}),
              ElementsAre("r.lua:14: stages.align.samples: expected an integer of at least 1, got the number 0.5"));
  EXPECT_THAT(of_stage({key("quantization_aware", 16, 1)}),
              ElementsAre("r.lua:16: stages.align.quantization_aware: expected true or false, got the number 1"));
  EXPECT_THAT(
      of_stage({key("optimizer", 13, table(13, "cosine", {}))}),
      ElementsAre("r.lua:13: stages.align.optimizer: expected fvlm.adamw { }, fvlm.muon { } or fvlm.optimizer { }, "
                  "got fvlm.cosine { }"));
  EXPECT_THAT(of_stage({key("data", 11, value(11, FunctionId{0}))}),
              ElementsAre("r.lua:11: stages.align.data: expected fvlm.mix { }, got a function"));
}

TEST(Mistakes, OutOfRange) {
  EXPECT_THAT(of_stage({key("samples", 14, 0)}),
              ElementsAre("r.lua:14: stages.align.samples: expected an integer of at least 1, got the number 0"));
  EXPECT_THAT(of_stage({key("schedule", 16, table(16, "cosine", {key("warmup", 17, 3)}))}),
              ElementsAre("r.lua:17: stages.align.schedule.warmup: expected a number from 0 to 1, got the number 3\n"
                          "  it is a fraction of the stage's steps: warmup = 0.01 is 100 of 10,000 steps"));
  auto betas = table(13, "", {}, {value(13, 0.9), value(13, 1.0)});
  EXPECT_THAT(
      of_stage({optimizer({key("lr", 13, 1e-3), key("betas", 13, betas)})}),
      ElementsAre(
          "r.lua:13: stages.align.optimizer.betas[2]: expected a number of at least 0 and below 1, got the number 1"));
  EXPECT_THAT(of_stage({optimizer({key("lr", 13, std::numeric_limits<double>::quiet_NaN())})}),
              ElementsAre("r.lua:13: stages.align.optimizer.lr: expected a number above 0, got the number nan"));
}

TEST(Mistakes, OneOfSeveralWords) {
  EXPECT_THAT(
      mistakes_of(small_recipe({small_stage()}, {key("precision", 4, "bf1")})),
      ElementsAre(
          "r.lua:4: precision: expected \"bf16\", \"fp8\", \"fp16\", \"tf32\" or \"fp32\", got the string \"bf1\"\n"
          "  did you mean \"bf16\"?"));
}

TEST(Mistakes, MissingKeysAreReportedAtTheTable) {
  EXPECT_THAT(
      mistakes_of(table(1, "recipe", {}, {})),
      ElementsAre("r.lua:1: 'name' is missing: a name of letters, digits, '_', '-' and '.'\n  Name of the run folder.",
                  "r.lua:1: 'model' is missing: fvlm.model { }\n  The model.",
                  "r.lua:1: 'stages' is missing: a list (not an empty one) of fvlm.stage { }\n"
                  "  The stages, in the order they run."));
}

TEST(Mistakes, ExplicitNilIsNoSilentDefault) {
  auto made = std::make_shared<Table>();
  made->constructor = "adamw";
  made->origin = {"r.lua", 13};
  made->fields = {{"lr", value(13, 1e-3)}};
  made->nils = {{"eps", {"r.lua", 14}}};
  Value adamw{std::shared_ptr<const Table>(made), made->origin};
  EXPECT_THAT(of_stage({key("optimizer", 13, adamw)}),
              ElementsAre("r.lua:14: stages.align.optimizer.eps: expected a number above 0, got nil\n"
                          "  is the variable misspelled? if nil is intended, write 'or nil' after it"));
}

TEST(Mistakes, ReportsAllAtOnceInLineOrder) {
  auto stage = small_stage("align", {key("samples", 14, -1), key("bacth", 15, 32), optimizer({key("lr", 13, 0)})});
  EXPECT_THAT(mistakes_of(small_recipe({stage}, {key("sede", 4, 1)})),
              ElementsAre("r.lua:4: sede: unknown key 'sede'\n  did you mean 'seed'?",
                          "r.lua:13: stages.align.optimizer.lr: expected a number above 0, got the number 0",
                          "r.lua:14: stages.align.samples: expected an integer of at least 1, got the number -1",
                          "r.lua:15: stages.align.bacth: unknown key 'bacth'\n  did you mean 'batch'?"));
}

TEST(Mistakes, ErrorHoldsOneOrAllOfThem) {
  Mistakes one, two;
  one.add({{"r.lua", 3}, "seed", "wrong", "do this"});
  two = one;
  two.add({{"r.lua", 2}, "name", "bad", ""});
  try {
    one.raise();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.text(), "r.lua:3: seed: wrong\n  do this");
    EXPECT_EQ(error.exit_code(), 3);
  }
  try {
    two.raise();
    FAIL();
  } catch (const RecipeError& error) {
    EXPECT_EQ(error.text(), "r.lua:2: name: bad\nr.lua:3: seed: wrong\n  do this\n2 mistakes");
    EXPECT_EQ(error.mistakes().size(), 2u);
  }
}

TEST(Mistakes, TextThatJsonCannotHold) {
  for (const char* bad : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"})
    EXPECT_EQ(
        mistakes_of(small_recipe({small_stage()},
                                 {key("model", 3, table(3, "model", {key("vision", 3, bad), key("decoder", 3, "d")}))}))
            .size(),
        1u);
  EXPECT_THAT(mistakes_of(small_recipe(
                  {small_stage()},
                  {key("model", 3, table(3, "model", {key("vision", 3, "poids/é/𝄞"), key("decoder", 3, "d")}))})),
              IsEmpty());
}

TEST(Mistakes, NameIsSafeAsAFolder) {
  for (const char* bad : {"", "..", "a/b", ".hidden", "a b", "-x"})
    EXPECT_EQ(mistakes_of(small_recipe({small_stage()}, {key("name", 2, bad)})).size(), 1u) << bad;
  EXPECT_EQ(mistakes_of(small_recipe({small_stage("a.b")})).size(), 1u);
}
