#include "data/document.h"

#include "base/error.h"
#include "data/own_template.h"

#include <algorithm>

namespace fvlm {
namespace {

void append(const SampleText& from, int64_t begin, int64_t end, SampleText& to) {
  to.ids.insert(to.ids.end(), from.ids.begin() + begin, from.ids.begin() + end);
  to.answer_mask.insert(to.answer_mask.end(), from.answer_mask.begin() + begin, from.answer_mask.begin() + end);
}

} // namespace

TokenId document_start(const Tokenizer& tokenizer) {
  const std::string name = named_special_token(tokenizer.folder(), "bos_token").value_or("<|bos|>");
  if (const auto id = tokenizer.special_id(name)) return *id;
  throw Error(ErrorKind::data, "the tokenizer has no special token '" + name + "', which documents start with")
      .at(tokenizer.folder().string())
      .advise("set bos_token in tokenizer_config.json to one of its special tokens");
}

std::vector<SampleText> cut(const SampleText& document, int64_t tokens) {
  const auto size = static_cast<int64_t>(document.ids.size());
  std::vector<SampleText> texts;
  for (int64_t begin = 0; begin == 0 || begin + 1 < size; begin += tokens - 1)
    append(document, begin, std::min(size, begin + tokens), texts.emplace_back());
  return texts;
}

bool DocumentRow::is_empty() const {
  return texts_.empty() || texts_.front().ids.size() < 2;
}

int64_t DocumentRow::append(const SampleText& document, int64_t offset) {
  const auto size = static_cast<int64_t>(document.ids.size());
  const int64_t end = std::min(size, offset + room_);
  if (texts_.empty() || documents_ == plan::Documents::isolated) texts_.emplace_back();
  fvlm::append(document, offset, end, texts_.back());
  room_ -= end - offset;
  if (end == size && documents_ == plan::Documents::isolated) return size;
  return room_ == 0 ? end - 1 : end;
}

} // namespace fvlm
