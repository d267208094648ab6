#include "evaluation/answerer.h"

#include "base/text.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace fvlm::evaluation {
namespace {

// The frames whose rows stand in the prompt: all, unless an image follows the last answer.
at::Tensor frames_before(const std::vector<TokenId>& prompt, const Sample& sample, const at::Tensor& frames) {
  const auto& texts = sample.texts;
  if (frames.dim() == 1 ||
      std::all_of(texts.begin(), texts.end(), [](const SampleText& text) { return text.placeholders == 0; }))
    return frames;
  const int64_t rows = std::count(prompt.begin(), prompt.end(), visual_placeholder);
  return frames.narrow(0, 0, rows / sample.rows_per_frame);
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
  std::erase(ids, visual_placeholder);
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

// An answer ends as the decoder's config says, or with the turn.
Answerer::Answerer(const Tokenizer& tokenizer, const model::Model& model, ops::Operations& ops)
    : tokenizer_(tokenizer), model_(model), ops_(ops), ends_(model.config().decoder.eos_token_id) {
  if (const auto end = tokenizer.special_id("<|im_end|>")) ends_.push_back(*end);
}

std::string Answerer::answer(const std::vector<TokenId>& prompt, const Sample& sample, const at::Tensor& frames,
                             int64_t tokens, const std::string& mode) const {
  if (prompt.empty()) return "";
  const at::Tensor shown = frames.defined()
                               ? model::encoder_input(frames_before(prompt, sample, frames), ops_.tensor_options())
                               : at::Tensor();
  const std::vector<int64_t> asked(prompt.begin(), prompt.end());
  const int64_t room = model_.config().decoder.max_position_embeddings - model_.prompt_rows(shown, asked);
  if (room < 1) return "";
  const auto ids = model_.generate(ops_, shown, asked, {std::min(tokens, room), ends_}, {}, {}, mode);
  const std::string text = decoded(tokenizer_, {ids.begin(), ids.end()});
  return sample.has_short_answer ? first_line(text) : text;
}

} // namespace fvlm::evaluation
