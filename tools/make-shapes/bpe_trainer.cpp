#include "make-shapes/bpe_trainer.h"

#include "base/error.h"
#include "data/bpe.h"
#include "data/pretokenizer.h"
#include "data/unicode.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <vector>

namespace fvlm::shapes {
namespace {

// They take the first ids.
constexpr std::array<const char*, 3> special_tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

using Pair = std::pair<TokenId, TokenId>;
using WordsOfPair = std::map<Pair, std::vector<uint32_t>>; // indices of the words that contain the pair

struct Vocabulary {
  std::vector<std::string> tokens; // by id; bytes are written in GPT-2's printable alphabet
  std::unordered_map<std::string, TokenId> ids;

  TokenId id_of(const std::string& token) {
    auto [found, added] = ids.emplace(token, static_cast<TokenId>(tokens.size()));
    if (added) tokens.push_back(token);
    return found->second;
  }
};

struct Word {
  std::vector<TokenId> tokens;
  int64_t count;
};

// Merges the most frequent pair of adjacent tokens into a new token until the vocabulary is full; ties go to the lower
// ids. Every merge changes counts, so an entry of the queue may be stale: its count is compared with the current one
// when it reaches the top. All of this follows the Hugging Face trainer, including the case where two merges produce
// the same token: the pairs of that token are queued once for each of the two merges, and a pair that is merged twice
// keeps its later rank.
class Training {
 public:
  Training(Vocabulary& vocabulary, std::vector<Word> words) : vocabulary_(vocabulary), words_(std::move(words)) {
    WordsOfPair changed;
    for (uint32_t i = 0; i < words_.size(); ++i) {
      const auto& tokens = words_[i].tokens;
      for (size_t at = 0; at + 1 < tokens.size(); ++at)
        change_count({tokens[at], tokens[at + 1]}, words_[i].count, i, changed);
    }
    enqueue(changed);
  }

  // Returns the merges in the order of their ranks.
  std::vector<Pair> run(size_t max_tokens) {
    std::vector<Pair> merges;
    while (vocabulary_.tokens.size() < max_tokens && !queue_.empty()) {
      Candidate best = queue_.top();
      queue_.pop();
      if (int64_t current = counts_[best.pair]; current != best.count) {
        best.count = current;
        if (current > 0) queue_.push(std::move(best));
        continue;
      }
      auto [left, right] = best.pair;
      TokenId merged = vocabulary_.id_of(vocabulary_.tokens[static_cast<size_t>(left)] +
                                         vocabulary_.tokens[static_cast<size_t>(right)]);
      merges.push_back(best.pair);
      WordsOfPair changed;
      for (uint32_t i : best.words) merge(i, best.pair, merged, changed);
      enqueue(changed);
    }
    return keep_last_occurrences(merges);
  }

 private:
  struct Candidate {
    int64_t count;
    Pair pair;
    std::vector<uint32_t> words;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void change_count(Pair pair, int64_t by, uint32_t word, WordsOfPair& changed) {
    counts_[pair] += by;
    if (by <= 0) return;
    auto& words = changed[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  void merge(uint32_t index, Pair pair, TokenId merged, WordsOfPair& changed) {
    auto& [tokens, count] = words_[index];
    for (size_t at = 0; at + 1 < tokens.size(); ++at) {
      if (tokens[at] != pair.first || tokens[at + 1] != pair.second) continue;
      if (at > 0) {
        change_count({tokens[at - 1], pair.first}, -count, index, changed);
        change_count({tokens[at - 1], merged}, count, index, changed);
      }
      tokens[at] = merged;
      tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(at) + 1);
      if (at + 1 < tokens.size()) {
        change_count({pair.second, tokens[at + 1]}, -count, index, changed);
        change_count({merged, tokens[at + 1]}, count, index, changed);
      }
    }
  }

  void enqueue(WordsOfPair& changed) {
    for (auto& [pair, words] : changed)
      if (int64_t count = counts_[pair]; count > 0) queue_.push({count, pair, std::move(words)});
  }

  static std::vector<Pair> keep_last_occurrences(const std::vector<Pair>& merges) {
    std::map<Pair, size_t> last;
    for (size_t i = 0; i < merges.size(); ++i) last[merges[i]] = i;
    std::vector<Pair> kept;
    for (size_t i = 0; i < merges.size(); ++i)
      if (last[merges[i]] == i) kept.push_back(merges[i]);
    return kept;
  }

  Vocabulary& vocabulary_;
  std::vector<Word> words_;
  std::map<Pair, int64_t> counts_;
  std::priority_queue<Candidate> queue_;
};

using Json = nlohmann::ordered_json;

Json to_json(const Vocabulary& vocabulary, const std::vector<Pair>& merges, size_t special_count) {
  Json added = Json::array(), vocab = Json::object(), merged = Json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    vocab[vocabulary.tokens[id]] = id;
    if (id < special_count)
      added.push_back({{"id", id},
                       {"content", vocabulary.tokens[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
  }
  auto token = [&](TokenId id) { return vocabulary.tokens[static_cast<size_t>(id)]; };
  for (auto [left, right] : merges) merged.push_back({token(left), token(right)});
  auto byte_level = [](bool prefix_space) {
    return Json{{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"trim_offsets", true}, {"use_regex", true}};
  };
  Json digits{{"type", "Digits"}, {"individual_digits", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {digits, byte_level(false)}}}},
          {"post_processor", nullptr},
          {"decoder", byte_level(true)},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", merged}}}};
}

} // namespace

void BpeTrainer::add(std::string_view text) {
  ValidUtf8 valid(text);
  static const PreTokenizer pretokenizer{.splits = {{WordPattern::digits}}, .splits_as_gpt2 = true};
  each_word(pretokenizer, valid.view(), true, [&](std::string_view word) { ++word_counts_[std::string(word)]; });
}

std::string BpeTrainer::tokenizer_json(size_t max_vocabulary) const {
  Vocabulary vocabulary;
  for (const char* special : special_tokens) vocabulary.id_of(special);
  if (size_t min = special_tokens.size() + 256; max_vocabulary < min)
    throw Error(ErrorKind::usage, "a vocabulary of {} tokens is too small", max_vocabulary)
        .advise("{} special tokens and 256 bytes need at least {}", special_tokens.size(), min);

  const ByteAlphabet& alphabet = byte_alphabet();
  std::array<std::string, 256> written; // each byte in GPT-2's printable alphabet
  for (size_t byte = 0; byte < 256; ++byte) append_utf8(written[byte], alphabet.point_of_byte[byte]);
  for (int16_t byte : alphabet.byte_of_point)
    if (byte >= 0) vocabulary.id_of(written[static_cast<size_t>(byte)]);

  std::map<std::string, uint64_t> ordered(word_counts_.begin(), word_counts_.end());
  std::vector<Word> words;
  for (const auto& [bytes, count] : ordered) {
    Word word{{}, static_cast<int64_t>(count)};
    for (char c : bytes) word.tokens.push_back(vocabulary.ids.at(written[static_cast<unsigned char>(c)]));
    words.push_back(std::move(word));
  }
  auto merges = Training(vocabulary, std::move(words)).run(max_vocabulary);
  return to_json(vocabulary, merges, special_tokens.size()).dump(1) + "\n";
}

} // namespace fvlm::shapes
