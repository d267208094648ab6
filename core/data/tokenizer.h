// Tokenizer: encodes text to token ids and decodes them, as described by a Hugging Face tokenizer.json with byte-level
// BPE.
#pragma once
#include "data/bpe.h"
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
  std::vector<TokenId> encode(std::string_view text, SpecialTokens special = SpecialTokens::parse) const;

  // Many texts on as many threads; the same result as one by one.
  std::vector<std::vector<TokenId>> encode_batch(std::span<const std::string> texts, SpecialTokens special,
                                                 int threads) const;

  // Invalid UTF-8 becomes U+FFFD. Throws Error(data) for an id outside the vocabulary.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  // The bytes that a token stands for.
  const std::string& bytes_of(TokenId id) const;
  std::optional<TokenId> special_id(std::string_view content) const;
  size_t size() const { return bytes_.size(); } // one more than the largest id
  // Throws Error(data) when the tokenizer has more tokens than the embedding of the decoder has rows.
  void check_vocabulary_size(int64_t vocabulary, const std::string& where) const;

  // Encodes many texts on one thread, with a cache of words.
  class Encoder {
   public:
    explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer), words_(tokenizer.model_) {}
    void append(std::string_view text, SpecialTokens special, std::vector<TokenId>& out);

   private:
    void append_words(std::string_view piece, std::vector<TokenId>& out);
    const Tokenizer& tokenizer_;
    WordEncoder words_;
  };

 private:
  friend class TokenizerFile;
  Tokenizer() = default;

  BpeModel model_;
  PreTokenizer pretokenizer_;
  AddedTokens added_, added_normalized_;
  std::vector<std::string> bytes_;    // by id; empty for an id that is not used
  std::vector<bool> known_, special_; // by id
};

} // namespace fvlm
