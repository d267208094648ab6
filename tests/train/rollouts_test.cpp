// Stages that learn from the rewards of the model's own answers.
#include "base/error.h"
#include "small_run.h"
#include "train/rewards.h"
#include "train/rollout_prompts.h"
#include "train/rollouts.h"
#include "train/step_memory.h"

#include <fstream>
#include <gmock/gmock.h>
#include <numeric>

namespace fvlm::train {
namespace {

using plan::Rollouts;
using testing::ElementsAre, testing::HasSubstr;

TEST(Advantages, AreTheDistanceFromTheMeanInStandardDeviations) {
  const auto found = advantages({1, 0, 0, 3}, Rollouts::Advantage::standardized);
  EXPECT_NEAR(found.deviation, 1.41421356, 1e-8); // of a sample: divided by n - 1
  EXPECT_NEAR(found.of_answers[0], 0, 1e-12);
  EXPECT_NEAR(found.of_answers[1], -1 / 1.41431356, 1e-8); // TRL adds 1e-4
  EXPECT_NEAR(found.of_answers[3], 2 / 1.41431356, 1e-8);
}

TEST(Advantages, AreZeroWhereAllAnswersEarnTheSame) {
  EXPECT_THAT(advantages({0.75, 0.75, 0.75}, Rollouts::Advantage::standardized).of_answers, ElementsAre(0, 0, 0));
}

TEST(Advantages, CenteredAreInTheUnitOfTheReward) {
  EXPECT_THAT(advantages({5, 1}, Rollouts::Advantage::centered).of_answers, ElementsAre(2, -2));
}

TEST(RewardsByMeasure, AreThoseOfEvaluations) {
  struct Settings final : Rollouts {};
  Settings settings;
  const std::vector<std::string> expected{"nothing", "ab cd"};
  const auto earned = [&](plan::AnswerMeasure measure, const std::string& text = "AB cdxx") {
    settings.reward = measure;
    return Rewards(settings, nullptr)
        .of({.prompt = "", .text = text, .expected = expected, .tokens = 3, .ended = true, .key = "", .source = ""});
  };
  using plan::AnswerMeasure;
  EXPECT_EQ(earned(AnswerMeasure::exact_match), 0);
  EXPECT_EQ(earned(AnswerMeasure::f1), 0.5);
  EXPECT_DOUBLE_EQ(earned(AnswerMeasure::anls), 1 - 2.0 / 7);
  EXPECT_EQ(earned(AnswerMeasure::rouge_l), 0.5);
  EXPECT_NEAR(earned(AnswerMeasure::character_accuracy), 1 - 4.0 / 5, 1e-12);
  EXPECT_EQ(earned(AnswerMeasure::vqa_accuracy), 0);
  EXPECT_EQ(earned(AnswerMeasure::relaxed_accuracy), 0);
  EXPECT_EQ(earned(AnswerMeasure::contains), 0);
  EXPECT_EQ(earned(AnswerMeasure::contains, "It is AB cd."), 1);
}

TEST(RewardsByMeasure, ReadNoThoughts) {
  struct Settings final : Rollouts {};
  Settings settings;
  settings.reward = plan::AnswerMeasure::exact_match;
  const std::vector<std::string> expected{"B"};
  const Rewards rewards(settings, nullptr);
  GivenAnswer answer{
      .prompt = "", .text = "<think>A or B.</think>\n\nB", .expected = expected, .key = "", .source = ""};
  EXPECT_EQ(rewards.of(answer), 0);
  answer.measured = "B";
  EXPECT_EQ(rewards.of(answer), 1);
}

class RolloutRun : public SmallRun {
 protected:
  static constexpr const char* of_pairs =
      R"(data = mix { { data .. "/pairs/*.tar" } }, objective = fvlm.dpo { beta = 0.1 }, samples = 48,
    evaluation = { fvlm.evaluation "pairs" { data = mix { { data .. "/heldout/pairs/*.tar" } }, measure = "preference" } },)";

  // The last stage learns from its answers to questions.
  void learn_from(const std::string& objective, const std::string& more = "samples = 160") const {
    change_recipe(of_pairs, "data = mix { { data .. \"/questions/*.tar\" } }, objective = " + objective + ", " + more);
  }

  std::vector<nlohmann::json> steps(const std::string& name) const {
    auto lines = metrics(folder(name));
    std::erase_if(lines, [](const auto& line) { return line["stage"] != "prefer" || line["kind"] != "step"; });
    return lines;
  }

  std::string mistake(const std::function<void()>& work) const {
    try {
      work();
    } catch (const Error& error) {
      return error.text();
    }
    return "nothing was thrown";
  }
};

// What earns is how many letters e an answer has.
TEST_F(RolloutRun, AnswersThatEarnMoreBecomeLikelier) {
  learn_from("fvlm.grpo { answers = 8, max_new_tokens = 12, reward = function(answer) return select(2, "
             "answer.text:gsub(\"e\", \"\")) end }",
             "samples = 320");
  run("letters");
  const auto lines = steps("letters");
  EXPECT_GT(lines.back()["reward"].get<double>(), 1.4 * lines.front()["reward"].get<double>());
}

TEST_F(RolloutRun, AnAnswerOfEverySampleIsCounted) {
  learn_from("fvlm.grpo { answers = 4, max_new_tokens = 6, reward = function(answer) return answer.ended and 1 or 0 "
             "end, show = 100 }",
             "samples = 40");
  run("counted");
  const auto lines = steps("counted");
  std::map<int64_t, std::vector<nlohmann::json>> shown;
  for (const std::string& text : split(read_file(folder("counted") / "prefer/rollouts.jsonl"), '\n'))
    if (!text.empty()) {
      const auto line = nlohmann::json::parse(text);
      shown[line["step"].get<int64_t>()].push_back(line);
    }
  ASSERT_EQ(lines.size(), shown.size() + 1); // the last step is written though it is none of log_every's
  for (const auto& line : lines) {
    if (!shown.contains(line["step"])) continue;
    const auto& prompts = shown[line["step"]];
    ASSERT_EQ(prompts.size(), 8);
    // The line is a mean over two steps, of which the second is shown: bounds, and what each answer says.
    for (const auto& prompt : prompts) {
      ASSERT_EQ(prompt["answers"].size(), 4);
      double sum = 0;
      for (const auto& answer : prompt["answers"]) {
        const bool ended = answer["ended"];
        EXPECT_EQ(answer["reward"].get<double>(), ended ? 1 : 0);
        EXPECT_LE(answer["ids"].size(), 6);
        EXPECT_TRUE(ended || answer["ids"].size() == 6);
        sum += answer["advantage"].get<double>();
      }
      EXPECT_NEAR(sum, 0, 1e-5);
    }
    EXPECT_NEAR(line["reward"].get<double>(), 1 - line["cut_off_share"].get<double>(), 1e-6);
  }
}

TEST_F(RolloutRun, AStoppedRunGoesOnToEqualBits) {
  learn_from("fvlm.grpo { answers = 4, max_new_tokens = 8, reward = \"f1\", kl = 0.1 }", "samples = 64");
  run("whole");
  run("stopped", {}, {.max_steps = 10 + 8 + 5});
  const auto answers = [&](const char* name) { return folder(name) / "prefer/rollouts.jsonl"; };
  std::ofstream(answers("stopped"), std::ios::app) << "{\"step\":6}\n{\"step\":7,"; // as of a run that was killed
  run("stopped");
  expect_equal_runs("whole", "stopped");
  EXPECT_EQ(read_file(answers("stopped")), read_file(answers("whole")));
}

TEST_F(RolloutRun, ThePenaltyKeepsTheModelNearWhereItBegan) {
  const std::string reward = "reward = function(answer) return answer.tokens end";
  learn_from("fvlm.grpo { answers = 4, max_new_tokens = 8, kl = 1e-9, " + reward + " }");
  run("free", {"log_every=1"});
  change_recipe("kl = 1e-9", "kl = 3");
  run("held", {"log_every=1"});
  const auto of_free = steps("free"), of_held = steps("held");
  EXPECT_NEAR(of_held.front()["reference_kl"], 0, 1e-9);
  EXPECT_GT(of_held.back()["reference_kl"], 0);
  EXPECT_GT(of_free.back()["reference_kl"].get<double>(), 3 * of_held.back()["reference_kl"].get<double>());
}

TEST_F(RolloutRun, MemoryIsPlannedForEveryAnswer) {
  learn_from("fvlm.grpo { answers = 4, max_new_tokens = 8 }");
  const auto plan = resolved().plan;
  EXPECT_EQ(plan.stages.back().texts_per_sample(), 4);
  EXPECT_EQ(plan.stages.back().largest_sample(1).tokens, 4 * (2 + 48));
  const auto memory_of_answers = [&](const plan::Stage& stage) {
    const auto need = stage_budget(plan, stage, describe(plan), registry_, budget::Device::cpu).step;
    EXPECT_EQ(need.peak, std::accumulate(need.amounts.begin(), need.amounts.end(), int64_t{0}));
    return need.amounts[static_cast<size_t>(budget::Item::answers)];
  };
  EXPECT_EQ(memory_of_answers(plan.stages.front()), 0);
  EXPECT_GT(memory_of_answers(plan.stages.back()), 0);
}

TEST_F(RolloutRun, AnswersStayInTheRoomOfTheirTexts) {
  learn_from("fvlm.grpo { answers = 4, max_new_tokens = 40, show = 100 }", "samples = 16");
  run("long");
  size_t most = 0;
  for (const std::string& text : split(read_file(folder("long") / "prefer/rollouts.jsonl"), '\n')) {
    if (text.empty()) continue;
    const auto line = nlohmann::json::parse(text);
    for (const auto& answer : line["answers"]) {
      most = std::max(most, answer["ids"].size());
      EXPECT_LT(answer["ids"].size(), 40) << "48 tokens hold a prompt, too";
    }
  }
  EXPECT_GT(most, 30);
}

TEST_F(RolloutRun, AFunctionThatFailsInTrainingLosesNoStep) {
  learn_from("fvlm.grpo { answers = 2, max_new_tokens = 4, reward = function(answer)\n"
             "  calls = (calls or 0) + 1\n  return calls > 60 and 0 / 0 or calls\nend }",
             "samples = 64");
  change_recipe("checkpoint = { every = 3", "checkpoint = { every = 1000");
  EXPECT_THAT(mistake([&] { run("fails"); }),
              testing::AllOf(HasSubstr("fails for the answer"), HasSubstr("to sample"), HasSubstr("it returned -nan")));
  EXPECT_EQ(StageFolder(folder("fails") / "prefer").steps(), std::vector<int64_t>{3}); // of 16 answers each
}

TEST_F(RolloutRun, PromptsNeedNoPictures) {
  learn_from("fvlm.grpo { answers = 4, max_new_tokens = 6, reward = function(answer) return #answer.text end }",
             "samples = 16");
  change_recipe("{ data .. \"/questions/*.tar\" } }, objective = fvlm.grpo",
                "{ text = data .. \"/text/*.tar\" } }, objective = fvlm.grpo");
  run("texts");
  const auto line = steps("texts").back();
  EXPECT_EQ(line["frames"], 0);
  EXPECT_GT(line["reward"], 0);
  EXPECT_GT(line["gradient_norm"], 0);
}

TEST_F(RolloutRun, AFunctionSeesTheSample) {
  learn_from("fvlm.grpo { answers = 2, max_new_tokens = 4, show = 100, reward = function(answer)\n"
             "  if answer.source == '' then return 0 end -- the answer that is tried before training\n"
             "  assert(#answer.expected == 1)\n"
             "  return 100 * tonumber(answer.key) + (answer.prompt:find('^user\\n.*%?\\nassistant$') and 1 or 0)\n"
             "end }",
             "samples = 8");
  run("seen", {"log_every=1"});
  const auto lines = split(read_file(folder("seen") / "prefer/rollouts.jsonl"), '\n');
  ASSERT_EQ(lines.size(), 9); // the last is empty
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    const auto line = nlohmann::json::parse(lines[i]);
    for (const auto& answer : line["answers"])
      EXPECT_EQ(answer["reward"], 100 * std::stoi(line["key"].get<std::string>()) + 1) << lines[i];
  }
}

TEST_F(RolloutRun, APlanFileKeepsWhatItsFunctionWas) {
  learn_from("fvlm.grpo { answers = 2, max_new_tokens = 8, reward = function(answer) return answer.tokens end }",
             "samples = 8");
  run("run", {}, {.max_steps = 1});
  recipe::Request request;
  request.file = folder("run") / "plan.json";
  const recipe::Resolved read = recipe::resolve(request);
  EXPECT_EQ(read.hash, resolved().hash);
  const auto* reward = std::get_if<plan::LuaFunction>(&read.plan.stages.back().rollouts()->reward);
  ASSERT_TRUE(reward);
  EXPECT_THAT(reward->defined, HasSubstr("small.lua"));
  TrainRequest elsewhere;
  elsewhere.folder = folder("elsewhere");
  EXPECT_THAT(mistake([&] { train(read, elsewhere, registry_); }), HasSubstr("a plan file holds no functions"));
  EXPECT_FALSE(fs::exists(folder("elsewhere") / "align")) << "before anything is trained";
}

TEST_F(RolloutRun, FunctionsGetEveryMeasure) {
  learn_from(
      "fvlm.grpo { answers = 2, max_new_tokens = 8, reward = function(answer) return answer.exact_match + answer.f1 + "
      "answer.anls + answer.rouge_l + answer.character_accuracy + answer.vqa_accuracy + answer.relaxed_accuracy + "
      "answer.contains + answer.iou + answer.box_accuracy end }",
      "samples = 8");
  run("measures", {}, {.max_steps = 1});
  change_recipe("return answer.exact_match", "local count = 0 for key in pairs(answer) do count = count + 1 end "
                                             "assert(count == 17) return answer.exact_match");
  run("all", {}, {.max_steps = 1});
  change_recipe("answer.anls", "answer.anlz");
  EXPECT_THAT(mistake([&] { run("missing", {}, {.max_steps = 1}); }), HasSubstr("anlz"));
}

TEST_F(RolloutRun, MistakesAreNamed) {
  learn_from("fvlm.grpo { answers = 4, max_new_tokens = 8, reward = function(answer) return answer.lenght end }");
  EXPECT_THAT(mistake([&] { run("typo"); }),
              testing::AllOf(HasSubstr("small.lua"), HasSubstr("`reward` fails for the answer"),
                             HasSubstr("it returned nil"), HasSubstr("a reward is a finite number")));
  change_recipe("answer.lenght", "answer.lenght * 2");
  EXPECT_THAT(mistake([&] { run("typo2"); }), testing::AllOf(HasSubstr("small.lua"), HasSubstr("lenght")));
  change_recipe("max_new_tokens = 8", "max_new_tokens = 48");
  EXPECT_THAT(mistake([&] { resolved(); }), HasSubstr("answers of 48 tokens leave no room for a prompt"));
  change_recipe("objective = fvlm.grpo { answers = 4, max_new_tokens = 48",
                "objective = { fvlm.next_token {}, fvlm.grpo { answers = 1, max_new_tokens = 8");
  change_recipe("* 2 end }", "end } }");
  EXPECT_THAT(mistake([&] { resolved(); }), HasSubstr("answers: expected"));
  change_recipe("answers = 1", "answers = 2");
  EXPECT_THAT(mistake([&] { resolved(); }), HasSubstr("give it a stage of its own"));
}

// Samples without frames.
class FakeSource : public SampleSource {
 public:
  explicit FakeSource(SampleText text) : text_(std::move(text)) {}
  std::vector<int64_t> sizes() const override { return {1}; }
  int64_t frame_elements() const override { return 0; }
  Sample measure(const DrawnSample&) const override {
    Sample sample;
    sample.texts = {text_};
    return sample;
  }
  void decode(const DrawnSample&, const Sample&, std::span<float>) const override {}
  std::string place(const DrawnSample&) const override { return "fake.tar"; }
  std::string key(const DrawnSample&) const override { return "0"; }

 private:
  SampleText text_;
};

class Prompts : public RolloutRun {
 protected:
  struct Settings final : Rollouts {
    Settings() { answers = 3, max_new_tokens = 5; }
  };
  Sample measured(const SampleText& text, int64_t most_tokens) const {
    const Tokenizer tokenizer = Tokenizer::from_file(data() / "tokenizer" / "tokenizer.json");
    const FakeSource source(text);
    const Settings settings;
    return RolloutPrompts(source, tokenizer, settings, most_tokens).measure({});
  }
};

TEST_F(Prompts, HaveRoomForEveryAnswer) {
  const Sample sample = measured({{7, 8, 9, 40, 41}, {0, 0, 0, 1, 1}}, 20);
  EXPECT_EQ(sample.dropped, "");
  ASSERT_EQ(sample.texts.size(), 3);
  for (const SampleText& text : sample.texts) {
    EXPECT_THAT(text.ids, ElementsAre(7, 8, 9, 41, 41, 41, 41, 41));
    EXPECT_THAT(text.answer_mask, ElementsAre(0, 0, 0, 1, 1, 1, 1, 1));
  }
  EXPECT_EQ(sample.answers.size(), 1);
}

TEST_F(Prompts, OfTheLastTurnHaveTheTurnsBefore) {
  const Sample sample = measured({{7, 30, 8, 9, 40}, {0, 1, 0, 0, 1}}, 20);
  EXPECT_THAT(sample.texts.front().ids, ElementsAre(7, 30, 8, 9, 40, 40, 40, 40, 40));
  EXPECT_THAT(sample.texts.front().answer_mask, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 1)); // only the new one is learnt
}

TEST_F(Prompts, LeaveAnswersTheRestOfTheText) {
  EXPECT_EQ(measured({{7, 8, 9, 40}, {0, 0, 0, 1}}, 5).texts.front().ids.size(), 5);
  EXPECT_EQ(measured({{7, 8, 9, 40}, {0, 0, 0, 1}}, 3).dropped,
            "a prompt that leaves no room for an answer in max_text_tokens = 3");
  EXPECT_EQ(measured({{40, 41}, {1, 1}}, 9).dropped, "a text without a prompt before its answer");
}

} // namespace
} // namespace fvlm::train
