// Shown samples as the report finds them.
#include "base/error.h"
#include "base/file.h"
#include "base/scratch_folder.h"
#include "data/media/decode_image.h"
#include "data/media/normalise.h"
#include "evaluation/evaluator.h"
#include "model/connector/perceiver/settings.h"
#include "synthetic_set.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <gmock/gmock.h>

namespace fvlm::evaluation {
namespace {

using nlohmann::json;
using plan::Measure;
using testing::HasSubstr;

// "what?" with the answers "ab" and "c", or one answer, over frames of pixels that are bytes.
class SyntheticChats : public SyntheticQuestions {
 public:
  explicit SyntheticChats(Measure measure, int64_t rows_per_frame = 1)
      : SyntheticQuestions(measure, {5, 2}), measure_(measure), rows_per_frame_(rows_per_frame) {}

  Sample measure(const DrawnSample& drawn) const override {
    const auto tokenizer = Tokenizer::from_json(test::small_tokenizer().dump(), "small");
    const ChatTemplate chat(tokenizer);
    Sample sample = SyntheticQuestions::measure(drawn);
    const size_t texts = measure_ == Measure::loss ? 1 : 2;
    sample.texts.clear();
    for (size_t i = 0; i < texts; ++i) {
      const std::vector<Turn> turns = {{"user", " what? "}, {"assistant", i == 0 ? "ab" : "c"}};
      auto tokens = chat.encode(turns, "be kind");
      sample.texts.push_back({tokens.ids, tokens.answer_mask});
    }
    if (measure_ == Measure::choice) sample.correct_choice = 1;
    sample.rows_per_frame = rows_per_frame_;
    return sample;
  }

  void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const override {
    for (int64_t i = 0; i < sample.distinct_frames(); ++i)
      normalise(bytes_of(drawn, i), frames.subspan(static_cast<size_t>(i) * 192, 192));
  }
  static std::vector<uint8_t> bytes_of(const DrawnSample& drawn, int64_t frame) {
    std::vector<uint8_t> bytes(192);
    const RandomStream random(static_cast<uint64_t>(frame), std::to_string(drawn.sample));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.bits(i));
    return bytes;
  }

