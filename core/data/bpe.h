// Byte-pair encoding of one word: the lowest-ranked pair is merged, leftmost first, until none is left.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fvlm {

using TokenId = int32_t;

// Pair of tokens -> rank and the token they merge into. Open addressing: this lookup is most of the work.
class MergeTable {
 public:
  struct Merge {
    int32_t rank; // -1: these two do not merge
    TokenId merged;
  };
  void reserve(size_t count);
  // False when the pair is already there.
  bool insert(TokenId left, TokenId right, Merge merge);
  Merge find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    uint64_t key = empty;
    Merge merge{-1, -1};
  };
  static constexpr uint64_t empty = ~uint64_t{0};
  size_t slot_of(uint64_t key) const;
  std::vector<Slot> slots_;
};

struct BpeModel {
  std::array<TokenId, 256> token_of_byte; // -1: the vocabulary lacks the byte, and encoding leaves it out
  MergeTable merges;
  // A whole word that is a token is taken without merging (Llama 3). Words are written as bytes.
  bool ignore_merges = false;
  std::unordered_map<std::string, TokenId> whole_words; // filled only for ignore_merges
};

// Encodes words with a cache. One a thread; the model outlives it.
class WordEncoder {
 public:
  explicit WordEncoder(const BpeModel& model) : model_(model) {}
  void append(std::string_view word, std::vector<TokenId>& out);

 private:
  void encode(std::string_view word, std::vector<TokenId>& out);
  void merge_short(std::vector<TokenId>& tokens) const;
  void merge_long(std::vector<TokenId>& tokens) const;

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  struct Piece {
    uint32_t begin, count;
  };
  const BpeModel& model_;
  std::unordered_map<std::string, Piece, Hash, std::equal_to<>> cache_;
  std::vector<TokenId> cached_; // the pieces' tokens, one after the other
  std::vector<TokenId> scratch_;
};

} // namespace fvlm
