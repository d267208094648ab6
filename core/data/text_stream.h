// TextStream: tokens to text as they are made. What it hands out are whole characters, and nothing from the first stop
// text on.
#pragma once
#include "data/tokenizer.h"

#include <string>
#include <vector>

namespace fvlm {

class TextStream {
 public:
  // The tokenizer outlives it. Throws Error(usage) for an empty stop text.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops);

  // What can be shown of it by now. Special tokens say nothing; one that the tokenizer does not have is U+FFFD.
  std::string add(TokenId id);
  // What was held back, as it might have become a stop text or a character. Nothing more is added.
  std::string finish();
  bool stopped() const { return stopped_; } // a stop text came

 private:
  std::string take(size_t bytes);
  const Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

} // namespace fvlm
