// Evaluation that several ranks divide among them, against that of one: the same packs, so the same bits.
#include "../dist/threads_as_ranks.h"
#include "evaluation/evaluator.h"
#include "synthetic_set.h"

#include <gmock/gmock.h>
#include <mutex>
#include <set>

namespace fvlm::evaluation {
namespace {

using model::Tiny;
using plan::Measure;

// Texts whose answer is generated, behind a prompt of a few tokens.
class Prompts : public SyntheticQuestions {
 public:
  using SyntheticQuestions::SyntheticQuestions;
  Sample measure(const DrawnSample& drawn) const override {
    Sample sample = SyntheticQuestions::measure(drawn);
    sample.texts.resize(1);
    sample.correct_choice.reset();
    sample.answers = {"ab", "c"};
    return sample;
  }
  void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const override {
    if (fails(drawn)) throw Error(ErrorKind::data, "no picture");
    SyntheticQuestions::decode(drawn, sample, frames);
  }
  SyntheticSource::Where fails = [](const DrawnSample&) { return false; };
};

struct Evaluated {
  std::vector<Result> results;
  std::vector<SampleScore> samples; // of the last mode
};

Evaluated evaluated(const std::shared_ptr<const SampleSource>& samples, const plan::EvaluationSet& set,
                    const dist::Ranks* ranks, int64_t reference = 0) {
  Tiny tiny(config(), at::kFloat);
  std::vector<std::unique_ptr<SampleSet>> sets;
  sets.push_back(open(set, samples, {5, 60}));
  Evaluator evaluator(std::move(sets), {0.25}, ranks);
  if (reference != 0) {
    Tiny other(config(), at::kFloat);
    for (auto& parameter : other.model.parameters().all()) parameter.value.mul_(0.9);
    evaluator.cache_reference(other.model, *other.operations);
  }
  Evaluated all;
  all.results = evaluator.evaluate(
      tiny.model, *tiny.operations, {},
      [&](const SampleSet&, const std::string&, const Scores& scores) { all.samples = scores.samples; });
  return all;
}

void expect_equal(const Evaluated& alone, const Evaluated& together, const std::string& where) {
  ASSERT_EQ(alone.results.size(), together.results.size()) << where;
  for (size_t i = 0; i < alone.results.size(); ++i) {
    const Result &one = alone.results[i], &other = together.results[i];
    EXPECT_EQ(one.samples, other.samples) << where;
    EXPECT_EQ(one.unused, other.unused) << where;
    ASSERT_EQ(one.values.size(), other.values.size()) << where;
    for (size_t value = 0; value < one.values.size(); ++value) {
      EXPECT_EQ(one.values[value].first, other.values[value].first) << where;
      if (one.values[value].first == "attention_entropy") // summed in another order
        EXPECT_NEAR(one.values[value].second, other.values[value].second, 1e-12) << where;
      else
        EXPECT_EQ(one.values[value].second, other.values[value].second) << where << ", " << one.values[value].first;
    }
  }
  ASSERT_EQ(alone.samples.size(), together.samples.size()) << where;
  for (size_t i = 0; i < alone.samples.size(); ++i) {
    EXPECT_EQ(alone.samples[i].key, together.samples[i].key) << where;
    EXPECT_EQ(alone.samples[i].generated.has_value(), together.samples[i].generated.has_value()) << where;
    if (alone.samples[i].generated && together.samples[i].generated) {
      EXPECT_EQ(alone.samples[i].generated->answer, together.samples[i].generated->answer) << where;
    }
  }
}

TEST(EvaluationByRanks, EveryRankHasTheResultOfOneProcessToTheBit) {
  for (const Measure measure : {Measure::loss, Measure::choice, Measure::preference, Measure::answer}) {
    auto set = wanted(measure, {"coarse_fine", "coarse_only"});
    set.entropy = true;
    set.max_new_tokens = 6;
    const std::shared_ptr<SyntheticQuestions> questions = measure == Measure::answer
                                                              ? std::make_shared<Prompts>(Measure::loss)
                                                              : std::make_shared<SyntheticQuestions>(measure);
    const bool pairs = measure == Measure::preference;
    const Evaluated alone = evaluated(questions, set, nullptr, pairs);
    ASSERT_FALSE(alone.results.at(0).values.empty());
    for (const int64_t count : {2, 3}) // the third one's packs run out first
      test::as_ranks(count, [&](const dist::Ranks& ranks) {
        expect_equal(alone, evaluated(questions, set, &ranks, pairs),
                     fmt::format("{}, rank {} of {}", plan::name_of(measure), ranks.rank(), count));
      });
  }
}

TEST(EvaluationByRanks, EachScoresAShareOfThePacks) {
  const auto samples = std::make_shared<SyntheticQuestions>(Measure::loss);
  const auto set = open(wanted(Measure::loss), samples, {5, 60});
  std::vector<std::set<int64_t>> positions(3);
  for (size_t rank = 0; rank < 3; ++rank) {
    const auto loader = set->loader_of(static_cast<int64_t>(rank), 3);
    while (const auto loaded = loader->next())
      for (const PackedSample& packed : loaded->pack.samples) positions[rank].insert(packed.position);
  }
  std::set<int64_t> all;
  for (const auto& of_rank : positions) {
    EXPECT_GE(of_rank.size(), 3U) << "of 19";
    all.insert(of_rank.begin(), of_rank.end());
  }
  EXPECT_EQ(all.size(), 19U);
  EXPECT_EQ(positions[0].size() + positions[1].size() + positions[2].size(), 19U) << "some are scored twice";
}

// Those that fail on a rank of its own are missing on all, and counted.
TEST(EvaluationByRanks, SamplesThatCannotBeDecodedAreUnusedOnAllRanks) {
  const auto samples = std::make_shared<Prompts>(Measure::loss);
  samples->fails = [](const DrawnSample& drawn) { return drawn.source == 0 && drawn.sample == 4; };
  const Evaluated alone = evaluated(samples, wanted(Measure::loss), nullptr);
  ASSERT_EQ(alone.results.at(0).unused, 1);
  test::as_ranks(2, [&](const dist::Ranks& ranks) {
    expect_equal(alone, evaluated(samples, wanted(Measure::loss), &ranks), fmt::format("rank {}", ranks.rank()));
  });
}

} // namespace
} // namespace fvlm::evaluation
