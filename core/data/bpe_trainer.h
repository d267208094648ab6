// BpeTrainer: a byte-level tokenizer.json made from texts, for small models that bring none of their own.
#pragma once
#include "data/pretokenizer.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fvlm {

// The same texts give the same file, in whatever order they come: the one that the tokenizers wheel's BpeTrainer makes,
// with SmolLM2's pre-tokenizers (every digit a word of its own, then GPT-2's pattern).
class BpeTrainer {
 public:
  // What a text says stands for itself: special tokens are not looked for in it.
  void add(std::string_view text);

  struct Options {
    size_t vocabulary = 49152; // at most; training ends before when every word is one token
    uint64_t least_count = 0;  // of a pair of tokens, for it to be merged
    std::vector<std::string> special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}; // the first ids
  };
  // The text of tokenizer.json. Throws Error(usage) when the vocabulary has no place for the special tokens and bytes.
  std::string tokenizer_json(const Options& options) const;

 private:
  static constexpr PreTokenizer rules_{.split_digits = true, .add_prefix_space = false, .pattern = WordPattern::gpt2};
  std::unordered_map<std::string, uint64_t> words_; // and how often each stands in the texts
};

} // namespace fvlm