 private:
  Measure measure_;
  int64_t rows_per_frame_;
};

struct Shown {
  Shown(Measure measure, int64_t count, const std::string& mode = "coarse_fine") : tiny(config(), at::kFloat) {
    auto set = wanted(measure, {mode});
    set.show = count;
    std::vector<std::unique_ptr<SampleSet>> sets;
    sets.push_back(open(set, std::make_shared<SyntheticChats>(measure)));
    Evaluator(std::move(sets)).show(tiny.model, *tiny.operations, {folder.path(), "instruct", 70, 6});
  }
  json sample(const char* number) const {
    return json::parse(read_file(folder.path() / "made" / (std::string(number) + ".json")));
  }
  ScratchFolder folder;
  model::Tiny tiny;
};

TEST(ShownSamples, HaveQuestionExpectedAnswerAnswerAndOptionLosses) {
  const Shown shown(Measure::choice, 3);
  EXPECT_FALSE(std::filesystem::exists(shown.folder.path() / "made" / "003.json"));
  for (const char* number : {"000", "001", "002"}) {
    const json sample = shown.sample(number);
    EXPECT_EQ(sample["set"], "made");
    EXPECT_EQ(sample["stage"], "instruct");
    EXPECT_EQ(sample["step"], 70);
    EXPECT_EQ(sample["source"], "clips");
    EXPECT_EQ(sample["question"], "what?");
    EXPECT_EQ(sample["expected"], "c");
    EXPECT_TRUE(sample["answer"].is_string());
    ASSERT_EQ(sample["options"].size(), 2U);
    EXPECT_EQ(sample["options"][0]["text"], "ab");
    EXPECT_EQ(sample["options"][0]["right"], false);
    EXPECT_EQ(sample["options"][1]["right"], true);
    EXPECT_GT(sample["options"][0]["loss"].get<double>(), 0);
  }
}

TEST(ShownSamples, HaveFramesAndMeanAttentionMaps) {
  for (const std::string mode : {"coarse_fine", "coarse_only", "autoregressive"}) {
    Shown shown(Measure::loss, 4, mode);
    const SyntheticChats chats(Measure::loss);
    for (int64_t number = 0; number < 4; ++number) {
      const json sample = shown.sample(fmt::format("{:03}", number).c_str());
      EXPECT_FALSE(sample.contains("options"));
      const DrawnSample drawn{number, 0, 0, number};
      const auto of_model = chats.of_model(drawn);
      const auto pack = shown.tiny.pack({of_model});
      ops::Tape none(ops::Tape::Mode::forward_only);
      const at::Tensor maps =
          shown.tiny.model.encode(none, *shown.tiny.operations, pack, mode, model::EncodeOutputs::tokens_and_attention)
              .attention;
      ASSERT_EQ(sample["frames"].size(), static_cast<size_t>(of_model.frames.size(0)));
      ASSERT_EQ(sample["attention"].size(), sample["frames"].size());
      EXPECT_EQ(sample["grid"], (json{2, 2}));
      for (int64_t frame = 0; frame < of_model.frames.size(0); ++frame) {
        const std::string png =
            read_file(shown.folder.path() / "made" / sample["frames"][static_cast<size_t>(frame)].get<std::string>());
        const Image image = decode_image(std::as_bytes(std::span(png)));
        EXPECT_EQ(image.rgb, SyntheticChats::bytes_of(drawn, frame / chats.measure(drawn).copies))
            << number << ", frame " << frame;
        for (int64_t patch = 0; patch < 4; ++patch)
          EXPECT_NEAR(sample["attention"][static_cast<size_t>(frame)][static_cast<size_t>(patch)].get<double>(),
                      maps[frame].mean(at::IntArrayRef{0, 1})[patch + 1].item<double>(), 2e-6);
      }
    }
  }
}

TEST(ShownSamples, HaveAMapOfEachQueryOfAResampler) {
  auto with_resampler = config();
  connector::Perceiver perceiver;
  perceiver.queries = 3, perceiver.layers = 2, perceiver.heads = 2, perceiver.projector_width = 16;
  with_resampler.connector = perceiver;
  model::Tiny tiny(with_resampler, at::kFloat);
  plan::EvaluationSet set = wanted(Measure::loss, {perceiver.modes().front().name});
  set.show = 4;
  const ScratchFolder folder;
  const auto samples = open(set, std::make_shared<SyntheticChats>(Measure::loss, 3));
  show(*samples, tiny.model, *tiny.operations, {folder.path(), "instruct", 70, 3});
  double apart = 0;
  for (int number = 0; number < 4; ++number) {
    const json sample = json::parse(read_file(folder.path() / "made" / fmt::format("{:03}.json", number)));
    ASSERT_EQ(sample["query_attention"].size(), sample["frames"].size());
    for (size_t frame = 0; frame < sample["frames"].size(); ++frame) {
      const json& queries = sample["query_attention"][frame];
      ASSERT_EQ(queries.size(), 3u);
      for (size_t cell = 0; cell < 4; ++cell) {
        double sum = 0;
        for (const json& query : queries) sum += query.at(cell).get<double>();
        EXPECT_NEAR(sum / 3, sample["attention"][frame].at(cell).get<double>(), 4e-6);
        apart += std::abs(queries[0][cell].get<double>() - queries[1][cell].get<double>());
      }
    }
  }
  EXPECT_GT(apart, 0.01) << "the queries look alike";
}

TEST(ShownSamples, OfALaterStepReplaceEarlierOnes) {
  Shown shown(Measure::choice, 2);
  auto set = wanted(Measure::choice);
  set.show = 2;
  const auto samples = open(set, std::make_shared<SyntheticChats>(Measure::choice));
  show(*samples, shown.tiny.model, *shown.tiny.operations, {shown.folder.path(), "instruct", 140, 3});
  EXPECT_EQ(shown.sample("000")["step"], 140);
  EXPECT_EQ(shown.sample("001")["step"], 140);
}

TEST(MeasuredAnswers, AreThoseThatAreShownAndComparedWithTheExpectedOnes) {
  model::Tiny tiny(config(), at::kFloat);
  plan::EvaluationSet set = wanted(Measure::answer);
  set.show = 3;
  std::vector<std::unique_ptr<SampleSet>> sets;
  sets.push_back(open(set, std::make_shared<SyntheticChats>(Measure::loss)));
  const Evaluator evaluator(std::move(sets));
  const ScratchFolder folder;
  evaluator.show(tiny.model, *tiny.operations, {folder.path(), "instruct", 70, 128});
  std::vector<SampleScore> scores;
  const auto results =
      evaluator.evaluate(tiny.model, *tiny.operations, {},
                         [&](const SampleSet&, const std::string&, const Scores& all) { scores = all.samples; });
  ASSERT_EQ(scores.size(), 7U);
  double exact = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    ASSERT_TRUE(scores[i].generated);
    EXPECT_EQ(scores[i].generated->expected, Answers{"ab"});
    exact += exact_match(scores[i].generated->answer, {"ab"}) / 7;
    if (i >= 3) continue;
    const json shown = json::parse(read_file(folder.path() / "made" / fmt::format("{:03}.json", i)));
    EXPECT_EQ(shown["answer"], scores[i].generated->answer);
    const bool right = exact_match(scores[i].generated->answer, {"ab"}) == 1;
    EXPECT_EQ(shown["answers"],
              (json{{{"mode", "coarse_fine"}, {"text", scores[i].generated->answer}, {"right", right}}}));
    EXPECT_FALSE(scores[i].generated->answer.empty());
  }
  EXPECT_DOUBLE_EQ(results.at(0).value("accuracy"), exact);
  EXPECT_GT(results[0].value("loss"), 0);
  EXPECT_THROW((void)results[0].value("vqa_accuracy"), Error) << "one answer is expected";
}

