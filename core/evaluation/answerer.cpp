#include "evaluation/answerer.h"

#include "base/text.h"

namespace fvlm::evaluation {

PromptAndAnswer::PromptAndAnswer(const SampleText& text) {
  size_t end = text.ids.size();
  while (end > 0 && text.answer_mask[end - 1] == 0) --end;
  size_t begin = end;
  while (begin > 0 && text.answer_mask[begin - 1] != 0) --begin;
  prompt.assign(text.ids.begin(), text.ids.begin() + static_cast<std::ptrdiff_t>(begin));
  answer.assign(text.ids.begin() + static_cast<std::ptrdiff_t>(begin),
                text.ids.begin() + static_cast<std::ptrdiff_t>(end));
}

std::string decoded(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  return trimmed(tokenizer.decode(ids, true));
}

// An answer ends as the decoder's config says, or with the turn.
Answerer::Answerer(const Tokenizer& tokenizer, const model::Model& vlm, ops::Operations& ops)
    : tokenizer_(tokenizer), vlm_(vlm), ops_(ops), ends_(vlm.config().decoder.eos_token_id) {
  if (const auto end = tokenizer.special_id("<|im_end|>")) ends_.push_back(*end);
}

std::string Answerer::answer(const std::vector<TokenId>& prompt, const at::Tensor& frames, int64_t tokens) const {
  if (prompt.empty()) return "";
  const at::Tensor shown = frames.defined() ? frames.to(ops_.tensor_options()) : at::Tensor();
  const auto ids = vlm_.generate(ops_, shown, {prompt.begin(), prompt.end()}, {tokens, ends_});
  return decoded(tokenizer_, {ids.begin(), ids.end()});
}

} // namespace fvlm::evaluation
