// How far apart two sequences are: of characters or of words, a number for each. The time is the product of their
// lengths divided by 64, so that pages of 10,000 characters take milliseconds; the memory is the sum of their lengths.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::evaluation {

using Symbols = std::vector<uint32_t>;

// Code points of UTF-8. A byte that is none of a character counts as one of its own, beyond Unicode.
Symbols code_points(std::string_view text);

// Of letters of Latin, Greek, Cyrillic and Armenian as Python lowers them, but for rare ones; others stay as they are.
uint32_t lower_case(uint32_t point);

// Makes equal words equal symbols.
struct WordSequences {
  Symbols a, b;
};
WordSequences numbered(const std::vector<std::string>& a, const std::vector<std::string>& b);

// Levenshtein: the fewest insertions, deletions and substitutions that make one of the other.
int64_t edit_distance(const Symbols& a, const Symbols& b);

// Length of the longest common subsequence.
int64_t common_subsequence(const Symbols& a, const Symbols& b);

} // namespace fvlm::evaluation
