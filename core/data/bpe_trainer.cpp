#include "data/bpe_trainer.h"

#include "base/error.h"
#include "data/bpe.h"
#include "data/unicode.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <queue>

namespace fvlm {
namespace {

using Pair = std::pair<TokenId, TokenId>;

struct Vocabulary {
  std::vector<std::string> tokens; // by id, bytes in their disguise
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

// The most frequent pair of neighbours becomes a token, again and again; of equals the one of lower ids. Counts change
// with every merge, so an entry of the queue is looked at again when its turn comes. All as in the wheel's trainer,
// down to what happens where two merges make the same token: that token's pairs are queued once for either, and of a
// pair that is merged twice the later place counts.
class Training {
 public:
  Training(Vocabulary& vocabulary, std::vector<Word> words) : vocabulary_(vocabulary), words_(std::move(words)) {
    std::map<Pair, std::vector<uint32_t>> places;
    for (uint32_t i = 0; i < words_.size(); ++i) {
      const auto& tokens = words_[i].tokens;
      for (size_t at = 0; at + 1 < tokens.size(); ++at)
        change({tokens[at], tokens[at + 1]}, words_[i].count, i, places);
    }
    enqueue(places);
  }

  std::vector<Pair> run(size_t most_tokens, uint64_t least_count) {
    const auto least = static_cast<int64_t>(std::max<uint64_t>(1, least_count));
    std::vector<Pair> merges;
    while (vocabulary_.tokens.size() < most_tokens && !queue_.empty()) {
      Candidate best = queue_.top();
      queue_.pop();
      if (int64_t now = counts_[best.pair]; now != best.count) {
        best.count = now;
        if (now >= least) queue_.push(std::move(best));
        continue;
      }
      if (best.count < least) break;
      auto [left, right] = best.pair;
      TokenId merged = vocabulary_.id_of(vocabulary_.tokens[static_cast<size_t>(left)] +
                                         vocabulary_.tokens[static_cast<size_t>(right)]);
      merges.push_back(best.pair);
      std::map<Pair, std::vector<uint32_t>> places;
      for (uint32_t i : best.words) merge(i, best.pair, merged, places);
      enqueue(places);
    }
    return last_of_each(merges);
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

  void change(Pair pair, int64_t by, uint32_t word, std::map<Pair, std::vector<uint32_t>>& places) {
    counts_[pair] += by;
    if (by <= 0) return;
    auto& words = places[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  void merge(uint32_t index, Pair pair, TokenId merged, std::map<Pair, std::vector<uint32_t>>& places) {
    auto& [tokens, count] = words_[index];
    for (size_t at = 0; at + 1 < tokens.size(); ++at) {
      if (tokens[at] != pair.first || tokens[at + 1] != pair.second) continue;
      if (at > 0) {
        change({tokens[at - 1], pair.first}, -count, index, places);
        change({tokens[at - 1], merged}, count, index, places);
      }
      tokens[at] = merged;
      tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(at) + 1);
      if (at + 1 < tokens.size()) {
        change({pair.second, tokens[at + 1]}, -count, index, places);
        change({merged, tokens[at + 1]}, count, index, places);
      }
    }
  }

  void enqueue(std::map<Pair, std::vector<uint32_t>>& places) {
    for (auto& [pair, words] : places)
      if (int64_t count = counts_[pair]; count > 0) queue_.push({count, pair, std::move(words)});
  }

  static std::vector<Pair> last_of_each(const std::vector<Pair>& merges) {
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

Json file_of(const Vocabulary& vocabulary, const std::vector<Pair>& merges, size_t special) {
  Json added = Json::array(), vocab = Json::object(), merged = Json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    vocab[vocabulary.tokens[id]] = id;
    if (id < special)
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
  each_word(rules_, valid.view(), [&](std::string_view word) { ++words_[std::string(word)]; });
}

std::string BpeTrainer::tokenizer_json(const Options& options) const {
  Vocabulary vocabulary;
  for (const auto& special : options.special) vocabulary.id_of(special);
  if (size_t least = vocabulary.tokens.size() + 256; options.vocabulary < least)
    throw Error(ErrorKind::usage, fmt::format("a vocabulary of {} tokens is too small", options.vocabulary))
        .advise(fmt::format("{} special tokens and 256 bytes make {} at least", vocabulary.tokens.size(), least));
  size_t special = vocabulary.tokens.size();

  const ByteAlphabet& alphabet = byte_alphabet();
  std::array<std::string, 256> written; // each byte in its disguise
  for (size_t byte = 0; byte < 256; ++byte) append_utf8(written[byte], alphabet.point_of_byte[byte]);
  for (int16_t byte : alphabet.byte_of_point)
    if (byte >= 0) vocabulary.id_of(written[static_cast<size_t>(byte)]);

  std::map<std::string, uint64_t> ordered(words_.begin(), words_.end());
  std::vector<Word> words;
  for (const auto& [bytes, count] : ordered) {
    Word word{{}, static_cast<int64_t>(count)};
    for (char c : bytes) word.tokens.push_back(vocabulary.ids.at(written[static_cast<unsigned char>(c)]));
    words.push_back(std::move(word));
  }
  auto merges = Training(vocabulary, std::move(words)).run(options.vocabulary, options.least_count);
  return file_of(vocabulary, merges, special).dump(1) + "\n";
}

} // namespace fvlm
