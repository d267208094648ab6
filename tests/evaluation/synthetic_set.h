// Synthetic evaluation sets for the tiny model of tests/model.
#pragma once
#include "../data/small_tokenizer.h"
#include "../data/stream/synthetic_source.h"
#include "../model/tiny.h"
#include "evaluation/sample_set.h"

#include <ATen/ops/empty.h>

namespace fvlm::evaluation {

// Two sources, with frames, some of which are repeated images, and without: samples of several lengths, as questions,
// as pairs, or as texts.
class SyntheticQuestions : public SampleSource {
 public:
  explicit SyntheticQuestions(plan::Measure measure, std::vector<int64_t> sizes = {13, 6})
      : measure_(measure), sizes_(std::move(sizes)) {}

  std::vector<int64_t> sizes() const override { return sizes_; }
  int64_t frame_elements() const override { return 3 * 8 * 8; }
  std::string place(const DrawnSample& drawn) const override { return fmt::format("source {}", drawn.source); }
  std::string key(const DrawnSample& drawn) const override { return fmt::format("{}-{}", drawn.source, drawn.sample); }

  Sample measure(const DrawnSample& drawn) const override {
    if (broken(drawn)) throw Error(ErrorKind::data, "no text");
    model::Dice dice(17 + static_cast<uint64_t>(drawn.sample * 2 + static_cast<int64_t>(drawn.source)));
    Sample sample;
    sample.key = key(drawn);
    sample.is_desirable = judgement(drawn);
    if (drawn.source == 1 && drawn.sample % 2 == 1) sample.source = "odd ones";
    sample.frames = drawn.source == 0 ? dice.upto(1, 3) : 0;
    if (sample.frames > 0 && drawn.sample % 3 == 1) sample.copies = sample.frames;
    const int64_t prompt = dice.upto(2, 6);
    int64_t texts = 1;
    if (measure_ == plan::Measure::preference) texts = 2;
    if (measure_ == plan::Measure::choice) {
      texts = dice.upto(2, 4);
      sample.correct_choice = dice.upto(0, texts - 1);
    }
    std::vector<TokenId> located;
    for (int64_t i = 0; i < prompt; ++i) located.push_back(static_cast<TokenId>(dice.upto(0, 52)));
    for (int64_t text = 0; text < texts; ++text) {
      SampleText& made = sample.texts.emplace_back();
      made.ids = located;
      made.answer_mask.assign(located.size(), 0);
      for (int64_t i = dice.upto(1, 4); i > 0; --i) {
        made.ids.push_back(static_cast<TokenId>(dice.upto(0, 52)));
        made.answer_mask.push_back(1);
      }
    }
    return sample;
  }

  void decode(const DrawnSample& drawn, const Sample&, std::span<float> frames) const override {
    const RandomStream random(3, key(drawn));
    for (size_t i = 0; i < frames.size(); ++i) frames[i] = static_cast<float>(random.normal(i));
  }

  // The same sample for the model itself, with every copy.
  model::Sample of_model(const DrawnSample& drawn) const {
    const Sample sample = measure(drawn);
    model::Sample made;
    if (sample.frames > 0) {
      made.frames = at::empty({sample.distinct_frames(), 3, 8, 8}, at::kFloat);
      decode(drawn, sample, {made.frames.data_ptr<float>(), static_cast<size_t>(made.frames.numel())});
      made.frames = made.frames.repeat_interleave(sample.copies, 0);
    }
    for (const SampleText& text : sample.texts)
      made.texts.push_back({{text.ids.begin(), text.ids.end()}, {text.answer_mask.begin(), text.answer_mask.end()}});
    return made;
  }

  SyntheticSource::Where broken = [](const DrawnSample&) { return false; };
  std::function<std::optional<bool>(const DrawnSample&)> judgement = [](const DrawnSample&) {
    return std::optional<bool>();
  };

 private:
  plan::Measure measure_;
  std::vector<int64_t> sizes_;
};

// The tiny model with the vocabulary of the small tokenizer.
inline model::ModelConfig config() {
  auto config = model::tiny_config();
  config.decoder.vocab_size = 261;
  return config;
}

inline plan::EvaluationSet wanted(plan::Measure measure, std::vector<std::string> modes = {"coarse_fine"}) {
  plan::EvaluationSet set;
  set.name = "made";
  set.measure = measure;
  set.modes = std::move(modes);
  return set;
}

inline std::unique_ptr<SampleSet> open(const plan::EvaluationSet& set, std::shared_ptr<const SampleSource> samples,
                                       const PackSize& most = {64, 512}, std::string headline = "accuracy") {
  OpenedSource source;
  source.headline = std::move(headline);
  source.samples = std::move(samples);
  source.tokenizer = std::make_shared<Tokenizer>(Tokenizer::from_json(test::small_tokenizer().dump(), "small"));
  source.image_size = 8;
  source.mix = mix_of({1, 1});
  source.source_names = {"clips", "texts"};
  source.loader.workers = 1;
  source.packer = [](const PackSize&) { return first_fit; };
  return std::make_unique<SampleSet>(set, std::move(source), most);
}

} // namespace fvlm::evaluation
