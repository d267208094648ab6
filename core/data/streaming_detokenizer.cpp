#include "data/streaming_detokenizer.h"

#include "data/own_template.h"
#include "data/unicode.h"

#include <algorithm>
#include <utility>

namespace fvlm {
namespace {

constexpr std::string_view unknown = "\xEF\xBF\xBD"; // U+FFFD

// Returns where an incomplete UTF-8 character at the end begins, or the length of the text.
size_t complete_utf8_end(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

} // namespace

std::vector<std::string> special_texts(const Tokenizer& tokenizer) {
  std::vector<std::string> texts;
  for (size_t id = 0; id < tokenizer.size(); ++id)
    if (const auto token = static_cast<TokenId>(id); tokenizer.has(token) && tokenizer.is_special(token))
      texts.push_back(tokenizer.bytes_of(token));
  for (const char* name : {"bos_token", "eos_token", "pad_token"})
    if (const auto text = named_special_token(tokenizer.folder(), name)) std::erase(texts, *text);
  return texts;
}

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, std::span<const std::string> shown)
    : tokenizer_(tokenizer) {
  for (const std::string& text : shown)
    if (const auto id = tokenizer.special_id(text)) shown_.push_back(*id);
}

void StreamingDetokenizer::hold(TokenId id) {
  const bool known = tokenizer_.contains(id);
  if (known && tokenizer_.is_special(id) && std::ranges::find(shown_, id) == shown_.end()) return;
  if (known && tokenizer_.is_byte_fallback(id)) {
    begins_ = false;
    bytes_ += tokenizer_.bytes_of(id);
    if (complete_utf8_end(bytes_) == bytes_.size()) held_ += std::exchange(bytes_, "");
    return;
  }
  for (; !bytes_.empty(); bytes_.pop_back()) held_ += unknown; // bytes of a character that is not completed
  std::string_view text = known ? std::string_view(tokenizer_.bytes_of(id)) : unknown;
  if (begins_ && tokenizer_.drops_first_space() && text.starts_with(' ')) text.remove_prefix(1);
  begins_ = false;
  held_ += text;
}

std::string StreamingDetokenizer::add(TokenId id) {
  hold(id);
  return take(complete_utf8_end(held_));
}

std::string StreamingDetokenizer::finish() {
  for (; !bytes_.empty(); bytes_.pop_back()) held_ += unknown;
  return take(held_.size());
}

std::string StreamingDetokenizer::take(size_t bytes) {
  const std::string taken = held_.substr(0, bytes);
  held_.erase(0, bytes);
  return std::string(ValidUtf8(taken).view());
}

} // namespace fvlm
