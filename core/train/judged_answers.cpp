#include "train/judged_answers.h"

#include "base/error.h"
#include "evaluation/answerer.h"
#include "recipe/placeholders.h"

#include <algorithm>

namespace fvlm::train {
namespace {

// A text whose labels are its last answer.
SampleText with_answer(const std::vector<TokenId>& prompt, const std::vector<TokenId>& answer) {
  SampleText text;
  text.ids = prompt;
  text.placeholders = std::ranges::count_if(prompt, is_placeholder);
  text.answer_mask.assign(prompt.size(), 0);
  text.ids.insert(text.ids.end(), answer.begin(), answer.end());
  text.answer_mask.resize(text.ids.size(), 1);
  return text;
}

} // namespace

Sample JudgedAnswers::measure(const DrawnSample& drawn) const {
  Sample sample = source_.measure(drawn);
  if (!sample.dropped.empty()) return sample;
  if (!sample.is_desirable)
    throw Error(ErrorKind::data, "its answer is not said to be good or not, from which kto learns")
        .advise("\"label\": true or false says so; the source's fields = { label = ... } says what it is called");
  const SampleText& read = sample.texts.front();
  const evaluation::PromptAndAnswer own(read);
  SampleText text = with_answer(own.prompt, own.answer);
  if (text.placeholders != read.placeholders) {
    sample.dropped = "a text with an image behind its last answer";
    return sample;
  }
  std::vector<TokenId> other = other_answer(drawn);
  if (other.empty()) other = own.answer;
  const int64_t room = most_tokens_ - (text.tokens() - std::ssize(own.answer));
  if (std::ssize(other) > room) other.resize(static_cast<size_t>(room));
  sample.texts = {std::move(text), with_answer(own.prompt, other)};
  return sample;
}

// Of the sample behind it in its source, the first behind the last; empty where that cannot be used.
std::vector<TokenId> JudgedAnswers::other_answer(const DrawnSample& drawn) const {
  DrawnSample behind = drawn;
  behind.sample = (drawn.sample + 1) % sizes_.at(drawn.source);
  try {
    const Sample sample = source_.measure(behind);
    return sample.dropped.empty() ? evaluation::PromptAndAnswer(sample.texts.front()).answer : std::vector<TokenId>();
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return {}; // it is listed as broken where it is drawn itself
  }
}

} // namespace fvlm::train
