#include "evaluation/answerer.h"

#include "base/error.h"
#include "base/text.h"
#include "data/own_template.h"
#include "data/streaming_detokenizer.h"
#include "evaluation/answers.h"
#include "infer/generation_batch.h"
#include "model/weights/generation_config.h"
#include "recipe/placeholders.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
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

// Prompts of one sample begin with the same rows, where its placeholders name none of them. `number`: of the sample.
std::vector<std::string> visual_keys(const Answerer::Question& question, const at::Tensor& visual, int64_t number) {
  const Sample& sample = question.sample;
  int64_t frames = sample.frames, rows = sample.visual_rows();
  if (const auto grids = sample.grids(); !grids.empty()) {
    frames = rows = 0;
    for (const ImageGrid& grid : grids) frames += grid.squares(), rows += grid.cells();
  }
  std::vector<std::string> keys;
  if (!visual.defined() || visual.size(0) != rows) return keys;
  for (int64_t frame = 0; frame < frames; ++frame) keys.push_back(fmt::format("{} {}", number, frame));
  return keys;
}

// An answer ends as it does in generation, or with ChatML's turn.
std::vector<int64_t> ends_of(const Tokenizer& tokenizer, const model::Model& model) {
  auto ends = end_tokens(tokenizer.folder(), model.config().decoder.eos_token_id);
  if (const auto end = tokenizer.special_id("<|im_end|>")) ends.push_back(*end);
  return ends;
}

// Short answers end as those do that the model is trained on, whatever else ends an answer.
infer::StopRules own_end(const Tokenizer& tokenizer, const Sample& sample) {
  if (!sample.has_short_answer || sample.texts.empty() || sample.texts.front().ids.empty()) return {};
  const TokenId last = sample.texts.front().ids.back();
  if (!tokenizer.contains(last) || !tokenizer.is_special(last)) return {}; // of a text that was cut
  return {.stop_token_ids = {last}};
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
  std::erase_if(ids, [&](TokenId id) { return !tokenizer.contains(id); });
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
        const bool is_number = line.starts_with(mark) && is_of_number(line, 0); // "-3" and ".5"
        if (line.starts_with(mark) && !is_number) line.remove_prefix(mark.size()), again = true;
        if (line.ends_with(mark)) line.remove_suffix(mark.size()), again = true;
      }
    }
    if (!line.empty()) return std::string(line);
  }
  return "";
}

AnswerReader::AnswerReader(const Tokenizer& tokenizer, const std::optional<std::string>& chat_template)
    : tokenizer_(tokenizer),
      thought_tags_(thought_tags(
          tokenizer, chat_template ? chat_template_text(tokenizer.folder(), *chat_template).value_or("") : "")) {}

AnswerReader::Answer AnswerReader::read(const Sample& sample, std::span<const TokenId> prompt,
                                        std::vector<TokenId> ids) const {
  Answer answer{without_thoughts(prompt, ids)};
  answer.is_thought_alone = answer.text.empty() && !ids.empty() && !decoded(tokenizer_, ids).empty();
  if (sample.has_short_answer) answer.text = first_line(answer.text);
  return answer;
}

// The tags may be special tokens, which are left out of texts otherwise.
std::string AnswerReader::without_thoughts(std::span<const TokenId> prompt, std::vector<TokenId> ids) const {
  const Thinking thinking = thinking_behind(tokenizer_, prompt, thought_tags_);
  if (!thinking.tags) return decoded(tokenizer_, std::move(ids));
  const std::vector<std::string> tags{thinking.tags->begin, thinking.tags->end};
  StreamingDetokenizer text(tokenizer_, tags);
  ThoughtReader reader(thinking);
  std::string said;
  for (const TokenId id : ids)
    if (tokenizer_.contains(id)) said += reader.add(text.add(id)).text;
  said += reader.add(text.finish()).text;
  return trimmed(said + reader.finish().text);
}

std::vector<std::string> AnswerReader::expected(const Sample& sample, const SampleText& text) const {
  if (!sample.answers.empty()) return sample.answers;
  const PromptAndAnswer parts(text);
  return {without_thoughts(parts.prompt, parts.answer)};
}

Answerer::Answerer(const AnswerReader& reader, const model::Model& model, ops::Operations& ops,
                   const infer::BatchOptions& options)
    : reader_(reader), model_(model), batch_(model, ops, ends_of(reader.tokenizer(), model), options) {}

std::vector<infer::GeneratedAnswer> Answerer::generate(const std::vector<Question>& questions, int64_t tokens) {
  std::vector<infer::GeneratedAnswer> answers(questions.size());
  std::map<int64_t, size_t> asked; // questions by their numbers in the batch
  const Sample* sample = nullptr;  // of the question before
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    if (sample != &question.sample) ++samples_;
    sample = &question.sample;
    const std::vector<int64_t> prompt(question.prompt.begin(), question.prompt.end());
    const at::Tensor visual = visual_of(question);
    const int64_t rows = model::rows_of(prompt, 1, visual.defined() ? visual.size(0) : 0);
    const int64_t room = model_.config().decoder.max_position_embeddings - rows;
    if (prompt.empty()) continue;
    if (room < 1)
      throw Error(ErrorKind::data, "the question of sample '{}' takes {} rows, and the decoder has {} positions",
                  question.sample.key, rows, model_.config().decoder.max_position_embeddings);
    const int64_t number = batch_.add({.tokens = prompt,
                                       .visual = visual,
                                       .max_tokens = std::min({tokens, room, question.most_tokens}),
                                       .sampling = question.sampling,
                                       .visual_keys = visual_keys(question, visual, samples_),
                                       .grids = question.sample.grids(),
                                       .stop = own_end(reader_.tokenizer(), question.sample)});
    asked[number] = i;
  }
  for (infer::GeneratedAnswer& answer : batch_.finish()) answers[asked.at(answer.number)] = std::move(answer);
  return answers;
}

std::vector<std::string> Answerer::answers(const std::vector<Question>& questions, int64_t tokens) {
  std::vector<std::string> answers;
  const auto generated = generate(questions, tokens);
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    auto answer =
        reader_.read(question.sample, question.prompt, {generated[i].tokens.begin(), generated[i].tokens.end()});
    thoughts_alone_ += answer.is_thought_alone;
    answers.push_back(std::move(answer.text));
  }
  return answers;
}

} // namespace fvlm::evaluation
