#include "cli/short_answers.h"

#include "base/hash.h"

#include <algorithm>
#include <span>

namespace fvlm::cli {
namespace {

constexpr int64_t most_tokens = 16; // of a short answer, with the end of its turn

uint64_t hash_of(std::span<const TokenId> ids) {
  Xxh64 hash;
  hash.update(std::as_bytes(ids));
  return hash.value();
}

} // namespace

void ShortAnswers::add(const Sample& sample) {
  ++samples_;
  if (sample.texts.size() != 1) return;
  const SampleText& text = sample.texts.front();
  const auto begin = std::ranges::find(text.answer_mask, uint8_t{1}), end = std::find(begin, text.answer_mask.end(), 0);
  const int64_t length = end - begin;
  const bool is_only_answer = std::find(end, text.answer_mask.end(), 1) == text.answer_mask.end();
  if (length == 0 || length > most_tokens || !is_only_answer) return;
  ++short_;
  longest_ = std::max(longest_, length);
  const std::span ids(text.ids);
  const auto first = static_cast<size_t>(begin - text.answer_mask.begin());
  prompts_.insert(hash_of(ids.first(first)));
  answers_.insert(hash_of(ids.subspan(first, static_cast<size_t>(length))));
}

std::optional<int64_t> ShortAnswers::tokens() const {
  constexpr int64_t few = 20; // one of so many is an accident
  if (samples_ == 0 || (samples_ - short_) * few > samples_) return {};
  // The same few prompts over and over, each time with another text.
  const bool are_captions = 8 * std::ssize(prompts_) < samples_ && 2 * std::ssize(answers_) > samples_;
  if (are_captions) return {};
  return std::max<int64_t>(most_tokens, 2 * longest_);
}

} // namespace fvlm::cli
