// BpeTrainer learns a byte-level BPE vocabulary from texts and writes it as a Hugging Face tokenizer.json.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace fvlm::shapes {

// Training is deterministic and independent of the order of the texts. It gives the same file as BpeTrainer of the
// Hugging Face tokenizers package with SmolLM2's pre-tokenizers: every digit is a word, then GPT-2's pattern splits.
class BpeTrainer {
 public:
  // Special tokens inside the text are treated as ordinary text.
  void add(std::string_view text);

  // Returns the content of tokenizer.json. Training stops at `max_vocabulary` tokens, or earlier when every word is a
  // single token. Throws Error(usage) when the special tokens and the 256 bytes do not fit into the vocabulary.
  std::string tokenizer_json(size_t max_vocabulary = 49152) const;

 private:
  std::unordered_map<std::string, uint64_t> word_counts_;
};

} // namespace fvlm::shapes
