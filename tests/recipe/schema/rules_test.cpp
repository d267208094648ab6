// How the parts of a recipe fit together.
#include "small_recipe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm::recipe;
using namespace fvlm::recipe::build;
using testing::ElementsAre;
using testing::IsEmpty;

namespace {

Key mix(std::vector<Value> sources, std::vector<Key> keys = {}) {
  return key("data", 11, table(11, "mix", std::move(keys), std::move(sources)));
}

Key rates(std::vector<Key> keys) {
  return key("optimizer", 13, table(13, "adamw", {key("lr", 13, table(13, "", std::move(keys)))}));
}

} // namespace

TEST(Rules, StageNamesAreUnique) {
  EXPECT_THAT(mistakes_of(small_recipe({small_stage("a"), small_stage("a")})),
              ElementsAre("r.lua:10: stages.a: the name 'a' is used twice\n  give each a unique name"));
}

TEST(Rules, ABatchIsNoMoreThanTheStagesSamples) {
  EXPECT_THAT(of_stage({key("samples", 14, 31)}),
              ElementsAre("r.lua:15: stages.align.batch: a batch of 32 samples exceeds the 31 samples of the "
                          "stage\n  use batch = 31, or more samples"));
  EXPECT_THAT(of_stage({key("samples", 14, 32)}), IsEmpty());
}

namespace {

// A model of bytes with so many decoders.
Key latents_of(int decoders) {
  std::vector<Key> keys = {key("vision", 3, table(3, "bytes", {})), key("decoder", 3, "weights/d"),
                           key("connector", 3, table(3, "byte_latents", {}))};
  std::vector<Value> further;
  for (int i = 1; i < decoders; ++i) further.push_back(value(4, "weights/other"));
  if (!further.empty()) keys.push_back(key("decoders", 4, table(4, "", {}, std::move(further))));
  return key("model", 3, table(3, "model", std::move(keys)));
}

Key texts_of(const char* decoder) {
  return key("decoders", 11, table(11, "", {key(decoder, 11, table(11, "", {key("system", 11, "")}))}));
}

} // namespace

TEST(Rules, AMixKnowsTheFurtherDecodersOfTheModel) {
  const auto mistakes = [](int decoders, const char* name) {
    return of_stage({mix({value(11, "a.tar")}, {texts_of(name)})}, {latents_of(decoders)});
  };
  EXPECT_THAT(mistakes(2, "decoder2"), IsEmpty());
  EXPECT_THAT(mistakes(1, "decoder2"),
              ElementsAre("r.lua:11: stages.align.data.decoders.decoder2: the model has no further "
                          "decoder 'decoder2'\n  add it to `decoders` of the model"));
  EXPECT_THAT(mistakes(3, "decoder"),
              ElementsAre("r.lua:11: stages.align.data.decoders.decoder: the model has no further decoder 'decoder'\n"
                          "  use decoder2 or decoder3; what `decoder` reads is in the mix itself"));
}

TEST(Rules, SeveralDecodersHaveNeitherPairsNorOneTeacher) {
  const auto mistakes = [](Value objective, std::vector<Key> more = {}) {
    more.push_back(key("objective", 12, std::move(objective)));
    return of_stage(more, {latents_of(2)});
  };
  EXPECT_THAT(mistakes(table(12, "next_token", {key("on", 12, "answer")})), IsEmpty());
  EXPECT_THAT(mistakes(table(12, "dpo", {})),
              ElementsAre("r.lua:12: stages.align.objective[1]: fvlm.dpo is for models with one decoder\n"
                          "  remove the term, or `decoders` of the model"));
  EXPECT_THAT(
      mistakes(table(12, "kl", {key("teacher", 12, "t")})),
      ElementsAre("r.lua:12: stages.align.objective[1].teacher: one teacher cannot be compared with several decoders\n"
                  "  use reads = \"teacher_prompt\" without `teacher`: each decoder is its own teacher"));
}

