// What a model thinks before it answers, between the tags that it writes around its thoughts.
#pragma once
#include "data/tokenizer.h"

#include <span>
#include <string>
#include <string_view>

namespace fvlm {

struct ThoughtTags {
  const char* begin;
  const char* label; // which stands behind `begin`
  const char* end;
};

// The tags that a chat template writes, or that a tokenizer has as tokens; null: none that are known.
const ThoughtTags* thought_tags(const Tokenizer& tokenizer, std::string_view chat_template);

// How an answer may think.
struct Thinking {
  const ThoughtTags* tags = nullptr; // null: it does not
  bool is_open = false;              // the prompt has begun the thoughts
};

// `prompt`: how the prompt ends. Where that is behind thoughts, there are no others.
Thinking thinking_behind(std::string_view prompt, const ThoughtTags* tags);
Thinking thinking_behind(const Tokenizer& tokenizer, std::span<const TokenId> prompt, const ThoughtTags* tags);

// The variable of a chat template by which thinking is turned on and off.
struct ThinkingSwitch {
  const char* variable;
  bool is_on; // without it
};

// Tells thoughts from what is said in an answer, as its text comes. Thoughts stand before the answer. White space
// around both is left out.
class ThoughtReader {
 public:
  explicit ThoughtReader(const Thinking& thinking);

  struct Piece {
    std::string thoughts, text;
  };
  Piece add(std::string_view piece);
  Piece finish(); // the rest; thoughts may not have ended

  // Where the text so far ends: where it may yet begin with thoughts; in these; behind them, before the answer; or in
  // it.
  enum class Place { begin, thoughts, behind, answer };
  Place place() const { return place_; }

 private:
  void think(std::string_view text, std::string& out);
  std::string begin_, end_;
  bool is_open_;
  Place place_;
  bool may_repeat_begin_; // a model may write it although the prompt has
  std::string held_;
  std::string space_; // of thoughts, that may be their last
  bool has_thoughts_ = false;
};

} // namespace fvlm
