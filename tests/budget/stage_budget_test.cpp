// The largest pack of a stage, and its groups of parameters. The memory that its steps need: tests/train.
#include "budget/budget_text.h"
#include "budget/stage_budget.h"
#include "tiny_plan.h"

#include <gmock/gmock.h>

namespace fvlm::budget {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(LargestPack, of_a_small_batch_is_that_of_its_samples_frames_or_tokens) {
  struct Small {
    plan::Batch batch;
    bool open; // packing.frames
    int64_t frames, rows;
  };
  for (const Small& small :
       {Small{{.samples = 2}, false, 8, 64}, Small{{.tokens = 96}, false, 32, 96}, Small{{.tokens = 96}, true, 12, 96},
        Small{{.frames = 16}, false, 16, 512}, Small{{.samples = 2, .tokens = 96}, false, 8, 64}}) {
    plan::Plan plan = budget::plan();
    plan.stages[0].batch = small.batch;
    if (small.open) plan.stages[0].packing.frames.reset();
    std::vector<std::string> assumptions;
    const PackShape pack = largest_pack(plan.stages[0], 1, assumptions);
    EXPECT_EQ(pack.frames, small.frames);
    EXPECT_EQ(pack.rows, small.rows);
  }
}

TEST(LargestPack, says_what_is_assumed_where_the_data_decide) {
  plan::Plan open = plan();
  open.stages[0].packing.frames.reset();
  std::vector<std::string> assumptions, none;
  (void)largest_pack(open.stages[0], 1, assumptions);
  ASSERT_EQ(assumptions.size(), 1u);
  EXPECT_EQ(assumptions[0], "packing.frames is open: training takes it from the data; here 64, for samples of 4 "
                            "frames and 28 tokens");
  (void)largest_pack(plan().stages[0], 1, none);
  EXPECT_TRUE(none.empty());
}

TEST(GroupLines, CountTensorsAndShowLearningRates) {
  plan::Plan grouped = plan();
  grouped.model.groups = {{"queries", {"connector.q_*"}}};
  grouped.stages[0].freeze = {"decoder"};
  const auto lines = group_lines(grouped.model, grouped.stages[0], model());
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].name, "connector");
  EXPECT_EQ(lines[0].lr, 1e-3);
  EXPECT_EQ(lines[2].name, "decoder");
  EXPECT_FALSE(lines[2].trained);
  EXPECT_FALSE(lines[2].lr);
  EXPECT_EQ(lines[3].name, "queries");
  EXPECT_EQ(lines[3].tensors, 2);
  EXPECT_EQ(lines[3].parameters, 2 * 384);
  const std::string text = groups_text({{"align", lines}});
  EXPECT_THAT(text, HasSubstr("queries"));
  EXPECT_THAT(text, HasSubstr("frozen"));
}

TEST(GroupLines, RefusePatternsThatMatchNothingOrTwice) {
  plan::Plan grouped = plan();
  grouped.model.groups = {{"nothing", {"connector.nobody"}}};
  EXPECT_ANY_THROW(group_lines(grouped.model, grouped.stages[0], model()));
  grouped.model.groups = {{"one", {"connector.q_*"}}, {"two", {"*.q_static"}}};
  EXPECT_ANY_THROW(group_lines(grouped.model, grouped.stages[0], model()));
}

TEST(WithIndices, CountsFromTheLastLayer) {
  const auto names = parameter_names(model()); // an encoder of 4 layers and a decoder of 6
  const auto resolved = [&](const std::string& pattern) { return with_indices(std::vector{pattern}, names); };
  EXPECT_THAT(resolved("decoder.model.layers.-1.*"), ElementsAre("decoder.model.layers.5.*"));
  EXPECT_THAT(resolved("decoder.*.-6.mlp"), ElementsAre("decoder.model.layers.0.mlp"));
  EXPECT_THAT(resolved("*.-2.*"), ElementsAre("decoder.model.layers.4.*", "vision.encoder.layer.2.*"));
  EXPECT_THAT(resolved("*.layers.-1"), ElementsAre("decoder.model.layers.5"));
  for (const char* nowhere : {"decoder.model.layers.-7.*", "decoder.layers.-1.*"})
    EXPECT_THAT(resolved(nowhere), ElementsAre()) << nowhere;
  for (const char* plain : {"decoder.model.layers.5.*", "*", "decoder.model.layers.-0.*", "a.-b.*"})
    EXPECT_THAT(resolved(plain), ElementsAre(plain));
}

TEST(WithIndices, SelectsGroupsAndWhatIsQuantized) {
  const auto lines_of = [](const char* pattern) {
    plan::Plan grouped = plan();
    grouped.model.groups = {{"last", {pattern}}};
    return groups_text({{"align", group_lines(grouped.model, grouped.stages[0], model())}});
  };
  EXPECT_EQ(lines_of("decoder.model.layers.-1.*"), lines_of("decoder.model.layers.5.*"));
  EXPECT_ANY_THROW(lines_of("decoder.model.layers.-7.*"));
  const auto exported = [](std::vector<std::string> skip) {
    plan::Plan quantized = plan();
    quantized.quantization = {.skip = std::move(skip)};
    return exported_text(quantized, model());
  };
  EXPECT_EQ(exported({"decoder.model.layers.-1.*"}), exported({"decoder.model.layers.5.*"}));
  EXPECT_NE(exported({"decoder.model.layers.-1.*"}), exported({}));
  EXPECT_ANY_THROW(exported({"decoder.model.layers.-7.*"}));
}

} // namespace
} // namespace fvlm::budget
