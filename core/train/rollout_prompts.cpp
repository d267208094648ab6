#include "train/rollout_prompts.h"

#include "recipe/placeholders.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::train {

Sample RolloutPrompts::measure(const DrawnSample& drawn) const {
  Sample sample = source_.measure(drawn);
  if (!sample.dropped.empty()) return sample;
  const SampleText& read = sample.texts.front();
  const evaluation::PromptAndAnswer text(read);
  const auto prompt = std::ssize(text.prompt);
  SampleText reserved;
  reserved.ids = text.prompt;
  reserved.placeholders = std::ranges::count_if(reserved.ids, is_placeholder);
  const int64_t room = std::min(rollouts_.max_new_tokens, most_tokens_ - reserved.tokens());
  if (prompt == 0)
    sample.dropped = "a text without a prompt before its answer";
  else if (reserved.placeholders != read.placeholders)
    sample.dropped = "a text with an image behind its last answer";
  else if (room < 1)
    sample.dropped = fmt::format("a prompt that leaves no room for an answer in max_text_tokens = {}", most_tokens_);
  else if (sample.answers.empty() && sample.truncated_answer_tokens > 0)
    sample.dropped = fmt::format("an expected answer that max_text_tokens = {} cuts", most_tokens_);
  if (!sample.dropped.empty()) return sample;
  sample.answers = answers_.expected(sample, read);
  reserved.ids.resize(static_cast<size_t>(prompt + room), read.ids.back()); // which ends answers, where they are short
  reserved.answer_mask.resize(reserved.ids.size(), 0);
  std::fill(reserved.answer_mask.begin() + prompt, reserved.answer_mask.end(), 1);
  sample.texts.assign(static_cast<size_t>(rollouts_.answers), reserved);
  return sample;
}

} // namespace fvlm::train
