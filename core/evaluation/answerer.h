// Lets a model answer the prompts of a set's samples, many at once.
#pragma once
#include "data/samples/sample.h"
#include "data/thoughts.h"
#include "data/tokenizer.h"
#include "infer/generation_batch.h"
#include "model/model.h"

#include <limits>
#include <optional>
#include <span>
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
// it, but for the sign and the point that begin a number.
std::string first_line(const std::string& answer);

// Reads answers as they are compared with the expected ones: without what a model thinks before it answers.
class AnswerReader {
 public:
  // The tokenizer outlives it. `chat_template`: see plan::Mix.
  AnswerReader(const Tokenizer& tokenizer, const std::optional<std::string>& chat_template);

  struct Answer {
    std::string text;
    bool is_thought_alone = false; // it may have been cut off before the model had thought to an end
  };
  Answer read(const Sample& sample, std::span<const TokenId> prompt, std::vector<TokenId> ids) const;
  // All that are right for the sample: its own list, or else the text's answer.
  std::vector<std::string> expected(const Sample& sample, const SampleText& text) const;

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  std::string without_thoughts(std::span<const TokenId> prompt, std::vector<TokenId> ids) const;

  const Tokenizer& tokenizer_;
  const ThoughtTags* thought_tags_;
};

class Answerer {
 public:
  // The first three outlive it. After an exception of what follows it cannot be used any more.
  Answerer(const AnswerReader& reader, const model::Model& model, ops::Operations& ops,
           const infer::BatchOptions& options = {});

  struct Question {
    std::vector<TokenId> prompt;
    const Sample& sample;          // that the prompt is of
    at::Tensor visual;             // of the sample's frames, [rows, decoder width]; undefined: it has none
    infer::Sampling sampling = {}; // the likeliest tokens, unless it says otherwise
    int64_t most_tokens = std::numeric_limits<int64_t>::max(); // of its answer, whatever others may have
  };
  // At most `tokens` tokens each, up to the end of the turn, as far as the decoder has positions. None for an empty
  // prompt. Several questions of one sample share what is computed of its prompt. Throws Error(data) for a prompt that
  // leaves none of the decoder's positions.
  std::vector<infer::GeneratedAnswer> generate(const std::vector<Question>& questions, int64_t tokens);
  // Their texts.
  std::vector<std::string> answers(const std::vector<Question>& questions, int64_t tokens);
  // How many of those answers were thoughts alone.
  int64_t thoughts_alone() const { return thoughts_alone_; }
  // See infer::GenerationBatch.
  void clear_prefix_cache() { batch_.clear_prefix_cache(); }

 private:
  const AnswerReader& reader_;
  const model::Model& model_;
  infer::GenerationBatch batch_; // whose pages and CUDA graphs serve all calls
  int64_t samples_ = 0;          // that questions were of so far
  int64_t thoughts_alone_ = 0;
};

} // namespace fvlm::evaluation
