#include "data/bpe.h"

#include "data/unicode.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <span>
#include <tuple>

namespace fvlm {
namespace {

constexpr size_t max_cached_word_bytes = 64;
constexpr size_t max_cached_words = 1 << 16;
// Up to this many tokens, a linear scan for the best pair is faster than a heap.
constexpr size_t max_scanned_tokens = 40;

uint64_t key_of(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

} // namespace

void MergeTable::reserve(size_t count) {
  slots_.assign(std::bit_ceil(std::max<size_t>(16, count * 2)), Slot{});
}

size_t MergeTable::slot_of(uint64_t key) const {
  uint64_t mixed = key * 0x9E3779B97F4A7C15u;
  size_t mask = slots_.size() - 1;
  size_t at = static_cast<size_t>(mixed >> 32) & mask;
  while (slots_[at].key != key && slots_[at].key != empty) at = (at + 1) & mask;
  return at;
}

bool MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  Slot& slot = slots_[slot_of(key_of(left, right))];
  if (slot.key != empty) return false;
  slot = {key_of(left, right), merge};
  return true;
}

MergeTable::Merge MergeTable::find(TokenId left, TokenId right) const {
  return slots_[slot_of(key_of(left, right))].merge;
}

void WordEncoder::append(std::string_view word, std::vector<TokenId>& out) {
  if (word.size() > max_cached_word_bytes) {
    encode(word, out);
    return;
  }
  if (auto found = cache_.find(word); found != cache_.end()) {
    auto begin = cached_.begin() + found->second.begin;
    out.insert(out.end(), begin, begin + found->second.count);
    return;
  }
  size_t before = out.size();
  encode(word, out);
  if (cache_.size() == max_cached_words) {
    cache_.clear();
    cached_.clear();
  }
  auto tokens = std::span(out).subspan(before);
  cache_.emplace(word, Piece{static_cast<uint32_t>(cached_.size()), static_cast<uint32_t>(tokens.size())});
  cached_.insert(cached_.end(), tokens.begin(), tokens.end());
}

void WordEncoder::encode(std::string_view word, std::vector<TokenId>& out) {
  if (model_.ignore_merges) {
    if (auto whole = model_.whole_words.find(std::string(word)); whole != model_.whole_words.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  scratch_.clear();
  split(word, scratch_);
  if (scratch_.size() <= max_scanned_tokens)
    merge_by_scan(scratch_);
  else
    merge_by_heap(scratch_);
  out.insert(out.end(), scratch_.begin(), scratch_.end());
}

// The tokens that merging begins with.
void WordEncoder::split(std::string_view word, std::vector<TokenId>& out) const {
  auto append_bytes = [&](std::string_view bytes) {
    for (char c : bytes)
      if (TokenId token = model_.token_of_byte[static_cast<unsigned char>(c)]; token >= 0) out.push_back(token);
  };
  if (!model_.begins_with_characters) return append_bytes(word);
  for (size_t at = 0; at < word.size();) {
    const std::string_view character = word.substr(at, decode_at(word, at).length);
    auto found = model_.token_of_character.find(std::string(character));
    if (found == model_.token_of_character.end())
      append_bytes(character);
    else
      out.push_back(found->second);
    at += character.size();
  }
}

void WordEncoder::merge_by_scan(std::vector<TokenId>& tokens) const {
  size_t count = tokens.size();
  std::array<MergeTable::Merge, max_scanned_tokens> merge; // merge[i]: of tokens i and i + 1
  for (size_t i = 0; i + 1 < count; ++i) merge[i] = model_.merges.find(tokens[i], tokens[i + 1]);
  while (count > 1) {
    size_t best = count;
    for (size_t i = 0; i + 1 < count; ++i)
      if (merge[i].rank >= 0 && (best == count || merge[i].rank < merge[best].rank)) best = i;
    if (best == count) break;
    tokens[best] = merge[best].merged;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      tokens[i] = tokens[i + 1];
      merge[i] = merge[i + 1];
    }
    --count;
    if (best + 1 < count) merge[best] = model_.merges.find(tokens[best], tokens[best + 1]);
    if (best > 0) merge[best - 1] = model_.merges.find(tokens[best - 1], tokens[best]);
  }
  tokens.resize(count);
}

void WordEncoder::merge_by_heap(std::vector<TokenId>& tokens) const {
  struct Node {
    TokenId token;
    int32_t previous, next; // -1: none
  };
  int32_t count = static_cast<int32_t>(tokens.size());
  std::vector<Node> nodes(tokens.size());
  for (int32_t i = 0; i < count; ++i)
    nodes[static_cast<size_t>(i)] = {tokens[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1};
  struct Candidate {
    int32_t rank, at;
    TokenId left, right, merged; // stale once the nodes hold other tokens
    bool operator>(const Candidate& other) const { return std::tie(rank, at) > std::tie(other.rank, other.at); }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  auto node = [&](int32_t i) -> Node& { return nodes[static_cast<size_t>(i)]; };
  auto offer = [&](int32_t at) {
    if (at < 0 || node(at).next < 0) return;
    TokenId left = node(at).token, right = node(node(at).next).token;
    if (auto merge = model_.merges.find(left, right); merge.rank >= 0)
      heap.push({merge.rank, at, left, right, merge.merged});
  };
  for (int32_t i = 0; i < count; ++i) offer(i);
  constexpr TokenId gone = -1;
  while (!heap.empty()) {
    Candidate best = heap.top();
    heap.pop();
    Node& left = node(best.at);
    if (left.token != best.left || left.next < 0 || node(left.next).token != best.right) continue;
    Node& right = node(left.next);
    left.token = best.merged;
    left.next = right.next;
    right.token = gone;
    if (left.next >= 0) node(left.next).previous = best.at;
    offer(left.previous);
    offer(best.at);
  }
  tokens.clear();
  for (int32_t i = 0; i >= 0; i = node(i).next) tokens.push_back(node(i).token);
}

} // namespace fvlm
