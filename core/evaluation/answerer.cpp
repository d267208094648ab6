#include "evaluation/answerer.h"

#include "base/text.h"
#include "infer/generation_batch.h"
#include "model/weights/end_tokens.h"
#include "recipe/placeholders.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace fvlm::evaluation {
namespace {

// The visual rows that a prompt reads: all that the sample has, unless an image follows the last answer, and its
// placeholders do not say which.
at::Tensor visual_of(const Answerer::Question& question) {
  const auto& texts = question.sample.texts;
  const bool before =
      std::all_of(texts.begin(), texts.end(), [](const SampleText& text) { return text.placeholders == 0; });
  if (before || !question.visual.defined()) return question.visual;
  const Placeholders placeholders = Placeholders::in(question.prompt);
  return placeholders.numbered > 0 ? question.visual : question.visual.narrow(0, 0, placeholders.count);
}

} // namespace

PromptAndAnswer::PromptAndAnswer(const SampleText& text) {
  size_t end = text.ids.size();
  while (end > 0 && text.answer_mask[end - 1] == 0) --end;
  size_t begin = end;
  while (begin > 0 && text.answer_mask[begin - 1] != 0) --begin;
  prompt.assign(text.ids.begin(), text.ids.begin() + static_cast<std::ptrdiff_t>(begin));
  answer.assign(text.ids.begin() + static_cast<std::ptrdiff_t>(begin),
                text.ids.begin() + static_cast<std::ptrdiff_t>(end));
}

std::string decoded(const Tokenizer& tokenizer, std::vector<TokenId> ids) {
  std::erase_if(ids, is_placeholder);
  return trimmed(tokenizer.decode(ids, true));
}

std::string first_line(const std::string& answer) {
  constexpr std::array<std::string_view, 12> stripped = {" ", "\t", "\r", ".", ":", ";", ",", "'", "\"", "-", "–", "—"};
  std::string_view all = answer;
  while (!all.empty()) {
    std::string_view line = all.substr(0, all.find('\n'));
    all.remove_prefix(std::min(all.size(), line.size() + 1));
    bool again = true;
    while (again) {
      again = false;
      for (const std::string_view mark : stripped) {
        if (line.starts_with(mark)) line.remove_prefix(mark.size()), again = true;
        if (line.ends_with(mark)) line.remove_suffix(mark.size()), again = true;
      }
    }
    if (!line.empty()) return std::string(line);
  }
  return "";
}

// An answer ends as it does in generation, or with ChatML's turn.
Answerer::Answerer(const Tokenizer& tokenizer, const model::Model& model, ops::Operations& ops)
    : tokenizer_(tokenizer), model_(model), ops_(ops),
      ends_(end_tokens(tokenizer.folder(), model.config().decoder.eos_token_id)) {
  if (const auto end = tokenizer.special_id("<|im_end|>")) ends_.push_back(*end);
}

std::vector<std::string> Answerer::answers(const std::vector<Question>& questions, int64_t tokens) const {
  std::vector<std::string> answers(questions.size());
  std::vector<size_t> asked;
  infer::GenerationBatch batch(model_, ops_, ends_);
  for (size_t i = 0; i < questions.size(); ++i) {
    const std::vector<int64_t> prompt(questions[i].prompt.begin(), questions[i].prompt.end());
    const at::Tensor visual = visual_of(questions[i]);
    const int64_t rows = model::rows_of(prompt, 1, visual.defined() ? visual.size(0) : 0);
    const int64_t room = model_.config().decoder.max_position_embeddings - rows;
    if (prompt.empty() || room < 1) continue;
    batch.add({prompt, visual, std::min(tokens, room), {}, {}});
    asked.push_back(i);
  }
  for (const infer::GeneratedAnswer& answer : batch.finish()) {
    const size_t i = asked[static_cast<size_t>(answer.number)];
    const std::string text = decoded(tokenizer_, {answer.tokens.begin(), answer.tokens.end()});
    answers[i] = questions[i].sample.has_short_answer ? first_line(text) : text;
  }
  return answers;
}

} // namespace fvlm::evaluation
