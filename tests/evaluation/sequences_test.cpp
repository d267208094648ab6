// Distances between sequences beside the matrices that they are of, and small letters beside Python's.
#include "base/random.h"
#include "evaluation/sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace fvlm::evaluation {
namespace {

struct Lengths {
  int64_t edits, common;
};

// Cell by cell, as textbooks have it.
Lengths by_matrix(const Symbols& a, const Symbols& b) {
  std::vector<std::vector<int64_t>> edits(a.size() + 1, std::vector<int64_t>(b.size() + 1)), common = edits;
  std::iota(edits[0].begin(), edits[0].end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    edits[i][0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      edits[i][j] = std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1, edits[i - 1][j - 1] + !same});
      common[i][j] = same ? common[i - 1][j - 1] + 1 : std::max(common[i - 1][j], common[i][j - 1]);
    }
  }
  return {edits[a.size()][b.size()], common[a.size()][b.size()]};
}

Symbols random_symbols(uint64_t seed, size_t length, uint32_t kinds) {
  const RandomStream random(seed, "symbols");
  Symbols symbols(length);
  for (size_t i = 0; i < length; ++i) symbols[i] = static_cast<uint32_t>(random.uniform(i) * kinds);
  return symbols;
}

TEST(Sequences, AreAsFarApartAsTheirMatrixSays) {
  uint64_t seed = 0;
  for (const size_t rows : {0U, 1U, 5U, 63U, 64U, 65U, 128U, 200U})
    for (const size_t columns : {0U, 1U, 64U, 90U, 129U})
      for (const uint32_t kinds : {2U, 30U}) {
        const Symbols a = random_symbols(++seed, rows, kinds), b = random_symbols(++seed, columns, kinds);
        const Lengths expected = by_matrix(a, b);
        EXPECT_EQ(edit_distance(a, b), expected.edits) << rows << " x " << columns << " of " << kinds;
        EXPECT_EQ(common_subsequence(a, b), expected.common) << rows << " x " << columns << " of " << kinds;
        EXPECT_EQ(edit_distance(b, a), expected.edits);
        EXPECT_EQ(common_subsequence(b, a), expected.common);
      }
}

TEST(Sequences, OfPagesAreComparedAcrossBlocks) {
  const Symbols page = random_symbols(1, 20000, 90);
  Symbols read = page;
  read[3] = 1000;
  read.erase(read.begin() + 9000);
  read.insert(read.end() - 5, 1001);
  EXPECT_EQ(edit_distance(page, read), 3);
  EXPECT_EQ(common_subsequence(page, read), 19998);
  EXPECT_EQ(edit_distance(page, {}), 20000);
}

TEST(Sequences, AreOfCodePointsNotOfBytes) {
  EXPECT_EQ(code_points("a\u00e9\u6f22\U0001F600"), (Symbols{'a', 0xE9, 0x6F22, 0x1F600}));
  EXPECT_EQ(code_points("a\xC3"), (Symbols{'a', 0x110000 + 0xC3})) << "half a character is a symbol of its own";
}

TEST(Sequences, HaveSmallLettersAsPythonDoes) {
  const Symbols
      large = code_points(
          "AZ\u00c0\u00d6\u00d7\u00de\u0141\u0178\u017d\u0218\u01a0\u0386\u038f\u03a3\u0402\u0416\u0490\u0531"),
      small = code_points(
          "az\u00e0\u00f6\u00d7\u00fe\u0142\u00ff\u017e\u0219\u01a1\u03ac\u03ce\u03c3\u0452\u0436\u0491\u0561");
  ASSERT_EQ(large.size(), small.size());
  for (size_t i = 0; i < large.size(); ++i) {
    EXPECT_EQ(lower_case(large[i]), small[i]) << std::hex << large[i];
    EXPECT_EQ(lower_case(small[i]), small[i]) << std::hex << small[i];
  }
}

} // namespace
} // namespace fvlm::evaluation
