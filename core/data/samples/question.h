// A question about a context: the source that an encoder of bytes or the decoder itself reads, and the anchor and the
// answer that the decoder has behind it.
#pragma once
#include "data/samples/sample.h"
#include "data/tokenizer.h"
#include "recipe/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fvlm {

inline constexpr std::string_view source_mark = "{source}";

struct Question {
  std::string context, question, answer;
};

// Whether it becomes a turn of the user in the decoder's chat: where neither an encoder reads its bytes nor the mix
// says how questions are written.
inline bool is_asked_in_chat(const plan::Mix& mix, const plan::VisualRows& visual_rows) {
  return !mix.questions && visual_rows.max_bytes == 0;
}

// The longest start of UTF-8 text that has at most `most` bytes and ends between characters.
std::string_view whole_characters(std::string_view text, size_t most);

// The form's source of a question. If it has more than `max_bytes`, the end of the context is cut off at a whole
// character. Nothing where it is too long without any context.
std::optional<std::string> source_of(const plan::QuestionForm& form, const Question& question, int64_t max_bytes);

// The tokens of a text: [BOS][rows][anchor][answer, EOS], or [rows][BOS] as the form says. Spaces at the end of the
// anchor belong to the answer, as in "Answer:" and " Paris".
class QuestionEncoder {
 public:
  // The tokenizer outlives it.
  QuestionEncoder(const Tokenizer& tokenizer, plan::QuestionForm form)
      : tokenizer_(tokenizer), form_(std::move(form)) {}

  const plan::QuestionForm& form() const { return form_; }
  // Throws Error(data) where the tokenizer has no such BOS or EOS.
  void require_tokens() const;

  // An answer's tokens, with the spaces at the end of the anchor before it and EOS behind it.
  std::vector<TokenId> answer(const std::string& answer) const;
  // Behind visual rows: a placeholder stands for each. Throws as require_tokens() does.
  SampleText behind_rows(int64_t rows, const std::string& answer) const;
  // Behind the source as text, in the place of {source} in the prompt; the rest of the prompt may have special tokens.
  SampleText behind_text(const std::string& prompt, const std::string& source, const std::string& answer) const;

 private:
  TokenId special(const std::string& token, const char* key) const;
  void append(const std::vector<TokenId>& ids, bool answer, SampleText& to) const;
  void append_begin(plan::QuestionForm::Begin place, SampleText& to) const;
  void append_answer(const std::string& answer, SampleText& to) const;

  const Tokenizer& tokenizer_;
  plan::QuestionForm form_;
};

} // namespace fvlm
