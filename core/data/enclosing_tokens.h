// The tokens that a tokenizer puts around a text by itself, as the post_processor of its tokenizer.json says.
#pragma once
#include "data/tokenizer.h"

#include <cstddef>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

namespace fvlm {

struct EnclosingTokens {
  std::vector<TokenId> before, after;
};
// Of a single text, where it is a TemplateProcessing; else none.
EnclosingTokens enclosing_tokens(const Tokenizer& tokenizer);

// What a model reads of a text that is embedded, in training and in /v1/embeddings: its tokens, enclosed. A special
// token that it spells is text. The tokenizer must outlive it. [any thread]
class EmbeddingTokens {
 public:
  explicit EmbeddingTokens(const Tokenizer& tokenizer);

  static constexpr size_t any_number = std::numeric_limits<size_t>::max();
  struct Read {
    std::vector<TokenId> ids;
    size_t removed = 0; // from the end of the text, before the tokens behind it
  };
  Read of(std::string_view text, size_t most = any_number) const;

 private:
  struct Enclosing; // read when it is first needed, as it stands in a file of megabytes

  const Tokenizer& tokenizer_;
  std::shared_ptr<Enclosing> enclosing_;
};

} // namespace fvlm
