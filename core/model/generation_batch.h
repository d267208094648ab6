// GenerationBatch: answers many prompts at once, by one pass of the decoder in each step, over the rows of prompts that
// join and the newest token of every answer that has not ended. One prompt is a batch of one.
#pragma once
#include "model/model.h"
#include "model/sampling.h"

#include <deque>
#include <functional>
#include <optional>
#include <vector>

namespace fvlm::model {

// Returns false to end the answer.
using TokenCallback = std::function<bool(int64_t token)>;

struct Prompt {
  std::vector<int64_t> tokens; // visual_placeholder where a visual row stands; without any, all of them stand before
  at::Tensor visual;           // [visual rows, decoder width]; undefined: none
  int64_t max_tokens = 1;      // of the answer
  Sampling sampling;
  TokenCallback on_token; // called with each token of the answer but an end token; may be empty
};

struct GeneratedAnswer {
  int64_t number = 0;          // of its prompt, as add() returned it
  std::vector<int64_t> tokens; // with the end token, if there is one
  bool ended = false;          // by an end token
  double seconds = 0;          // since the first pass over its prompt began
};

class GenerationBatch {
 public:
  // The default for `cache_rows`, the rows of keys and values that all answers share. They take 0.19 GB for a decoder
  // of 135M parameters (SmolLM2) in bfloat16, 1.6 GB for one of 1.7B.
  static constexpr int64_t default_cache_rows = 8192;

  // An answer ends after any of `end_tokens`. The model and the operations outlive the batch. As many prompts are
  // answered at a time as have room in `cache_rows` if each gets as many rows as the longest, but at least one.
  // `expected`: for so many prompts at a time room is made beforehand, as far as it goes, for those that come later.
  GenerationBatch(const Model& model, Operations& ops, std::vector<int64_t> end_tokens,
                  int64_t cache_rows = default_cache_rows, int64_t expected = 1);

  // Queues a prompt of at least one row, and returns its number: 0 for the first. It joins as soon as another answer
  // leaves room. Throws Error(usage) for a sampling that makes no sense.
  int64_t add(Prompt prompt);
  // Appends a token to every answer that has not ended. Returns false, and does nothing, if there is none.
  bool step();
  // The answers that ended since the last call.
  std::vector<GeneratedAnswer> take_finished();
  // Steps until all answers have ended. Returns those that were not taken, in the order of their numbers.
  std::vector<GeneratedAnswer> finish();

 private:
  struct Sequence {
    GeneratedAnswer answer;
    Prompt prompt;
    Sampler sampler;
    std::vector<int64_t> context; // tokens of the prompt and the answer so far
    std::vector<int64_t> next;    // tokens of its next rows
    double begin = 0;

    int64_t rows() const; // at the end of its answer, at most
  };
  bool is_idle() const;
  void reserve();
  void admit();
  // The rows of all sequences' next tokens, and padding.
  at::Tensor next_rows();
  // Returns whether the answer is over.
  bool append(Sequence& sequence, int64_t token);

  const Model& model_;
  Operations& ops_;
  std::vector<int64_t> end_tokens_;
  int64_t cache_rows_, expected_, prompts_ = 0;
  KvCache cache_;
  std::vector<std::optional<Sequence>> active_; // by their sequence of the cache
  std::deque<Sequence> waiting_;
  std::vector<GeneratedAnswer> finished_;
};

} // namespace fvlm::model