TEST(Rules, QuantizationIsForStagesThatTrainThroughIt) {
  EXPECT_THAT(of_stage({}, {key("quantization", 7, "int8")}),
              ElementsAre("r.lua:7: quantization: no stage is quantization_aware, so nothing would train for "
                          "it\n  set quantization_aware = true in a stage, or remove it: `export --quantize` needs no "
                          "recipe"));
  EXPECT_THAT(of_stage({key("quantization_aware", 16, true)}, {key("quantization", 7, "int8")}), IsEmpty());
}

TEST(Rules, OnlyWhatIsTimedCanBeMeasured) {
  const auto kernels = [](const char* kind) { return key("kernels", 5, table(5, "", {key(kind, 6, "measure")})); };
  EXPECT_THAT(of_stage({}, {kernels("attention")}), IsEmpty());
  for (const std::string kind : {"optimizer", "packer", "quantizer", "video"})
    EXPECT_THAT(of_stage({}, {kernels(kind.c_str())}),
                ElementsAre("r.lua:6: kernels." + kind + ": '" + kind +
                            "' cannot be timed\n  use \"auto\" instead of \"measure\""));
  Reader reader;
  const fvlm::plan::Plan frozen = freeze(small_recipe({small_stage()}, {key("kernels", 5, "measure")}), {}, reader);
  EXPECT_FALSE(reader.mistakes.any()) << "one word for every kind";
  EXPECT_EQ(frozen.kernels["attention"], fvlm::plan::BackendPreferences{"measure"});
  EXPECT_EQ(frozen.kernels["optimizer"], fvlm::plan::BackendPreferences{"auto"}) << "the Plan says what happens";
}

TEST(Rules, FromNamesAnEarlierStageTheModelOrAPath) {
  auto from = [](const char* text) {
    return mistakes_of(small_recipe({small_stage("align"), small_stage("next", {key("from", 16, text)})}));
  };
  EXPECT_THAT(from("align"), IsEmpty());
  EXPECT_THAT(from("model"), IsEmpty());
  EXPECT_THAT(from("runs/a/align/step-000100"), IsEmpty());
  EXPECT_THAT(from("aling"), ElementsAre("r.lua:16: stages.next.from: there is no earlier stage 'aling'\n"
                                         "  did you mean 'align'? a folder is named with a '/', as in \"./aling\""));
  EXPECT_THAT(from("m"),
              ElementsAre("r.lua:16: stages.next.from: there is no earlier stage 'm'\n"
                          "  use an earlier stage or \"model\"; a folder is named with a '/', as in \"./m\""));
  EXPECT_THAT(from("next"),
              ElementsAre("r.lua:16: stages.next.from: the stage 'next' comes after this one\n"
                          "  use an earlier stage or \"model\"; a folder is named with a '/', as in \"./next\""));
  EXPECT_EQ(mistakes_of(small_recipe({small_stage("model")})).size(), 1u);
}

TEST(Rules, ATeacherIsAnEarlierStageOrAPath) {
  const auto teacher = [](const char* text) {
    return mistakes_of(small_recipe(
        {small_stage("align"), small_stage("next", {key("objective", 16, table(16, "kl", {key("teacher", 16, text)}))}),
         small_stage("last")}));
  };
  EXPECT_THAT(teacher("align"), IsEmpty());
  EXPECT_THAT(teacher("models/large"), IsEmpty());
  EXPECT_THAT(teacher("large"), IsEmpty());
  for (const char* name : {"next", "last"})
    EXPECT_THAT(teacher(name), ElementsAre(fmt::format(
                                   "r.lua:16: stages.next.objective[1].teacher: the stage '{0}' is not earlier than "
                                   "this one\n  use an earlier stage; a folder is named with a '/', as in \"./{0}\"",
                                   name)));
}

TEST(Rules, GroupsInRatesDecayAndFreezeExist) {
  EXPECT_THAT(of_stage({rates({key("connector", 13, 1e-3), key("visoin", 14, 1e-5), key("default", 15, 1e-5)})}),
              ElementsAre("r.lua:14: stages.align.optimizer.lr.visoin: there is no parameter group 'visoin'\n  did you "
                          "mean 'vision'?"));
  EXPECT_THAT(
      of_stage({key("freeze", 16, "decodr")}),
      ElementsAre("r.lua:16: stages.align.freeze[1]: there is no parameter group 'decodr'\n  did you mean 'decoder'?"));
}

