#include "data/tokenizer.h"

#include "base/error.h"
#include "base/parallel.h"
#include "data/unicode.h"

#include <fmt/format.h>

namespace fvlm {
namespace {

bool is_space_at(std::string_view text, size_t at) {
  return char_classes()[decode_at(text, at).point] & class_space;
}

bool is_word_at(std::string_view text, size_t at) {
  return char_classes()[decode_at(text, at).point] & class_word;
}

// Where the code point before `at` begins.
size_t previous(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

} // namespace

const AddedToken* Tokenizer::added_at(std::string_view text, size_t at, SpecialTokens special) const {
  for (uint32_t place : starts_[static_cast<unsigned char>(text[at])]) {
    const AddedToken& token = added_[place];
    if (special == SpecialTokens::as_text && token.special) continue;
    if (text.substr(at, token.content.size()) == token.content) return &token;
  }
  return nullptr;
}

void Tokenizer::Encoder::append_piece(std::string_view piece, std::vector<TokenId>& out) {
  if (piece.empty()) return;
  each_word(tokenizer_.pretokenizer_, piece, [&](std::string_view word) { words_.append(word, out); });
}

void Tokenizer::Encoder::append(std::string_view text, SpecialTokens special, std::vector<TokenId>& out) {
  ValidUtf8 valid(text);
  text = valid.view();
  size_t begin = 0; // of the text that no added token has taken
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = tokenizer_.added_at(text, at, special);
    if (!token) {
      ++at;
      continue;
    }
    size_t end = at + token->content.size();
    if (token->single_word) {
      bool word_before = at > 0 && is_word_at(text, previous(text, at));
      bool word_behind = end < text.size() && is_word_at(text, end);
      if (word_before || word_behind) {
        at = end;
        continue;
      }
    }
    size_t piece_end = at;
    if (token->left_strip)
      while (piece_end > begin && is_space_at(text, previous(text, piece_end))) piece_end = previous(text, piece_end);
    if (token->right_strip)
      while (end < text.size() && is_space_at(text, end)) end += decode_at(text, end).length;
    append_piece(text.substr(begin, piece_end - begin), out);
    out.push_back(token->id);
    begin = at = end;
  }
  append_piece(text.substr(begin), out);
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::vector<TokenId> ids;
  Encoder(*this).append(text, special, ids);
  return ids;
}

std::vector<std::vector<TokenId>> Tokenizer::encode_batch(std::span<const std::string> texts, SpecialTokens special,
                                                          int threads) const {
  std::vector<std::vector<TokenId>> result(texts.size());
  in_parallel(std::ssize(texts), threads, [&, encoder = Encoder(*this)](int64_t number) mutable {
    const auto i = static_cast<size_t>(number);
    encoder.append(texts[i], special, result[i]);
  });
  return result;
}

const std::string& Tokenizer::bytes_of(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= bytes_.size() || !known_[static_cast<size_t>(id)])
    throw Error(ErrorKind::data, fmt::format("token id {} is not in the vocabulary of {} ids", id, bytes_.size()));
  return bytes_[static_cast<size_t>(id)];
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (TokenId id : ids) {
    const std::string& token = bytes_of(id);
    if (!skip_special || !special_[static_cast<size_t>(id)]) bytes += token;
  }
  return std::string(ValidUtf8(bytes).view());
}

std::optional<TokenId> Tokenizer::special_id(std::string_view content) const {
  for (const AddedToken& token : added_)
    if (token.content == content) return token.id;
  return std::nullopt;
}

} // namespace fvlm
