// Lets a model answer the prompts of a set's samples, greedily and many at once.
#pragma once
#include "data/samples/sample.h"
#include "data/tokenizer.h"
#include "model/model.h"

#include <string>
#include <vector>

namespace fvlm::evaluation {

// A text in two: up to where its last answer begins, and that answer.
struct PromptAndAnswer {
  explicit PromptAndAnswer(const SampleText& text);
  std::vector<TokenId> prompt, answer;
};

// Without special tokens, placeholders and the space around it.
std::string decoded(const Tokenizer& tokenizer, std::vector<TokenId> ids);

// What counts of a short answer: its first line that is not empty, without spaces and . : ; , ' " - and dashes around
// it.
std::string first_line(const std::string& answer);

class Answerer {
 public:
  // All three outlive it.
  Answerer(const Tokenizer& tokenizer, const model::Model& model, ops::Operations& ops);

  struct Question {
    std::vector<TokenId> prompt;
    const Sample& sample; // that the prompt is of
    at::Tensor visual;    // of the sample's frames, [rows, decoder width]; undefined: it has none
  };
  // At most `tokens` tokens each, up to the end of the turn, as far as the decoder has positions. Empty for an empty
  // prompt.
  std::vector<std::string> answers(const std::vector<Question>& questions, int64_t tokens) const;

 private:
  const Tokenizer& tokenizer_;
  const model::Model& model_;
  ops::Operations& ops_;
  std::vector<int64_t> ends_;
};

} // namespace fvlm::evaluation