TEST(Rules, EveryTrainedGroupHasARate) {
  EXPECT_THAT(of_stage({rates({key("connector", 13, 1e-3), key("vision", 13, 1e-3)})}),
              ElementsAre("r.lua:13: stages.align.optimizer.lr: the group 'decoder' has no learning rate\n"
                          "  add it (or `default`), or freeze = { \"decoder\" }"));
}

TEST(Rules, SomethingTrains) {
  auto all = table(16, "", {}, {value(16, "vision"), value(16, "decoder"), value(16, "connector")});
  EXPECT_THAT(of_stage({key("freeze", 16, all)}),
              ElementsAre("r.lua:16: stages.align.freeze: every group is frozen, nothing is left to train"));
}

TEST(Rules, SourceNamesShardsOfOneKind) {
  EXPECT_THAT(of_stage({mix({table(12, "", {key("weight", 12, 1)})})}),
              ElementsAre("r.lua:12: stages.align.data.sources[1]: no shards: the source is empty\n"
                          "  name files: { \"clips/{0000..0999}.tar\" } or { text = \"chat/*.tar\" }"));
  EXPECT_THAT(
      of_stage({mix({table(12, "", {key("text", 12, "t.tar")}, {value(12, "a.tar")})})}),
      ElementsAre(
          "r.lua:12: stages.align.data.sources[1].text: a source has shards with frames or text-only shards, not both\n"
          "  split it into two sources"));
  EXPECT_THAT(of_stage({mix({})}), ElementsAre("r.lua:11: stages.align.data: 'sources' is missing: a list (not an "
                                               "empty one) of a path or a table { shards, text, weight, epochs, ... "
                                               "}\n  The sources, each shuffled on its own."));
}

TEST(Rules, WeightsAreNeverAllZero) {
  EXPECT_THAT(of_stage({mix({table(12, "", {key("weight", 12, 0)}, {value(12, "a.tar")})})}),
              ElementsAre("r.lua:11: stages.align.data: every weight is 0 at progress 0\n"
                          "  give at least one source a weight above 0 (with text_ratio: one of each kind)"));
  auto fading =
      table(12, "", {key("weight", 12, table(12, "", {}, {value(12, 1), value(12, 0)}))}, {value(12, "a.tar")});
  EXPECT_EQ(of_stage({mix({fading})}).size(), 1u); // nothing at the very end
}

TEST(Rules, TextRatioNeedsSourcesOfBothKinds) {
  EXPECT_THAT(of_stage({mix({value(11, "a.tar")}, {key("text_ratio", 12, 0.1)})}),
              testing::Contains(
                  "r.lua:12: stages.align.data.text_ratio: text_ratio is above 0, but there is no text-only source\n"
                  "  add { text = \"chat/*.tar\" }"));
}

TEST(Rules, FieldMapsNamePartsOfASample) {
  auto fields = table(12, "", {key("usr", 12, "question")});
  EXPECT_THAT(
      of_stage({mix({table(12, "", {key("fields", 12, fields)}, {value(12, "a.tar")})})}),
      ElementsAre(
          "r.lua:12: stages.align.data.sources[1].fields.usr: a sample has no part 'usr'\n  did you mean 'user'?"));
}

TEST(Rules, DpoRefusesDataDeclaredWithoutPairs) {
  auto fields = table(12, "", {key("assistant", 12, "answer")});
  EXPECT_THAT(
      of_stage({mix({table(12, "", {key("fields", 12, fields)}, {value(12, "a.tar")})}),
                key("objective", 14, table(14, "dpo", {}))}),
      ElementsAre(
          "r.lua:12: stages.align.data.sources[1].fields: fvlm.dpo needs pairs of answers, and these fields have none\n"
          "  map chosen_assistant and rejected_assistant"));
}

