#include "bench/question_pack.h"

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

// Tokens that differ from sample to sample, and from text to text.
class Tokens {
 public:
  Tokens(int64_t sample, int64_t vocabulary) : next_(sample * 7919), vocabulary_(vocabulary) {}

  void append(SampleText& text, int64_t count, bool learnt) {
    for (int64_t i = 0; i < count; ++i, next_ += 104729) text.ids.push_back(static_cast<TokenId>(next_ % vocabulary_));
    text.answer_mask.resize(text.ids.size(), learnt);
  }

 private:
  int64_t next_, vocabulary_;
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
                                        int64_t samples, int64_t vocabulary) {
  train::SyntheticPack made;
  for (int64_t i = 0; i < samples; ++i) {
    auto sample = std::make_shared<Sample>();
    sample->frames = 1;
    sample->rows_per_frame = visual_rows.per_frame;
    for (int64_t byte = 0; byte < visual_rows.max_bytes; ++byte)
      sample->bytes.push_back(static_cast<uint8_t>(byte * 31 + i * 7));
    SampleText end;
    Tokens tokens(i, vocabulary);
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
