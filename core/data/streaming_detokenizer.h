// StreamingDetokenizer: decodes tokens incrementally during generation, into complete UTF-8 characters.
#pragma once
#include "data/tokenizer.h"

#include <span>
#include <string>
#include <vector>

namespace fvlm {

// The special tokens that are part of what some models read and answer, as Granite Docling's of a page's parts: all but
// those that tokenizer_config.json names as the beginning, the end or the padding of a text.
std::vector<std::string> special_texts(const Tokenizer& tokenizer);

class StreamingDetokenizer {
 public:
  // The tokenizer must outlive it. `shown`: texts that are shown though they are special tokens.
  explicit StreamingDetokenizer(const Tokenizer& tokenizer, std::span<const std::string> shown = {});

  // Returns the text that can be shown so far. Other special tokens are left out; an unknown id becomes U+FFFD.
  std::string add(TokenId id);
  // Returns the text that was held back because it could have become a character. Call it last.
  std::string finish();

 private:
  std::string take(size_t bytes);
  void hold(TokenId id);
  const Tokenizer& tokenizer_;
  std::vector<TokenId> shown_;
  std::string held_;
  std::string bytes_;  // of a character whose tokens are single bytes (SentencePiece), until it is complete
  bool begins_ = true; // no text was added yet
};

} // namespace fvlm