SampleScore answered(const std::string& answer, const Answers& expected) {
  SampleScore score;
  score.texts = {{1.0, 2, 0, 0}};
  score.generated = {answer, expected};
  return score;
}

TEST(MeasuredAnswers, HaveTheErrorRatesOfAllAnswersTogether) {
  const auto set = open(wanted(Measure::answer), std::make_shared<SyntheticChats>(Measure::loss));
  Scores scores;
  scores.samples = {answered("ax", {"ab"}), answered("one two 345", {"one two 345"})};
  const Result result = result_of(*set, "coarse_fine", scores);
  EXPECT_DOUBLE_EQ(result.value("character_error_rate"), 1.0 / 13); // the mean of both rates is 1 / 4
  EXPECT_DOUBLE_EQ(result.value("word_error_rate"), 1.0 / 4);
  EXPECT_DOUBLE_EQ(result.value("anls"), (0.5 + 1) / 2);
  EXPECT_DOUBLE_EQ(result.value("rouge_l"), (0.0 + 1) / 2);
  const std::string text = result.text();
  EXPECT_THAT(text,
              HasSubstr("accuracy 50.0 %, f1 0.5, anls 0.75, character error rate 7.7 %, relaxed accuracy 50.0 %;"));
  EXPECT_LT(text.size(), 160U) << text;
}

TEST(MeasuredAnswers, OfYesAndNoAreCountedAsPopeDoes) {
  const auto set =
      open(wanted(Measure::answer), std::make_shared<SyntheticChats>(Measure::loss), {64, 512}, "yes_no_accuracy");
  Scores scores;
  scores.samples = {answered("Yes, it is.", {"yes"}), answered("yes", {"No"}), answered("no", {"yes"}),
                    answered("perhaps", {"no"}), answered("No", {"no"})};
  for (size_t i = 0; i < scores.samples.size(); ++i) scores.samples[i].source = i < 2 ? "near" : "far";
  const Result result = result_of(*set, "coarse_fine", scores);
  EXPECT_EQ(result.values.at(1).first, "yes_no_accuracy") << "behind the loss";
  for (const auto& [name, value] : std::vector<std::pair<const char*, double>>{{"yes_no_accuracy", 2.0 / 5},
                                                                               {"yes_precision", 1.0 / 2},
                                                                               {"yes_recall", 1.0 / 2},
                                                                               {"yes_f1", 1.0 / 2},
                                                                               {"yes_share", 2.0 / 5},
                                                                               {"accuracy", 1.0 / 5},
                                                                               {"yes_no_accuracy.near", 1.0 / 2},
                                                                               {"yes_no_accuracy.far", 1.0 / 3},
                                                                               {"yes_f1.near", 2.0 / 3},
                                                                               {"yes_f1.far", 0}})
    EXPECT_DOUBLE_EQ(result.value(name), value) << name;
  scores.samples.push_back(answered("red", {"red"}));
  EXPECT_THROW((void)result_of(*set, "coarse_fine", scores).value("yes_f1"), Error) << "one expects another answer";
}

TEST(MeasuredAnswers, AreComparedBySourceInTheSetsOwnMeasure) {
  const auto set = open(wanted(Measure::answer), std::make_shared<SyntheticChats>(Measure::loss), {64, 512}, "anls");
  Scores scores;
  scores.samples = {answered("ax", {"ab"}), answered("abcd", {"abcd"})};
  scores.samples[0].source = "forms";
  scores.samples[1].source = "tables";
  const Result result = result_of(*set, "coarse_fine", scores);
  EXPECT_DOUBLE_EQ(result.value("anls.forms"), 0.5);
  EXPECT_DOUBLE_EQ(result.value("anls.tables"), 1);
  EXPECT_THROW((void)result.value("accuracy.forms"), Error);
}

} // namespace
} // namespace fvlm::evaluation
