// Pre-tokenization: splits text into words before byte-pair encoding.
#pragma once
#include "data/character_run.h"

#include <optional>
#include <string_view>
#include <vector>

namespace fvlm {

// What splits a text. The patterns are matched by hand-written code, without a regular expression engine.
// llama3, qwen2 and nanochat are GPT-4's pattern with numbers in groups of at most three digits, one and two; qwen3_5
// is qwen2 with marks in words. tekken is Mistral's, of which a word has capital letters at its beginning alone, and a
// number one digit. deepseek3 is the last of DeepSeek-V3's and HunYuan's, behind numbers and ideographs. digits makes a
// word of each digit, as Digits(individual_digits = true) does.
enum class WordPattern {
  gpt2,
  llama3,
  qwen2,
  nanochat,
  qwen3_5,
  tekken,
  deepseek3,
  trailing_space,
  digits,
  characters
};
// Those with one text.
inline constexpr WordPattern split_patterns[] = {
    WordPattern::gpt2,    WordPattern::llama3, WordPattern::qwen2,     WordPattern::nanochat,
    WordPattern::qwen3_5, WordPattern::tekken, WordPattern::deepseek3, WordPattern::trailing_space};

// The regular expression as it is written in tokenizer.json; "" of digits and characters.
std::string_view pattern_text(WordPattern pattern);

// SentencePiece's mark in place of each space. Text that does not begin with a mark gets one: every part between added
// tokens, or the first one alone.
struct Metaspace {
  static constexpr std::string_view mark = "\u2581";
  enum class Prepend { never, first, always } prepend;
  bool split; // a word begins at each mark; otherwise a part is one word
};

struct WordSplit {
  WordPattern pattern;
  std::optional<CharacterRun> characters = {}; // of WordPattern::characters
};

struct PreTokenizer {
  std::vector<WordSplit> splits;      // each splits the words that the one before has made
  bool add_prefix_space = false;      // ByteLevel: prepends a space to each of them that does not begin with one
  bool splits_as_gpt2 = false;        // ByteLevel: then splits it by gpt2
  std::optional<Metaspace> metaspace; // in place of all of these
};

// Returns the end of the word that begins at `at`: of a match, or of what stands before the next one. The text must be
// valid UTF-8.
size_t word_end(const WordSplit& split, std::string_view text, size_t at);

// Calls word(std::string_view) for each word, in order; `piece` is one of the parts between added tokens, and maybe the
// first.
template <class Word>
void each_word(const PreTokenizer& rules, std::string_view piece, bool is_first, Word&& word);

} // namespace fvlm

#include "data/pretokenizer_words.h"
