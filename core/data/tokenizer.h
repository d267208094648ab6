// Tokenizer: text to token ids and back, as a Hugging Face tokenizer.json says (byte-level BPE).
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

// A token that is found in text before anything else, such as <|im_end|>.
struct AddedToken {
  TokenId id;
  std::string content;
  bool single_word = false, left_strip = false, right_strip = false, special = false;
  bool normalized = false; // found only in what tokens that are not normalized have left
};

// Finds the added tokens of one kind, the longest first.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens = {});
  const AddedToken* at(std::string_view text, size_t at) const;
  auto begin() const { return tokens_.begin(); }
  auto end() const { return tokens_.end(); }

 private:
  std::vector<AddedToken> tokens_;                // longest content first
  std::array<std::vector<uint32_t>, 256> starts_; // by first byte: places in tokens_
};

enum class SpecialTokens {
  parse,  // "<|im_end|>" in the text becomes the token: templates
  as_text // it is spelled out like any other text: what users write
};

class Tokenizer {
 public:
  // Reads a tokenizer.json. What it asks for and this engine does not do is refused by name: Error(data).
  static Tokenizer from_file(const std::filesystem::path& path);
  static Tokenizer from_json(std::string_view json, const std::string& where);

  // Nothing is added before or after (no template processing). Ill-formed UTF-8 counts as U+FFFD.
  std::vector<TokenId> encode(std::string_view text, SpecialTokens special = SpecialTokens::parse) const;

  // Many texts on as many threads; the same result as one by one.
  std::vector<std::vector<TokenId>> encode_batch(std::span<const std::string> texts, SpecialTokens special,
                                                 int threads) const;

  // Bytes that are no UTF-8 become U+FFFD. An id outside the vocabulary throws Error(data).
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  // The bytes behind a token, as they stand in text.
  const std::string& bytes_of(TokenId id) const;
  std::optional<TokenId> special_id(std::string_view content) const;
  size_t size() const { return bytes_.size(); } // one more than the largest id
  // Throws Error(data) where a decoder of so many tokens has no row for some of these.
  void require_fit(int64_t vocabulary, const std::string& where) const;

  // Encodes on one thread with a cache of its own: for many texts in a row.
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
  std::vector<std::string> bytes_;    // by id; empty: no such id
  std::vector<bool> known_, special_; // by id
};

} // namespace fvlm
