#include "base/table.h"
#include "base/text.h"

#include <gtest/gtest.h>

using namespace fvlm;

TEST(Nearest, finds_the_likely_word_and_nothing_far_off) {
  std::vector<std::string> words{"learning_rate", "lr", "warmup", "weight_decay"};
  EXPECT_EQ(nearest("lrr", words), "lr");
  EXPECT_EQ(nearest("wieght_decay", words), "weight_decay");
  EXPECT_EQ(nearest("Warmup", words), "warmup");
  EXPECT_EQ(nearest("banana", words), std::nullopt);
}

TEST(TextTable, aligns_words_left_and_numbers_right) {
  TextTable table({"name", "score"});
  table.row({"reference", "1"});
  table.row({"cpu", "100"});
  EXPECT_EQ(table.text(), "name       score\nreference      1\ncpu          100\n");
}

TEST(HumanBytes, picks_the_unit) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(uint64_t{3} << 30), "3.0 GiB");
}

TEST(Join, reads_like_a_sentence) {
  std::vector<std::string> words{"a", "b", "c"};
  EXPECT_EQ(join_or(words), "a, b or c");
  EXPECT_EQ(split("a,b,,c", ','), (std::vector<std::string>{"a", "b", "", "c"}));
}
