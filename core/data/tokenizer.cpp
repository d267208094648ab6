#include "data/tokenizer.h"

#include "base/error.h"
#include "data/normalization.h"
#include "data/unicode.h"

#include <algorithm>

namespace fvlm {
namespace {

bool is_space_at(std::string_view text, size_t at) {
  return char_classes()[decode_at(text, at).point] & class_space;
}

bool is_word_at(std::string_view text, size_t at) {
  return char_classes()[decode_at(text, at).point] & class_word;
}

// Returns where the code point before `at` begins.
size_t previous(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word_at(text, previous(text, begin))) && (end == text.size() || !is_word_at(text, end));
}

// Cuts the text at added tokens as Hugging Face does: calls token(id) for each, and piece(std::string_view) for the
// text between them. is_literal(at, end) says of a special token's spelling that it is text.
template <class Literal, class Token, class Piece>
void cut(std::string_view text, const AddedTokens& added, Literal&& is_literal, Token&& token, Piece&& piece) {
  size_t begin = 0; // of the text that no added token has taken
  for (size_t at = 0; at < text.size();) {
    const AddedToken* found = added.at(text, at);
    if (!found) {
      ++at;
      continue;
    }
    size_t first = at, end = at + found->content.size();
    at = end;
    if (found->special && is_literal(first, end)) continue;
    if (found->single_word && !stands_alone(text, first, end)) continue;
    if (found->left_strip) {
      first = std::max(first, begin);
      while (first > begin && is_space_at(text, previous(text, first))) first = previous(text, first);
    }
    if (found->right_strip)
      while (end < text.size() && is_space_at(text, end)) end += decode_at(text, end).length;
    if (first > begin) piece(text.substr(begin, first - begin));
    if (first < end) token(found->id);
    begin = end; // stripped whitespace is still searched, as it may contain a token
  }
  if (begin < text.size()) piece(text.substr(begin));
}

} // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (uint32_t place = 0; place < tokens_.size(); ++place)
    starts_[static_cast<unsigned char>(tokens_[place].content[0])].push_back(place);
}

const AddedToken* AddedTokens::at(std::string_view text, size_t at) const {
  for (uint32_t place : starts_[static_cast<unsigned char>(text[at])])
    if (text.substr(at).starts_with(tokens_[place].content)) return &tokens_[place];
  return nullptr;
}

// Text between the added tokens that are not normalized.
void Tokenizer::Encoder::append_normalized(std::string_view piece, SpecialTokens special, TextPlace place,
                                           std::vector<TokenId>& out) {
  std::string normalized;
  if (!tokenizer_.normalizers_.empty()) {
    normalized = normalize(tokenizer_.normalizers_, piece);
    piece = normalized;
  }
  auto is_literal = [&](size_t, size_t) { return special == SpecialTokens::as_text; };
  auto words = [&](std::string_view part) {
    const bool is_first = place == TextPlace::begin && part.data() == piece.data();
    each_word(tokenizer_.pretokenizer_, part, is_first, [&](std::string_view word) { words_.append(word, out); });
  };
  cut(
      piece, tokenizer_.added_normalized_, is_literal, [&](TokenId id) { out.push_back(id); }, words);
}

void Tokenizer::Encoder::append(std::string_view text, SpecialTokens special, std::vector<TokenId>& out,
                                TextPlace place) {
  ValidUtf8 valid(text);
  auto is_literal = [&](size_t, size_t) { return special == SpecialTokens::as_text; };
  cut(
      valid.view(), tokenizer_.added_, is_literal, [&](TokenId id) { out.push_back(id); },
      [&](std::string_view piece) {
        const bool begins = piece.data() == valid.view().data();
        append_normalized(piece, special, begins ? place : TextPlace::inside, out);
      });
}

void Tokenizer::Encoder::append_text_with_tokens(std::string_view text, std::span<const size_t> literal, size_t offset,
                                                 std::vector<TokenId>& out) {
  auto is_literal = [&](size_t begin, size_t end) {
    auto found = std::lower_bound(literal.begin(), literal.end(), begin + offset);
    return found != literal.end() && *found < end + offset;
  };
  auto piece = [&](std::string_view part) {
    const auto begin = static_cast<size_t>(part.data() - text.data());
    append_normalized(part, is_literal(begin, begin + part.size()) ? SpecialTokens::as_text : SpecialTokens::parse,
                      begin + offset == 0 ? TextPlace::begin : TextPlace::inside, out);
  };
  cut(
      text, tokenizer_.added_, is_literal, [&](TokenId id) { out.push_back(id); }, piece);
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, SpecialTokens special, TextPlace place) const {
  std::vector<TokenId> ids;
  Encoder(*this).append(text, special, ids, place);
  return ids;
}

const std::string& Tokenizer::bytes_of(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= bytes_.size() || !known_[static_cast<size_t>(id)])
    throw Error(ErrorKind::data, "token id {} is not in the vocabulary of {} ids", id, bytes_.size());
  return bytes_[static_cast<size_t>(id)];
}

// Bytes that stand side by side are text together, or one U+FFFD each.
std::string Tokenizer::decode_sentencepiece(std::span<const TokenId> ids, bool skip_special) const {
  std::string text, bytes;
  auto take_bytes = [&] {
    if (ValidUtf8(bytes).view() == bytes)
      text += bytes;
    else
      for (size_t i = 0; i < bytes.size(); ++i) append_utf8(text, 0xFFFD);
    bytes.clear();
  };
  for (TokenId id : ids) {
    const std::string& token = bytes_of(id);
    if (skip_special && special_[static_cast<size_t>(id)]) continue;
    if (is_byte_fallback(id)) {
      bytes += token;
      continue;
    }
    take_bytes();
    text += token;
  }
  take_bytes();
  return drops_first_space_ && text.starts_with(' ') ? text.substr(1) : text;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  if (sentencepiece_) return decode_sentencepiece(ids, skip_special);
  std::string bytes;
  for (TokenId id : ids) {
    const std::string& token = bytes_of(id);
    if (!skip_special || !special_[static_cast<size_t>(id)]) bytes += token;
  }
  return std::string(ValidUtf8(bytes).view());
}

std::optional<TokenId> Tokenizer::added_id(std::string_view content) const {
  for (const AddedTokens* added : {&added_, &added_normalized_})
    for (const AddedToken& token : *added)
      if (token.content == content) return token.id;
  return std::nullopt;
}

std::optional<TokenId> Tokenizer::special_id(std::string_view content) const {
  const auto id = added_id(content);
  return id && is_special(*id) ? id : std::nullopt;
}

bool Tokenizer::special_at(std::string_view text, size_t at) const {
  for (const AddedTokens* added : {&added_, &added_normalized_})
    if (const AddedToken* found = added->at(text, at); found && found->special) return true;
  return false;
}

void Tokenizer::check_vocabulary_size(int64_t vocabulary, const std::string& where) const {
  if (static_cast<int64_t>(size()) > vocabulary)
    throw Error(ErrorKind::data, "the tokenizer has {} tokens, the decoder {}", size(), vocabulary)
        .at(where)
        .advise(
            "use the tokenizer that the decoder was trained with; `import --add-tokens` gives a model further tokens, "
            "as resize_token_embeddings() does in transformers");
}

} // namespace fvlm
