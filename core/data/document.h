// Documents of a text stream: where they start, and how they are cut.
#pragma once
#include "data/samples/sample.h"
#include "data/tokenizer.h"
#include "recipe/plan.h"

#include <cstdint>
#include <vector>

namespace fvlm {

// The token that a document starts with: bos_token of the tokenizer's folder, or <|bos|>. Throws Error(data) where
// there is neither.
TokenId document_start(const Tokenizer& tokenizer);

// A document, cut into texts of at most this many tokens. Each begins with the last token of the one before, so that
// every token but the first is a label of one text.
std::vector<SampleText> cut(const SampleText& document, int64_t tokens);

// A row of a stream: tokens of successive documents, up to a fixed number.
class DocumentRow {
 public:
  DocumentRow(plan::Documents documents, int64_t tokens) : documents_(documents), room_(tokens) {}

  bool is_full() const { return room_ < (documents_ == plan::Documents::joined ? 1 : 2); }
  bool is_empty() const;
  // Appends the tokens from `offset` on, as many as there is room for. Returns the offset at which the next row
  // continues, or the document's size where it is used up. A next row repeats the last token, so that what follows it
  // is a label; an isolated document that ends with the row is used up.
  int64_t append(const SampleText& document, int64_t offset);
  // One text where documents are joined, else one for each.
  std::vector<SampleText> take() { return std::move(texts_); }

 private:
  plan::Documents documents_;
  int64_t room_;
  std::vector<SampleText> texts_;
};

} // namespace fvlm
