#include "data/thoughts.h"

#include "base/text.h"
#include "data/stop_texts.h"

#include <algorithm>
#include <utility>

namespace fvlm {
namespace {

constexpr std::string_view white = " \t\r\n";

const ThoughtTags all_tags[] = {
    {"<think>", "", "</think>"},             // Qwen3, SmolLM3, GLM, MiniCPM-V, LFM2, HunYuan, DeepSeek R1
    {"[THINK]", "", "[/THINK]"},             // Ministral 3
    {"<|channel>", "thought", "<channel|>"}, // Gemma 4
};

} // namespace

const ThoughtTags* thought_tags(const Tokenizer& tokenizer, std::string_view chat_template) {
  for (const ThoughtTags& tags : all_tags)
    if (chat_template.find(tags.end) != std::string_view::npos) return &tags;
  for (const ThoughtTags& tags : all_tags)
    if (tokenizer.added_id(tags.begin) && tokenizer.added_id(tags.end)) return &tags;
  return nullptr;
}

Thinking thinking_behind(std::string_view prompt, const ThoughtTags* tags) {
  if (!tags) return {};
  const std::string end = trimmed(prompt);
  if (end.ends_with(tags->end)) return {};
  return {tags, end.ends_with(std::string(tags->begin) + tags->label)};
}

Thinking thinking_behind(const Tokenizer& tokenizer, std::span<const TokenId> prompt, const ThoughtTags* tags) {
  constexpr size_t most = 32; // which the longest tag has fewer of, byte by byte
  const auto end = prompt.last(std::min(prompt.size(), most));
  const auto mark = std::find_if(end.rbegin(), end.rend(), [](TokenId id) { return id < 0; });
  return thinking_behind(tokenizer.decode({mark.base(), end.end()}), tags);
}

ThoughtReader::ThoughtReader(const Thinking& thinking)
    : begin_(std::string(thinking.tags->begin) + thinking.tags->label), end_(thinking.tags->end),
      is_open_(thinking.is_open), place_(is_open_ ? Place::thoughts : Place::begin), may_repeat_begin_(is_open_) {}

void ThoughtReader::think(std::string_view text, std::string& out) {
  space_ += text;
  if (!has_thoughts_) space_.erase(0, space_.find_first_not_of(white));
  const size_t last = space_.find_last_not_of(white);
  if (last == std::string::npos) return;
  out += space_.substr(0, last + 1);
  space_.erase(0, last + 1);
  has_thoughts_ = true;
}

ThoughtReader::Piece ThoughtReader::add(std::string_view piece) {
  Piece said;
  held_ += piece;
  if (place_ == Place::begin || may_repeat_begin_) {
    const size_t first = held_.find_first_not_of(white);
    if (first == std::string::npos) return said;
    const std::string_view rest = std::string_view(held_).substr(first);
    const bool has_begin = rest.starts_with(begin_);
    if (!has_begin && begin_.starts_with(rest)) return said;
    if (has_begin) held_.erase(0, first + begin_.size());
    place_ = has_begin || is_open_ ? Place::thoughts : Place::answer;
    may_repeat_begin_ = false;
  }
  if (place_ == Place::thoughts) {
    const size_t at = held_.find(end_);
    const bool ends = at != std::string::npos;
    const size_t free = ends ? at : held_.size() - begun_at_end(held_, end_);
    think(std::string_view(held_).substr(0, free), said.thoughts);
    held_.erase(0, ends ? free + end_.size() : free);
    if (!ends) return said;
    space_.clear();
    place_ = Place::behind;
  }
  if (place_ == Place::behind) {
    held_.erase(0, held_.find_first_not_of(white));
    if (held_.empty()) return said;
    place_ = Place::answer;
  }
  said.text = std::exchange(held_, "");
  return said;
}

ThoughtReader::Piece ThoughtReader::finish() {
  Piece said;
  const std::string rest = std::exchange(held_, "");
  if (place_ == Place::thoughts)
    think(rest, said.thoughts);
  else
    said.text = rest;
  if (place_ == Place::begin) place_ = Place::answer;
  return said;
}

} // namespace fvlm
