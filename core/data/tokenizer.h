// Tokenizer: encodes text to token ids and decodes them, as described by a Hugging Face tokenizer.json with byte-level
// BPE or the BPE of SentencePiece.
#pragma once
#include "data/bpe.h"
#include "data/normalization.h"
#include "data/pretokenizer.h"

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

// A token that is matched in the text before pre-tokenization, such as <|im_end|>.
struct AddedToken {
  TokenId id;
  std::string content;
  bool single_word = false, left_strip = false, right_strip = false, special = false;
  bool normalized = false; // matched after the tokens that are not normalized
};

// Finds added tokens in text; the longest match wins.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens = {});
  const AddedToken* at(std::string_view text, size_t at) const;
  auto begin() const { return tokens_.begin(); }
  auto end() const { return tokens_.end(); }

 private:
  std::vector<AddedToken> tokens_;                // longest content first
  std::array<std::vector<uint32_t>, 256> starts_; // by first byte: indices into tokens_
};

// Where text stands: some tokenizers begin a text otherwise than a part behind other tokens.
enum class TextPlace { begin, inside };

enum class SpecialTokens {
  parse,  // "<|im_end|>" in the text becomes that token; for templates
  as_text // it is encoded like any other text; for what users write
};

class Tokenizer {
 public:
  // Reads a tokenizer.json. Throws Error(data) that names a feature which is not supported.
  static Tokenizer from_file(const std::filesystem::path& path);
  static Tokenizer from_json(std::string_view json, const std::string& where);

  // Adds no tokens before or after the text. Invalid UTF-8 is replaced by U+FFFD.
  std::vector<TokenId> encode(std::string_view text, SpecialTokens special = SpecialTokens::parse,
                              TextPlace place = TextPlace::begin) const;

  // Invalid UTF-8 becomes U+FFFD. Throws Error(data) for an id outside the vocabulary.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  // The bytes that a token stands for. Throws Error(data) for an id without a token.
  const std::string& bytes_of(TokenId id) const;
  bool has(TokenId id) const { return known_[static_cast<size_t>(id)]; } // of an id below size()
  // Of any id: decoders may have more rows than there are tokens, and vocabularies holes.
  bool contains(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < size() && has(id); }
  std::optional<TokenId> added_id(std::string_view content) const; // of a token that is matched before others
  std::optional<TokenId> special_id(std::string_view content) const;
  bool special_at(std::string_view text, size_t at) const;        // whether a special token is spelled there
  const std::filesystem::path& folder() const { return folder_; } // of the file; empty for from_json()
  bool is_special(TokenId id) const { return special_[static_cast<size_t>(id)]; } // of an id below size()
  // SentencePiece: whether a token is a byte of a character, and whether text loses a space at its beginning.
  bool is_byte_fallback(TokenId id) const { return sentencepiece_ && byte_[static_cast<size_t>(id)]; }
  bool drops_first_space() const { return drops_first_space_; }
  size_t size() const { return bytes_.size(); } // one more than the largest id
  // Throws Error(data) when the tokenizer has more tokens than the embedding of the decoder has rows.
  void check_vocabulary_size(int64_t vocabulary, const std::string& where) const;

  // Encodes many texts on one thread, with a cache of words.
  class Encoder {
   public:
    explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer), words_(tokenizer.model_) {}
    void append(std::string_view text, SpecialTokens special, std::vector<TokenId>& out,
                TextPlace place = TextPlace::begin);
    // Special tokens become tokens, but not those that begin at one of the sorted places `literal`. Places count from
    // `offset` bytes before the text, which is a part of a larger one and valid UTF-8.
    void append_text_with_tokens(std::string_view text, std::span<const size_t> literal, size_t offset,
                                 std::vector<TokenId>& out);

   private:
    void append_normalized(std::string_view piece, SpecialTokens special, TextPlace place, std::vector<TokenId>& out);
    const Tokenizer& tokenizer_;
    WordEncoder words_;
  };

 private:
  friend class TokenizerFile;
  Tokenizer() = default;
  std::string decode_sentencepiece(std::span<const TokenId> ids, bool skip_special) const;

  BpeModel model_;
  PreTokenizer pretokenizer_;
  std::filesystem::path folder_;
  std::vector<Normalizer> normalizers_;
  bool sentencepiece_ = false; // tokens are characters with marks for spaces, and bytes where there is no token
  bool drops_first_space_ = false;
  AddedTokens added_, added_normalized_;
  std::vector<std::string> bytes_;    // by id; empty for an id that is not used
  std::vector<bool> known_, special_; // by id
  std::vector<bool> byte_;            // by id, for SentencePiece: <0x0A>
};

} // namespace fvlm
