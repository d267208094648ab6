#include "evaluation/sequences.h"

#include "base/utf8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <unordered_map>

namespace fvlm::evaluation {
namespace {

constexpr size_t block_rows = 64;

// The matrix of two sequences, a block of 64 rows at a time: which of the block's rows equal the symbol of a column.
class Matches {
 public:
  Matches(const Symbols& rows, const Symbols& columns) : rows_(numbers_of(rows)), columns_(numbers_of(columns)) {
    masks_.resize(numbers_.size());
  }

  void select(size_t first_row) {
    for (const uint32_t number : block_) masks_[number] = 0;
    block_ = std::span(rows_).subspan(first_row, std::min(block_rows, rows_.size() - first_row));
    for (size_t i = 0; i < block_.size(); ++i) masks_[block_[i]] |= uint64_t{1} << i;
  }
  uint64_t in_column(size_t column) const { return masks_[columns_[column]]; }
  uint64_t last_row() const { return uint64_t{1} << (block_.size() - 1); }

 private:
  Symbols numbers_of(const Symbols& symbols) {
    Symbols numbers;
    numbers.reserve(symbols.size());
    for (const uint32_t symbol : symbols)
      numbers.push_back(numbers_.try_emplace(symbol, static_cast<uint32_t>(numbers_.size())).first->second);
    return numbers;
  }

  std::unordered_map<uint32_t, uint32_t> numbers_; // of symbols, from 0 on
  Symbols rows_, columns_;
  std::span<const uint32_t> block_;
  std::vector<uint64_t> masks_; // by number
};

// Capitals from `first` to `last`, every `step`, and how far behind them their small letters are.
struct Capitals {
  uint32_t first, last, step, behind;
};
constexpr std::array capitals{
    // Latin
    Capitals{'A', 'Z', 1, 32}, Capitals{0xC0, 0xD6, 1, 32}, Capitals{0xD8, 0xDE, 1, 32}, Capitals{0x100, 0x12E, 2, 1},
    Capitals{0x132, 0x136, 2, 1}, Capitals{0x139, 0x147, 2, 1}, Capitals{0x14A, 0x176, 2, 1},
    Capitals{0x179, 0x17D, 2, 1}, Capitals{0x1A0, 0x1A4, 2, 1}, Capitals{0x1AF, 0x1AF, 1, 1},
    Capitals{0x1CD, 0x1DB, 2, 1}, Capitals{0x1DE, 0x1EE, 2, 1}, Capitals{0x1F8, 0x21E, 2, 1},
    Capitals{0x222, 0x232, 2, 1}, Capitals{0x1E00, 0x1E94, 2, 1}, Capitals{0x1EA0, 0x1EFE, 2, 1},
    // Greek
    Capitals{0x386, 0x386, 1, 38}, Capitals{0x388, 0x38A, 1, 37}, Capitals{0x38C, 0x38C, 1, 64},
    Capitals{0x38E, 0x38F, 1, 63}, Capitals{0x391, 0x3A1, 1, 32}, Capitals{0x3A3, 0x3AB, 1, 32},
    // Cyrillic and Armenian
    Capitals{0x400, 0x40F, 1, 80}, Capitals{0x410, 0x42F, 1, 32}, Capitals{0x460, 0x480, 2, 1},
    Capitals{0x48A, 0x4BE, 2, 1}, Capitals{0x4C0, 0x4C0, 1, 15}, Capitals{0x4C1, 0x4CD, 2, 1},
    Capitals{0x4D0, 0x52E, 2, 1}, Capitals{0x531, 0x556, 1, 48}};

} // namespace

Symbols code_points(std::string_view text) {
  constexpr uint32_t beyond_unicode = 0x110000;
  Symbols points;
  points.reserve(text.size());
  while (!text.empty()) {
    const size_t size = utf8_size(text);
    const bool is_character = size > 0 && size <= text.size();
    points.push_back(is_character ? code_point(text.substr(0, size))
                                  : beyond_unicode + static_cast<unsigned char>(text[0]));
    text.remove_prefix(is_character ? size : 1);
  }
  return points;
}

uint32_t lower_case(uint32_t point) {
  if (point == 0x178) return 0xFF;
  for (const auto& [first, last, step, behind] : capitals)
    if (point >= first && point <= last && (point - first) % step == 0) return point + behind;
  return point;
}

WordSequences numbered(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::unordered_map<std::string_view, uint32_t> numbers;
  const auto numbers_of = [&](const std::vector<std::string>& words) {
    Symbols found;
    found.reserve(words.size());
    for (const std::string& word : words)
      found.push_back(numbers.try_emplace(word, static_cast<uint32_t>(numbers.size())).first->second);
    return found;
  };
  return {numbers_of(a), numbers_of(b)};
}

// Myers' bit vectors, in blocks as Hyyro has them. Neighbours in the matrix of distances differ by at most 1, so bits
// say where a row is 1 above or below the row before it, and `across` how much a column adds below the last block.
int64_t edit_distance(const Symbols& a, const Symbols& b) {
  Matches matches(a, b);
  std::vector<int8_t> across(b.size(), 1); // row 0 counts insertions
  for (size_t first = 0; first < a.size(); first += block_rows) {
    matches.select(first);
    const uint64_t last = matches.last_row();
    uint64_t more = ~uint64_t{0}, less = 0; // column 0 counts deletions
    for (size_t column = 0; column < b.size(); ++column) {
      const uint64_t above_more = across[column] > 0, above_less = across[column] < 0;
      const uint64_t equal = matches.in_column(column), kept = equal | less, entered = equal | above_less;
      const uint64_t diagonal = (((entered & more) + more) ^ more) | entered;
      uint64_t more_across = less | ~(diagonal | more), less_across = more & diagonal;
      across[column] = static_cast<int8_t>(((more_across & last) != 0) - ((less_across & last) != 0));
      more_across = more_across << 1 | above_more;
      less_across = less_across << 1 | above_less;
      more = less_across | ~(kept | more_across);
      less = more_across & kept;
    }
  }
  auto distance = static_cast<int64_t>(a.size());
  for (const int8_t more : across) distance += more;
  return distance;
}

// Hyyro's bit vectors: a row of a column has a 0 where the common subsequence up to it is longer than up to the row
// before. `carries` is what the addition of a column hands to the next block.
int64_t common_subsequence(const Symbols& a, const Symbols& b) {
  Matches matches(a, b);
  std::vector<uint8_t> carries(b.size(), 0);
  int64_t length = 0;
  for (size_t first = 0; first < a.size(); first += block_rows) {
    matches.select(first);
    uint64_t same = ~uint64_t{0};
    for (size_t column = 0; column < b.size(); ++column) {
      const uint64_t matched = same & matches.in_column(column), sum = same + matched;
      const uint64_t with_carry = sum + carries[column];
      carries[column] = sum < same || with_carry < sum;
      same = with_carry | (same & ~matched);
    }
    const uint64_t last = matches.last_row();
    length += std::popcount(~same & (last | (last - 1)));
  }
  return length;
}

} // namespace fvlm::evaluation
