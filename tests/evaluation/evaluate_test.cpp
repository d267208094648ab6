// Metrics of an evaluation against the model run sample by sample, and against each other for packs of any size.
#include "../model/encoded_frames.h"
#include "evaluation/evaluator.h"
#include "model/attention_entropy.h"
#include "objective/dpo/settings.h"
#include "synthetic_set.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <gmock/gmock.h>

namespace fvlm::evaluation {
namespace {

using model::Tiny;
using plan::Measure;
const std::vector<std::string> all_modes{"coarse_fine", "coarse_only", "autoregressive"};

std::vector<Result> evaluated(Tiny& tiny, std::unique_ptr<SampleSet> set, Tiny* reference = nullptr,
                              bool of_means = false) {
  std::vector<std::unique_ptr<SampleSet>> sets;
  sets.push_back(std::move(set));
  Evaluator evaluator(std::move(sets), {0.25, of_means});
  if (reference) evaluator.cache_reference(reference->model, *reference->operations);
  return evaluator.evaluate(tiny.model, *tiny.operations);
}

plan::EvaluationSet in_all_modes(Measure measure) {
  auto set = wanted(measure, {all_modes.begin(), all_modes.end()});
  set.entropy = true;
  return set;
}

// One text alone in a pack: the sum of its labels' losses and their number.
TextScore asked_alone(Tiny& tiny, const model::Sample& sample, size_t text, const std::string& mode) {
  const model::Sample alone{sample.frames, {sample.texts.at(text)}};
  const auto pack = tiny.pack({alone});
  ops::Tape none(ops::Tape::Mode::forward_only);
  const auto visual = tiny.model.encode(none, *tiny.operations, pack, mode);
  const auto hidden = tiny.model.decode(none, *tiny.operations, visual.tokens, pack);
  const at::Tensor losses = next_token_loss(none, *tiny.operations, tiny.model, hidden, pack, tiny.ones(pack));
  return {losses.sum(at::kDouble).item<double>(), pack.labels_per_text[0]};
}

struct LocatedQuestion {
  DrawnSample drawn;
  std::vector<TextScore> texts;
  size_t correct = 0;
};
std::vector<LocatedQuestion> asked_one_by_one(Tiny& tiny, const SyntheticQuestions& questions,
                                              const std::string& mode) {
  std::vector<LocatedQuestion> all;
  const Order order = Order::once(questions.sizes());
  auto state = order.begin();
  while (const auto drawn = order.next(state)) {
    const auto sample = questions.of_model(*drawn);
    LocatedQuestion& expected_sample = all.emplace_back(LocatedQuestion{*drawn, {}, 0});
    expected_sample.correct = static_cast<size_t>(questions.measure(*drawn).correct_choice.value_or(0));
    for (size_t text = 0; text < sample.texts.size(); ++text)
      expected_sample.texts.push_back(asked_alone(tiny, sample, text, mode));
  }
  return all;
}

// With tensors as small as these, threads cost far more than they gain.
TEST(Evaluation, SmallModelRunsOnOneThreadAsInTraining) {
  Tiny tiny(config(), at::kFloat);
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  const auto set = open(wanted(Measure::loss), std::make_shared<SyntheticQuestions>(Measure::loss));
  std::vector<int> threads;
  score(*set, tiny.model, *tiny.operations, "coarse_fine",
        [&](int64_t, int64_t) { threads.push_back(at::get_num_threads()); });
  EXPECT_THAT(threads, testing::AllOf(testing::Not(testing::IsEmpty()), testing::Each(1)));
  EXPECT_EQ(at::get_num_threads(), 2) << "whoever asks next has its own again";
  at::set_num_threads(before);
}

TEST(Evaluation, MetricsDoNotDependOnPackSize) {
  Tiny tiny(config(), at::kFloat);
  for (const Measure measure : {Measure::loss, Measure::choice, Measure::preference}) {
    const auto questions = std::make_shared<SyntheticQuestions>(measure);
    const auto large = evaluated(tiny, open(in_all_modes(measure), questions, {64, 4096}));
    ASSERT_EQ(large.size(), 3U);
    for (const PackSize& most : {PackSize{1, 1}, PackSize{5, 60}, PackSize{8, 200}}) {
      const auto small = evaluated(tiny, open(in_all_modes(measure), questions, most));
      for (size_t i = 0; i < large.size(); ++i) {
        ASSERT_EQ(small[i].values.size(), large[i].values.size());
        for (size_t value = 0; value < large[i].values.size(); ++value) {
          EXPECT_EQ(small[i].values[value].first, large[i].values[value].first);
          EXPECT_NEAR(small[i].values[value].second, large[i].values[value].second, 1e-6)
              << name_of(measure) << ", " << large[i].mode << ", " << large[i].values[value].first << " in packs of "
              << most.frames << " frames and " << most.rows << " rows";
        }
      }
    }
  }
}

// That its metrics are those of a model with every copy is what the other tests compare.
TEST(Evaluation, EncodesARepeatedImageOnce) {
  Tiny tiny(config());
  for (const Measure measure : {Measure::loss, Measure::choice, Measure::preference, Measure::answer}) {
    const auto questions = std::make_shared<SyntheticQuestions>(measure);
    int64_t frames = 0, distinct = 0;
    const Order order = Order::once(questions->sizes());
    auto state = order.begin();
    while (const auto drawn = order.next(state)) {
      const Sample sample = questions->measure(*drawn);
      frames += sample.frames;
      distinct += sample.distinct_frames();
    }
    ASSERT_LT(distinct, frames);
    for (const std::string& mode : all_modes) {
      // One sample a pack, so that no frame slot is padding.
      const auto set = open(wanted(measure, {mode}), questions, {1, 1});
      model::EncodedFrames encoded(8, 4);
      (void)score(*set, tiny.model, *tiny.operations, mode);
      EXPECT_EQ(encoded.take(), distinct) << name_of(measure) << ", " << mode << ", of " << frames;
    }
  }
}

// Of every token that stands for bytes, whether it is an answer's or not, in every part of a sample.
TEST(Evaluation, BitsPerByteAreThoseOfTokensThatAreNotSpecial) {
  class WithSpecialTokens : public SyntheticQuestions {
   public:
    using SyntheticQuestions::SyntheticQuestions;
    Sample measure(const DrawnSample& drawn) const override {
      Sample sample = SyntheticQuestions::measure(drawn);
      sample.frames = 0;
      sample.texts.push_back(sample.texts[0]);
      sample.texts[0].ids[1] = 259; // <|im_start|>
      sample.texts[1].ids[0] = 257; // "abc", which nothing predicts
      sample.texts[1].ids[1] = 257;
      return sample;
    }
  };
  Tiny tiny(config());
  auto set = wanted(Measure::bits_per_byte);
  set.data.documents = plan::Documents::joined;
  const auto texts = std::make_shared<WithSpecialTokens>(Measure::loss);
  double nats = 0;
  int64_t bytes = 0;
  const Order order = Order::once(texts->sizes());
  auto state = order.begin();
  while (const auto drawn = order.next(state)) {
    model::Sample sample = texts->of_model(*drawn);
    for (size_t text = 0; text < 2; ++text) {
      auto& labels = sample.texts[text].is_label;
      labels.assign(labels.size(), true);
      if (text == 0) labels[1] = false;
      nats += asked_alone(tiny, sample, text, "coarse_fine").loss;
      bytes += std::ssize(labels) - 1 + (text == 0 ? -1 : 2);
    }
  }
  const Result result = evaluated(tiny, open(set, texts)).at(0);
  EXPECT_NEAR(result.value("bits_per_byte"), nats / std::log(2.0) / static_cast<double>(bytes), 1e-9);
  EXPECT_EQ(result.quality(), -result.value("bits_per_byte"));
}

TEST(Evaluation, LossIsTheMeanOverAllLabels) {
  Tiny tiny(config());
  const auto questions = std::make_shared<SyntheticQuestions>(Measure::loss);
  for (const std::string& mode : all_modes) {
    double sum = 0;
    int64_t labels = 0;
    std::map<std::string, std::pair<double, int64_t>> by_source;
    for (const LocatedQuestion& expected_sample : asked_one_by_one(tiny, *questions, mode)) {
      sum += expected_sample.texts[0].loss;
      labels += expected_sample.texts[0].labels;
      auto& [of_source, count] = by_source[expected_sample.drawn.source == 0       ? "clips"
                                           : expected_sample.drawn.sample % 2 == 1 ? "odd ones"
                                                                                   : "texts"];
      of_source += expected_sample.texts[0].loss;
      count += expected_sample.texts[0].labels;
    }
    const Result result = evaluated(tiny, open(wanted(Measure::loss, {mode}), questions)).at(0);
    EXPECT_EQ(result.samples, 19);
    EXPECT_NEAR(result.value("loss"), sum / static_cast<double>(labels), 1e-9) << mode;
    ASSERT_EQ(by_source.size(), 3U);
    for (const auto& [source, of] : by_source)
      EXPECT_NEAR(result.value("loss." + source), of.first / static_cast<double>(of.second), 1e-9) << source;
  }
}

TEST(Evaluation, ChoosesTheOptionWithTheLowestMeanLoss) {
  Tiny tiny(config());
  const auto questions = std::make_shared<SyntheticQuestions>(Measure::choice, std::vector<int64_t>{30, 10});
  for (const std::string& mode : all_modes) {
    double right = 0, loss = 0;
    int64_t labels = 0;
    for (const LocatedQuestion& expected_sample : asked_one_by_one(tiny, *questions, mode)) {
      const auto best = std::min_element(expected_sample.texts.begin(), expected_sample.texts.end(),
                                         [](const TextScore& a, const TextScore& b) { return a.mean() < b.mean(); });
      right += best - expected_sample.texts.begin() == static_cast<std::ptrdiff_t>(expected_sample.correct);
      loss += expected_sample.texts[expected_sample.correct].loss;
      labels += expected_sample.texts[expected_sample.correct].labels;
    }
    ASSERT_GT(right, 0);
    ASSERT_LT(right, 40);
    const Result result = evaluated(tiny, open(wanted(Measure::choice, {mode}), questions)).at(0);
    EXPECT_DOUBLE_EQ(result.value("accuracy"), right / 40) << mode;
    EXPECT_NEAR(result.value("loss"), loss / static_cast<double>(labels), 1e-9) << mode;
  }
}

TEST(Evaluation, TieIsNotCorrect) {
  const auto questions = std::make_shared<SyntheticQuestions>(Measure::choice);
  const auto set = open(wanted(Measure::choice), questions);
  Scores scores;
  scores.samples = {
      {0, "", "a", {{2, 2}, {1, 1}}, 0}, {1, "", "a", {{2, 2}, {1.1, 1}}, 0}, {2, "", "a", {{0.5, 1}, {0.4, 1}}, 0}};
  EXPECT_NEAR(result_of(*set, "coarse_fine", scores).value("accuracy"), 1.0 / 3, 1e-12);
}

TEST(Evaluation, PreferencesUsePolicyAndReferenceRewards) {
  Tiny policy(config()), reference(config());
  for (auto& parameter : reference.model.parameters().all()) parameter.value.mul_(0.9);
  const auto questions = std::make_shared<SyntheticQuestions>(Measure::preference);
  for (const std::string& mode : all_modes) {
    const auto ours = asked_one_by_one(policy, *questions, mode);
    const auto theirs = asked_one_by_one(reference, *questions, mode);
    double accuracy = 0, margin = 0, reward_accuracy = 0, reward_margin = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      const double own = ours[i].texts[1].loss - ours[i].texts[0].loss;
      const double reward = 0.25 * (own - (theirs[i].texts[1].loss - theirs[i].texts[0].loss));
      accuracy += own > 0;
      margin += own;
      reward_accuracy += reward > 0;
      reward_margin += reward;
    }
    const auto count = static_cast<double>(ours.size());
    const Result result = evaluated(policy, open(wanted(Measure::preference, {mode}), questions), &reference).at(0);
    EXPECT_DOUBLE_EQ(result.value("accuracy"), accuracy / count);
    EXPECT_NEAR(result.value("margin"), margin / count, 1e-9);
    EXPECT_DOUBLE_EQ(result.value("reward_accuracy"), reward_accuracy / count);
    EXPECT_NEAR(result.value("reward_margin"), reward_margin / count, 1e-9);
    EXPECT_NE(reward_margin, 0);
  }
  const Result alone = evaluated(policy, open(wanted(Measure::preference), questions)).at(0);
  EXPECT_THROW(alone.value("reward_margin"), Error);
}

TEST(Evaluation, RewardsAreOfMeansWhereTheLossIs) {
  objective::Dpo dpo;
  for (const auto loss : {objective::Dpo::Loss::sigmoid, objective::Dpo::Loss::ipo}) {
    dpo.loss = loss;
    EXPECT_EQ(dpo.rewards()->of_means, loss == objective::Dpo::Loss::ipo);
  }
  Tiny policy(config()), reference(config());
  for (auto& parameter : reference.model.parameters().all()) parameter.value.mul_(0.9);
  const auto questions = std::make_shared<SyntheticQuestions>(Measure::preference);
  const auto ours = asked_one_by_one(policy, *questions, "coarse_fine");
  const auto theirs = asked_one_by_one(reference, *questions, "coarse_fine");
  double reward_accuracy = 0, reward_margin = 0, of_sums = 0;
  const auto gain = [&](size_t i, size_t text) { return theirs[i].texts[text].loss - ours[i].texts[text].loss; };
  for (size_t i = 0; i < ours.size(); ++i) {
    const auto labels = [&](size_t text) { return static_cast<double>(ours[i].texts[text].labels); };
    const double reward = 0.25 * (gain(i, 0) / labels(0) - gain(i, 1) / labels(1));
    reward_accuracy += reward > 0;
    reward_margin += reward;
    of_sums += 0.25 * (gain(i, 0) - gain(i, 1));
  }
  const auto count = static_cast<double>(ours.size());
  const Result result =
      evaluated(policy, open(wanted(Measure::preference, {"coarse_fine"}), questions), &reference, true).at(0);
  EXPECT_DOUBLE_EQ(result.value("reward_accuracy"), reward_accuracy / count);
  EXPECT_NEAR(result.value("reward_margin"), reward_margin / count, 1e-9);
  EXPECT_GT(std::abs(of_sums - reward_margin), 1e-3) << "of a test that could not tell them apart";
}

TEST(Evaluation, EntropyIsThatOfTheAttentionRows) {
  const at::Tensor even = at::full({2, 3, 4, 5}, 0.2);
  EXPECT_NEAR(model::attention_entropies(even).sum().item<double>() / 2, std::log(5), 1e-6);
  at::Tensor certain = at::zeros({1, 2, 2, 5});
  certain.select(3, 1).fill_(1);
  EXPECT_EQ(model::attention_entropies(certain).sum().item<double>(), 0);

  Tiny tiny(config());
  auto set = wanted(Measure::loss, {all_modes.begin(), all_modes.end()});
  set.entropy = true;
  const auto questions = std::make_shared<SyntheticQuestions>(Measure::loss);
  for (const Result& result : evaluated(tiny, open(set, questions))) {
    double sum = 0;
    int64_t frames = 0;
    ops::Tape none(ops::Tape::Mode::forward_only);
    for (int64_t i = 0; i < 13; ++i) {
      const auto pack = tiny.pack({questions->of_model({i, 0, 0, i})});
      const auto mode = result.mode;
      const at::Tensor map =
          tiny.model.encode(none, *tiny.operations, pack, mode, model::EncodeOutputs::tokens_and_attention).attention;
      sum += -(map * map.log()).sum().item<double>() / static_cast<double>(map.size(1) * map.size(2));
      frames += map.size(0);
    }
    EXPECT_NEAR(result.value("attention_entropy"), sum / static_cast<double>(frames), 1e-9) << result.mode;
  }
}

TEST(Evaluation, SubsetSpansTheSetAndIsStable) {
  Tiny tiny(config());
  const auto questions = std::make_shared<SyntheticQuestions>(Measure::loss, std::vector<int64_t>{200, 200});
  auto some = wanted(Measure::loss);
  some.samples = 20;
  const auto first = open(some, questions), second = open(some, questions, {3, 100});
  const auto picked = score(*first, tiny.model, *tiny.operations, "coarse_only");
  const auto again = score(*second, tiny.model, *tiny.operations, "coarse_only");
  ASSERT_EQ(picked.samples.size(), 20U);
  std::map<std::string, int> sources;
  for (size_t i = 0; i < 20; ++i) {
    ++sources[picked.samples[i].source];
    EXPECT_NEAR(picked.samples[i].texts[0].loss, again.samples[i].texts[0].loss, 1e-9) << i;
  }
  EXPECT_GE(sources["clips"], 4);
  EXPECT_GE(sources["texts"] + sources["odd ones"], 4);
}

TEST(Evaluation, BrokenSamplesAreCountedAndOthersMeasured) {
  Tiny tiny(config());
  const auto questions = std::make_shared<SyntheticQuestions>(Measure::loss);
  questions->broken = [](const DrawnSample& drawn) { return drawn.sample == 2; };
  const Result result = evaluated(tiny, open(wanted(Measure::loss), questions)).at(0);
  EXPECT_EQ(result.samples, 17);
  EXPECT_EQ(result.unused, 2);
  questions->broken = [](const DrawnSample&) { return true; };
  EXPECT_THROW(open(wanted(Measure::loss), questions), Error);
}

TEST(Evaluation, AnswersLabelledBadAreNotMeasured) {
  Tiny tiny(config());
  const auto judged = std::make_shared<SyntheticQuestions>(Measure::loss);
  judged->judgement = [](const DrawnSample& drawn) { return drawn.sample % 2 == 0; };
  const auto good = std::make_shared<SyntheticQuestions>(Measure::loss);
  good->broken = [](const DrawnSample& drawn) { return drawn.sample % 2 == 1; };
  const Result result = evaluated(tiny, open(wanted(Measure::loss), judged)).at(0);
  EXPECT_EQ(result.samples, 10);
  EXPECT_EQ(result.unused, 9);
  EXPECT_EQ(result.value("loss"), evaluated(tiny, open(wanted(Measure::loss), good)).at(0).value("loss"));
}

TEST(Evaluation, RefusesSamplesOfAnotherKindFirst) {
  for (const auto& [measure, of, words] :
       {std::tuple{Measure::choice, Measure::loss, "is no question with options"},
        std::tuple{Measure::choice, Measure::preference, "is no question with options"},
        std::tuple{Measure::preference, Measure::choice, "is no pair"}}) {
    try {
      open(wanted(measure), std::make_shared<SyntheticQuestions>(of));
      ADD_FAILURE() << name_of(measure) << " took samples of " << name_of(of);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_THAT(error.text(), testing::HasSubstr(words));
      EXPECT_THAT(error.text(), testing::HasSubstr("'0-0'"));
      EXPECT_THAT(error.text(), testing::HasSubstr("evaluation set made"));
    }
  }
}

TEST(Evaluation, RefusesAnotherTokenizer) {
  Tiny tiny; // 53 tokens
  EXPECT_THROW(evaluated(tiny, open(wanted(Measure::loss), std::make_shared<SyntheticQuestions>(Measure::loss))),
               Error);
}

TEST(Evaluation, ResultIsALineOfMetrics) {
  const auto set = open(wanted(Measure::choice), std::make_shared<SyntheticQuestions>(Measure::choice));
  Scores scores;
  scores.samples = {{0, "", "red", {{2, 2}, {3, 1}}, 0}, {1, "", "blue", {{6, 2}, {1.1, 1}}, 0}};
  scores.attention_entropy = 0.5;
  EXPECT_EQ(
      report::json_line(result_of(*set, "coarse_only", scores).record("instruct", 40)),
      R"({"kind":"evaluation","stage":"instruct","step":40,"set":"made","mode":"coarse_only","measure":"choice",)"
      R"("loss":2,"accuracy":0.5,"samples":2,"attention_entropy":0.5,"accuracy.blue":0,"accuracy.red":1,"seconds":0})"
      "\n");
}

TEST(Evaluation, LossOfQuestionsAndPairsIsThatOfTheCorrectText) {
  Tiny tiny(config());
  for (const Measure kind : {Measure::choice, Measure::preference}) {
    const auto questions = std::make_shared<SyntheticQuestions>(kind);
    const double as_loss = evaluated(tiny, open(wanted(Measure::loss), questions)).at(0).value("loss");
    const double as_itself = evaluated(tiny, open(wanted(kind), questions)).at(0).value("loss");
    EXPECT_NEAR(as_loss, as_itself, 1e-9) << name_of(kind);
  }
}

// The answers of every second sample are cut.
struct CutQuestions : SyntheticQuestions {
  using SyntheticQuestions::SyntheticQuestions;
  Sample measure(const DrawnSample& drawn) const override {
    Sample sample = SyntheticQuestions::measure(drawn);
    sample.truncated_answer_tokens = drawn.sample % 2;
    if (drawn.sample == 1) sample.answers = {"whole"};
    return sample;
  }
};

TEST(Evaluation, WarnsOfExpectedAnswersThatAreCut) {
  const auto said = [](Measure kind) {
    testing::internal::CaptureStderr();
    open(wanted(kind), std::make_shared<CutQuestions>(kind, std::vector<int64_t>{12}));
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said(Measure::answer),
              testing::HasSubstr("max_text_tokens = 1024 cuts the expected answers of 5 of 12 samples"));
  EXPECT_EQ(said(Measure::loss), "") << "it measures what is there";
}

} // namespace
} // namespace fvlm::evaluation