TEST(Rules, PackHoldsTheLongestSample) {
  auto packing = [](int frames, int tokens) {
    return key("packing", 16, table(16, "", {key("frames", 16, frames), key("tokens", 17, tokens)}));
  };
  EXPECT_THAT(of_stage({packing(64, 64 + 1024)}), IsEmpty());
  EXPECT_THAT(
      of_stage({packing(63, 1087)}),
      ElementsAre(
          "r.lua:16: stages.align.packing.frames: a pack of 63 frames cannot hold a sample of 64\n"
          "  raise it, or lower data.max_frames",
          "r.lua:17: stages.align.packing.tokens: a pack of 1087 tokens cannot hold a sample of 1088 "
          "(1 x 64 frames and 1024 text tokens)\n  raise it, or lower data.max_text_tokens or data.max_frames"));
  EXPECT_EQ(of_stage({packing(64, 64 + 1024), key("objective", 12, table(12, "dpo", {}))}).size(), 1u); // two answers
}

TEST(Rules, BatchHasALimit) {
  EXPECT_THAT(of_stage({key("batch", 15, table(15, "", {}))}),
              ElementsAre("r.lua:15: stages.align.batch: a batch needs a limit\n  batch = 32, or { tokens = 65536 }"));
}

TEST(Rules, FramesEndNoBatchOfTexts) {
  auto texts = mix({table(11, "", {key("text", 11, "a.tar")})});
  auto batch = [](std::vector<Key> limits) { return key("batch", 15, table(15, "", std::move(limits))); };
  EXPECT_THAT(
      of_stage({texts, batch({key("frames", 15, 64)})}),
      ElementsAre("r.lua:15: stages.align.batch: its data have no frames, so that a limit of frames alone ends no "
                  "batch\n  limit samples or tokens"));
  EXPECT_THAT(of_stage({texts, batch({key("frames", 15, 64), key("tokens", 15, 4096)})}), IsEmpty());
}

TEST(Rules, PreferenceListsEndWithAuto) {
  auto preferences = table(4, "", {}, {value(4, "auto"), value(4, "cudnn")});
  EXPECT_THAT(of_stage({}, {key("kernels", 4, table(4, "", {key("attention", 4, preferences)}))}),
              ElementsAre("r.lua:4: kernels.attention[1]: \"auto\" must be last\n  it considers every backend, so "
                          "later entries have no effect"));
  EXPECT_THAT(of_stage({}, {key("kernels", 4, table(4, "", {key("atention", 4, "cudnn")}))}),
              ElementsAre("r.lua:4: kernels.atention: unknown key 'atention'\n  did you mean 'attention'?"));
}

TEST(Rules, QuantizationAwareNeedsAQuantization) {
  EXPECT_EQ(of_stage({key("quantization_aware", 16, true)}).size(), 1u);
  EXPECT_THAT(of_stage({key("quantization_aware", 16, true)}, {key("quantization", 4, "int8")}), IsEmpty());
}

TEST(Rules, GradientsAreBf16OnlyIfAllThatComputesThemIs) {
  EXPECT_THAT(of_stage({}, {key("gradients", 4, "bf16")}), IsEmpty());
  EXPECT_THAT(of_stage({}, {key("gradients", 4, "bf16"), key("precision", 5, "fp32")}),
              ElementsAre("r.lua:4: gradients: bf16 gradients need precision = \"bf16\"\n  remove `gradients`"));
  EXPECT_THAT(
      of_stage({key("quantization_aware", 16, true)}, {key("quantization", 4, "int8"), key("gradients", 4, "bf16")}),
      IsEmpty());
}

TEST(Rules, Fp8IsForWeightsThatTrainAsTheyAre) {
  EXPECT_THAT(of_stage({}, {key("precision", 4, "fp8")}), IsEmpty());
  EXPECT_THAT(of_stage({}, {key("precision", 4, "fp8"), key("gradients", 5, "bf16")}), IsEmpty());
  EXPECT_THAT(
      of_stage({key("quantization_aware", 16, true)}, {key("precision", 4, "fp8"), key("quantization", 5, "int8")}),
      ElementsAre("r.lua:4: precision: \"fp8\" together with quantization-aware training is not supported\n  "
                  "use \"bf16\""));
}

