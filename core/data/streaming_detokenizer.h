// StreamingDetokenizer: decodes tokens incrementally during generation. It emits complete UTF-8 characters only, and
// nothing from the first stop string on.
#pragma once
#include "data/stop_texts.h"
#include "data/tokenizer.h"

#include <span>
#include <string>
#include <vector>

namespace fvlm {

class StreamingDetokenizer {
 public:
  // The tokenizer must outlive it. Throws Error(usage) for an empty stop string. `shown`: texts that are shown though
  // they are special tokens.
  StreamingDetokenizer(const Tokenizer& tokenizer, std::vector<std::string> stops,
                       std::span<const std::string> shown = {});

  // Returns the text that can be shown so far. Other special tokens are left out; an unknown id becomes U+FFFD. Without
  // `may_stop` a stop string that ends in this token's text is text.
  std::string add(TokenId id, bool may_stop = true);
  // Returns the text that was held back because it could have become a stop string or a character. Call it last.
  std::string finish();
  bool stopped() const { return stops_.found(); } // a stop string was found

 private:
  std::string take(size_t bytes);
  void hold(TokenId id);
  const Tokenizer& tokenizer_;
  StopTexts stops_;
  std::vector<TokenId> shown_;
  std::string held_;
  std::string bytes_;  // of a character whose tokens are single bytes (SentencePiece), until it is complete
  bool begins_ = true; // no text was added yet
};

} // namespace fvlm
