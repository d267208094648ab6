// Answers that are said to be good or not: how they become pairs, and a stage that learns from them.
#include "base/error.h"
#include "small_run.h"
#include "train/judged_answers.h"

#include <fmt/format.h>

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Samples without frames, of which some cannot be used.
class FakeSource : public SampleSource {
 public:
  std::vector<Sample> samples;

  std::vector<int64_t> sizes() const override { return {std::ssize(samples)}; }
  int64_t frame_elements() const override { return 0; }
  Sample measure(const DrawnSample& drawn) const override {
    const Sample& sample = samples.at(static_cast<size_t>(drawn.sample));
    if (sample.texts.empty() && sample.dropped.empty()) throw Error(ErrorKind::data, "broken");
    return sample;
  }
  void decode(const DrawnSample&, const Sample&, std::span<float>) const override {}
  std::string place(const DrawnSample&) const override { return "fake.tar"; }
  std::string key(const DrawnSample&) const override { return "0"; }

  void add(std::vector<TokenId> ids, std::vector<uint8_t> mask, std::optional<bool> is_desirable = true) {
    Sample sample;
    sample.texts = {{std::move(ids), std::move(mask)}};
    sample.is_desirable = is_desirable;
    samples.push_back(std::move(sample));
  }
  Sample judged(int64_t number, int64_t most_tokens = 20) const {
    DrawnSample drawn;
    drawn.sample = number;
    return JudgedAnswers(*this, most_tokens).measure(drawn);
  }
};

TEST(JudgedAnswers, StandBesideTheAnswerOfTheSampleBehind) {
  FakeSource source;
  source.add({1, 2, 3, 4}, {0, 0, 1, 1}, false);
  source.add({5, 6}, {0, 1});
  const Sample first = source.judged(0), last = source.judged(1);
  EXPECT_EQ(first.is_desirable, false);
  ASSERT_EQ(first.texts.size(), 2);
  EXPECT_THAT(first.texts[0].ids, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(first.texts[1].ids, ElementsAre(1, 2, 6));
  EXPECT_THAT(first.texts[1].answer_mask, ElementsAre(0, 0, 1));
  EXPECT_THAT(last.texts[1].ids, ElementsAre(5, 3, 4)) << "behind the last comes the first";
}

TEST(JudgedAnswers, AreTheLastOfAConversation) {
  FakeSource source;
  source.add({1, 2, 3, 4}, {0, 1, 0, 1});
  EXPECT_THAT(source.judged(0).texts[0].answer_mask, ElementsAre(0, 0, 0, 1));
}

TEST(JudgedAnswers, StayWithinTheLongestText) {
  FakeSource source;
  source.add({1, 2, 3}, {0, 0, 1});
  source.add({5, 6, 7, 8}, {0, 1, 1, 1});
  EXPECT_THAT(source.judged(0, 4).texts[1].ids, ElementsAre(1, 2, 6, 7));
}

TEST(JudgedAnswers, StandBesideThemselvesWhereTheSampleBehindCannotBeUsed) {
  FakeSource source;
  source.add({1, 2}, {0, 1});
  source.samples.emplace_back();
  source.add({3, 4}, {0, 1});
  source.samples.emplace_back().dropped = "too long";
  EXPECT_THAT(source.judged(0).texts[1].ids, ElementsAre(1, 2));
  EXPECT_THAT(source.judged(2).texts[1].ids, ElementsAre(3, 4));
  EXPECT_EQ(source.judged(3).dropped, "too long");
}

TEST(JudgedAnswers, AreBrokenWithoutAJudgement) {
  FakeSource source;
  source.add({1, 2}, {0, 1}, std::nullopt);
  EXPECT_THAT([&] { source.judged(0); }, testing::ThrowsMessage<Error>(HasSubstr("is not said to be good or not")));
}

class JudgedRun : public SmallRun {
 protected:
  void SetUp() override {
    std::string lines;
    for (int i = 0; i < 24; ++i)
      lines += fmt::format(R"({{"prompt": "Which is number {}?", "completion": "{}.", "label": {}}})", i,
                           i % 3 ? "Red" : "Blue and green", i % 3 != 0) +
               "\n";
    write_file_atomic(folder("judged.jsonl"), lines);
    change_recipe("log_every = 2", "log_every = 1");
    change_recipe(
        R"(objective = fvlm.dpo { beta = 0.1 }, samples = 48,)",
        R"(objective = fvlm.kto { beta = 0.5, cache_reference = fvlm.arg("cached", "no") == "yes" }, samples = 48,)");
    run("start", {}, {.stage = "align"});
  }

  TrainReport judge(const std::string& name, bool cached, TrainRequest request = {}) {
    args_["cached"] = cached ? "yes" : "no";
    request.stage = "prefer";
    request.from = folder("start") / "align" / "step-000010";
    return run(name,
               {fmt::format(R"(stages.prefer.data.sources=[{{"text":["{}"]}}])", folder("judged.jsonl").string())},
               std::move(request));
  }
};

TEST_F(JudgedRun, LearnsAndResumesToEqualBits) {
  judge("whole", false);
  auto lines = metrics(folder("whole"));
  std::erase_if(lines, [](const auto& line) { return line["kind"] != "step"; });
  EXPECT_NEAR(lines.front()["loss"], 0.5, 1e-6) << "the model is its reference";
  EXPECT_LT(lines.back()["loss"], 0.5);
  EXPECT_GT(lines.back()["reward_margin"], 0);
  for (int part = 0; part < 8; ++part)
    if (!judge("parts", false, {.max_steps = 1}).stopped) break;
  expect_equal_runs("whole", "parts");
  judge("cached", true);
  expect_equal_runs("whole", "cached");
}

TEST_F(JudgedRun, StandsAloneAndNeedsJudgements) {
  const std::string two = R"(stages.prefer.objective=[{"kind":"kto"},{"kind":"next_token"}])",
                    documents = "stages.prefer.data.documents=joined",
                    texts = R"(stages.prefer.data.sources=[{"text":["a"]}])";
  const auto refusal = [&](const std::vector<std::string>& sets) {
    try {
      resolved(sets);
    } catch (const Error& error) {
      return error.text();
    }
    return std::string();
  };
  EXPECT_THAT(refusal({two}), HasSubstr("give it a stage of its own"));
  EXPECT_THAT(refusal({documents, texts}), HasSubstr("fvlm.kto needs judgements of answers, and documents have none"));
  try {
    run("pairs", {}, {.stage = "prefer", .from = folder("start") / "align" / "step-000010"});
    ADD_FAILURE() << "pairs were learnt";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("it has 2 answers, and the objective learns one"));
  }
}

} // namespace
} // namespace fvlm::train