TEST(Rules, BestCheckpointUsesAnExistingSet) {
  auto set = table(17, "evaluation", {key("data", 17, table(17, "mix", {}, {value(17, "v.tar")}))}, {},
                   {value(17, "heldout")});
  auto best = [&](const char* name) {
    return of_stage({key("evaluation", 17, table(17, "", {}, {set}))},
                    {key("checkpoint", 4, table(4, "", {key("best_by", 4, name)}))});
  };
  EXPECT_THAT(best("heldout"), IsEmpty());
  EXPECT_THAT(
      best("hold_out"),
      ElementsAre("r.lua:4: checkpoint.best_by: no stage has an evaluation set 'hold_out'\n  did you mean 'heldout'?"));
}

TEST(Rules, LimitsOfImagesGoWithEachOtherAndWithTheEncoder) {
  auto limits = [](Value vision, std::vector<Key> keys) {
    keys.push_back(key("vision", 4, std::move(vision)));
    keys.push_back(key("decoder", 5, "weights/d"));
    return of_stage({}, {key("model", 3, table(3, "model", std::move(keys)))});
  };
  const Value folder = value(4, "weights/v"),
              fresh = table(4, "clip", {key("width", 4, 64), key("layers", 4, 2), key("heads", 4, 4)});
  EXPECT_THAT(limits(folder, {key("min_pixels", 6, 784), key("max_pixels", 7, 784)}), IsEmpty());
  EXPECT_THAT(limits(folder, {key("min_pixels", 6, 785), key("max_pixels", 7, 784)}),
              ElementsAre("r.lua:6: model.min_pixels: 785 is more than max_pixels = 784"));
  EXPECT_THAT(limits(folder, {key("video_min_pixels", 6, 785), key("video_max_pixels", 7, 784)}),
              ElementsAre("r.lua:6: model.video_min_pixels: 785 is more than video_max_pixels = 784"));
  EXPECT_THAT(limits(folder, {key("max_pixels", 6, 0)}),
              ElementsAre("r.lua:6: model.max_pixels: expected an integer from 1 to 67108864, got the number 0"));
  EXPECT_THAT(limits(fresh, {key("max_pixels", 6, 784)}),
              ElementsAre("r.lua:6: model.max_pixels: a new encoder has no image processor with such a limit\n"
                          "  image_size is the edge of the frames that it reads"));
}

TEST(Rules, FreshTowersHaveSizesThatFit) {
  auto model = [](int heads, int image, int positions) {
    auto vision =
        table(4, "dinov2", {key("width", 4, 64), key("layers", 4, 2), key("heads", 4, heads), key("patch_size", 4, 8)});
    auto decoder = table(5, "llama",
                         {key("width", 5, 64), key("layers", 5, 2), key("heads", 5, 4), key("tokenizer", 5, "t"),
                          key("max_positions", 5, positions)});
    return key("model", 3,
               table(3, "model", {key("vision", 4, vision), key("decoder", 5, decoder), key("image_size", 6, image)}));
  };
  EXPECT_THAT(of_stage({}, {model(4, 32, 2048)}), IsEmpty());
  EXPECT_THAT(of_stage({}, {model(5, 32, 2048)}),
              ElementsAre("r.lua:4: model.vision.heads: a width of 64 is not divisible by 5 heads"));
  EXPECT_THAT(of_stage({}, {model(4, 33, 2048)}),
              ElementsAre("r.lua:6: model.image_size: 33 pixels are not a multiple of the patch size 8"));
  EXPECT_THAT(of_stage({}, {model(4, 32, 512)}),
              ElementsAre("r.lua:11: stages.align.data.max_text_tokens: 64 frames and 1024 text tokens exceed "
                          "the decoder's 512 positions\n  lower data.max_text_tokens or data.max_frames"));
  auto layers =
      table(16, "", {key("decoder", 16, table(16, "", {key("layers", 16, table(16, "", {}, {value(16, 2)}))}))});
  EXPECT_THAT(
      of_stage({key("activation_checkpointing", 16, layers)}, {model(4, 32, 2048)}),
      ElementsAre("r.lua:16: stages.align.activation_checkpointing.decoder: layer 2 is out of range: the tower has "
                  "2, counted from 0"));
}

