#include "bench/question_pack.h"

#include "base/random.h"
#include "objective/kl/settings.h"
#include "objective/next_token/settings.h"

#include <memory>
#include <utility>

namespace fvlm::bench {
namespace {

constexpr double first_tokens = 4, temperature = 2, weight_of_first = 0.5;

template <class Settings>
plan::Term term(Settings settings, double weight) {
  settings.weight.points = {weight};
  return settings;
}

// Random ones, one after the other.
class Tokens {
 public:
  Tokens(uint64_t pack, int64_t vocabulary)
      : stream_(pack, "question tokens"), vocabulary_(static_cast<uint64_t>(vocabulary)) {}

  void append(SampleText& text, int64_t count, bool learnt) {
    for (int64_t i = 0; i < count; ++i) text.ids.push_back(static_cast<TokenId>(stream_.bits(drawn_++) % vocabulary_));
    text.answer_mask.resize(text.ids.size(), learnt);
  }

 private:
  RandomStream stream_;
  uint64_t drawn_ = 0, vocabulary_;
};

} // namespace

std::vector<plan::Term> question_objective(bool caches_teacher) {
  objective::NextToken first, first_few;
  first.first.emplace().points = {1};
  first_few.first.emplace().points = {first_tokens};
  objective::Kl kl;
  kl.reads = objective::Kl::Reads::teacher_prompt;
  kl.first.emplace().points = {first_tokens};
  kl.temperature = temperature;
  kl.cache_teacher = caches_teacher;
  return {term(objective::NextToken(), 1), term(first, weight_of_first), term(first_few, weight_of_first), term(kl, 1)};
}

train::SyntheticPack make_question_pack(const QuestionLengths& lengths, const plan::VisualRows& visual_rows,
                                        int64_t samples, int64_t vocabulary, uint64_t number) {
  train::SyntheticPack made;
  const RandomStream bytes(number, "question bytes");
  Tokens tokens(number, vocabulary);
  uint64_t byte = 0;
  for (int64_t i = 0; i < samples; ++i) {
    auto sample = std::make_shared<Sample>();
    sample->frames = 1;
    sample->rows_per_frame = visual_rows.per_frame;
    for (int64_t of_sample = 0; of_sample < visual_rows.max_bytes; ++of_sample)
      sample->bytes.push_back(static_cast<uint8_t>(bytes.bits(byte++)));
    SampleText end;
    tokens.append(end, lengths.anchor, false);
    tokens.append(end, lengths.answer, true);
    const auto append_end = [&](SampleText text) {
      text.ids.insert(text.ids.end(), end.ids.begin(), end.ids.end());
      text.answer_mask.insert(text.answer_mask.end(), end.answer_mask.begin(), end.answer_mask.end());
      return text;
    };
    SampleText text, prompt;
    tokens.append(text, 1, false);
    text.placeholders = visual_rows.per_frame;
    text.ids.resize(text.ids.size() + static_cast<size_t>(text.placeholders), visual_placeholder);
    text.answer_mask.resize(text.ids.size(), 0);
    tokens.append(prompt, lengths.prompt, false);
    sample->texts.push_back(append_end(std::move(text)));
    sample->teacher_texts.push_back(append_end(std::move(prompt)));
    made.host.samples.push_back({i, sample, i});
    made.samples.push_back(std::move(sample));
  }
  made.host.frame_count = samples;
  return made;
}

} // namespace fvlm::bench
