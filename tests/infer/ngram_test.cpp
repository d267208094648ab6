// What is proposed to follow a text.
#include "infer/ngram.h"

namespace fvlm::infer {
namespace {

TEST(Ngram, ProposesWhatFollowedLastTime) {
  const std::vector<int64_t> text = {1, 2, 3, 4, 9, 1, 2, 3, 5, 6, 7, 1, 2, 3};
  EXPECT_EQ(propose_by_ngram(text, 2), (std::vector<int64_t>{5, 6})) << "the newest of two places";
  EXPECT_EQ(propose_by_ngram(text, 0), (std::vector<int64_t>{}));
  EXPECT_EQ(propose_by_ngram(text, 99), (std::vector<int64_t>{5, 6, 7, 1, 2, 3}));
}

TEST(Ngram, PrefersTheLongestRepetition) {
  const std::vector<int64_t> text = {1, 2, 3, 4, 50, 3, 4, 60, 1, 2, 3, 4};
  EXPECT_EQ(propose_by_ngram(text, 1), (std::vector<int64_t>{50}));
}

TEST(Ngram, ProposesNothingWithoutARepetitionAndNoVisualRows) {
  EXPECT_TRUE(propose_by_ngram(std::vector<int64_t>{}, 4).empty());
  EXPECT_TRUE(propose_by_ngram(std::vector<int64_t>{1, 2, 3, 1}, 4).empty()) << "one token says too little";
  EXPECT_EQ(propose_by_ngram(std::vector<int64_t>{1, 2, 8, -1, -1, 5, 1, 2}, 4), (std::vector<int64_t>{8}));
}

} // namespace
} // namespace fvlm::infer