TEST(Rules, ApplyOnlyToValuesReadWithoutAMistake) {
  EXPECT_EQ(of_stage({rates({key("connector", 13, "fast")})}).size(), 1u); // not also: no rate for vision, decoder
}

TEST(Rules, DocumentsAreTextWhoseRowsAreCounted) {
  const auto stream = [](std::vector<Key> source, std::vector<Key> more = {}) {
    more.push_back(mix({table(11, "", std::move(source))}, {key("documents", 11, "joined")}));
    return of_stage(more);
  };
  EXPECT_THAT(stream({key("text", 11, "a.tar")}), IsEmpty());
  EXPECT_THAT(
      stream({key("shards", 11, "a.tar")}),
      ElementsAre("r.lua:11: stages.align.data.sources[1]: a stream of documents has text-only sources\n  write "
                  "{ text = \"chat/*.tar\" }"));
  EXPECT_THAT(
      stream({key("text", 11, "a.tar"), key("epochs", 11, 1)}),
      ElementsAre("r.lua:11: stages.align.data.sources[1].epochs: documents are cut into rows, whose number is "
                  "not known beforehand\n  leave out `epochs`, and set the stage's `samples` to a number of rows"));
  EXPECT_THAT(stream({key("text", 11, "a.tar")}, {key("epochs", 14, 1)}),
              ElementsAre("r.lua:14: stages.align.epochs: documents are cut into rows, whose number is not known "
                          "beforehand\n  set `samples` to a number of rows"));
  EXPECT_THAT(stream({key("text", 11, "a.tar")}, {key("objective", 12, table(12, "dpo", {}))}),
              ElementsAre("r.lua:11: stages.align.data.documents: fvlm.dpo needs pairs of answers, and documents have "
                          "none"));
}

TEST(Rules, MaskHistoryIsForTermsThatLearnAnswers) {
  const auto masked = [](std::vector<Key> term) {
    return of_stage({mix({value(11, "a.tar")}, {key("mask_history", 11, true)}),
                     key("objective", 12, table(12, "next_token", std::move(term)))});
  };
  EXPECT_THAT(masked({}), IsEmpty());
  EXPECT_THAT(masked({key("on", 12, "all")}),
              ElementsAre("r.lua:11: stages.align.data.mask_history: no term of the objective learns from the answers "
                          "of the data alone\n  leave it out, or use a term with on = \"answer\""));
}

TEST(Rules, AdamWNamesGroupsOfTheModel) {
  const auto adamw = [](const char* group) {
    auto own = table(13, "", {key(group, 13, table(13, "", {key("eps", 13, 1e-6)}))});
    return of_stage(
        {key("optimizer", 13, table(13, "adamw", {key("lr", 13, 1e-3), key("groups", 13, std::move(own))}))});
  };
  EXPECT_THAT(adamw("vision"), IsEmpty());
  EXPECT_THAT(adamw("heads"),
              ElementsAre(testing::HasSubstr("optimizer.groups.heads: there is no parameter group 'heads'")));
}

TEST(Rules, MuonNamesGroupsOfTheModel) {
  const auto muon = [](std::vector<Key> keys, std::vector<Key> others = {}) {
    others.push_back(key("lr", 13, 1e-3));
    keys.push_back(key("others", 13, table(13, "", std::move(others))));
    return of_stage({key("optimizer", 13, table(13, "muon", std::move(keys)))});
  };
  const auto rate = [](const char* group) { return key("lr", 13, table(13, "", {key(group, 13, 0.02)})); };
  EXPECT_THAT(muon({rate("decoder"), key("groups", 13, "decoder")}), IsEmpty()) << "the others need no rate of Muon's";
  EXPECT_THAT(muon({rate("decoder"), key("groups", 13, "decodr")}),
              testing::Contains(testing::HasSubstr("groups[1]: there is no parameter group 'decodr'")));
  EXPECT_THAT(muon({rate("default")}, {key("groups", 13, table(13, "", {key("heads", 13, table(13, "", {}))}))}),
              ElementsAre(testing::HasSubstr("optimizer.others.groups.heads: there is no parameter group 'heads'")));
}
