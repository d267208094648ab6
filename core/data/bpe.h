// Byte-pair encoding of a single word: the adjacent pair with the lowest rank is merged, leftmost first, until no pair
// can be merged.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fvlm {

using TokenId = int32_t;

// Maps a pair of tokens to the rank of its merge and the resulting token. A hash table with open addressing, because
// this lookup dominates the time of encoding.
class MergeTable {
 public:
  struct Merge {
    int32_t rank; // -1 where the pair does not merge
    TokenId merged;
  };
  void reserve(size_t count);
  // Returns false when the pair is already in the table.
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
  std::array<TokenId, 256> token_of_byte; // -1 for a byte that the vocabulary lacks; encoding drops it
  // SentencePiece: merging begins with the characters of a word, and with bytes only for those without a token.
  bool begins_with_characters = false;
  std::unordered_map<std::string, TokenId> token_of_character; // filled only for these
  MergeTable merges;
  // A word that is itself a token is encoded as that token, without merging (Llama 3). The keys are raw bytes.
  bool ignore_merges = false;
  std::unordered_map<std::string, TokenId> whole_words; // filled only for ignore_merges
};

// Encodes words and caches the result. Each thread needs its own encoder; the model must outlive it.
class WordEncoder {
 public:
  explicit WordEncoder(const BpeModel& model) : model_(model) {}
  void append(std::string_view word, std::vector<TokenId>& out);

 private:
  void encode(std::string_view word, std::vector<TokenId>& out);
  void split(std::string_view word, std::vector<TokenId>& out) const;
  void merge_by_scan(std::vector<TokenId>& tokens) const;
  void merge_by_heap(std::vector<TokenId>& tokens) const;

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  struct Piece {
    uint32_t begin, count;
  };
  const BpeModel& model_;
  std::unordered_map<std::string, Piece, Hash, std::equal_to<>> cache_;
  std::vector<TokenId> cached_; // the tokens of all cached words, concatenated
  std::vector<TokenId> scratch_;
};

} // namespace fvlm
