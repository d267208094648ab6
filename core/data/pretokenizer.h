// Pre-tokenizers: how text is cut into words before byte-pair encoding.
#pragma once
#include <string_view>

namespace fvlm {

// The patterns that tokenizer.json files of this family use, matched by hand: no regular expressions at run time.
enum class WordPattern { none, gpt2, llama3 };

// The patterns' texts, as they stand in tokenizer.json.
std::string_view pattern_text(WordPattern pattern);

struct PreTokenizer {
  bool split_digits = false;     // Digits(individual_digits): every digit a word of its own, cut before the pattern
  bool add_prefix_space = false; // ByteLevel: a piece that does not begin with a space is given one
  WordPattern pattern = WordPattern::gpt2;
};

// The end of the word that begins at `at`. The text is valid UTF-8.
size_t word_end(WordPattern pattern, std::string_view text, size_t at);

// Calls word(std::string_view) for each word, in order; `piece` is one of the parts between added tokens.
template <class Word>
void each_word(const PreTokenizer& rules, std::string_view piece, Word&& word);

} // namespace fvlm

#include "data/pretokenizer_words.h"
