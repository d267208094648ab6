#include "base/shell_word.h"
#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"

#include <gtest/gtest.h>

using namespace fvlm;

TEST(Nearest, FindsLikelyWordOnly) {
  std::vector<std::string> words{"learning_rate", "lr", "warmup", "weight_decay"};
  EXPECT_EQ(nearest("lrr", words), "lr");
  EXPECT_EQ(nearest("wieght_decay", words), "weight_decay");
  EXPECT_EQ(nearest("Warmup", words), "warmup");
  EXPECT_EQ(nearest("banana", words), std::nullopt);
}

TEST(ShellWord, IsQuotedWhereAShellWouldSplitIt) {
  EXPECT_EQ(shell_word("runs/ü-1.lua"), "runs/ü-1.lua");
  EXPECT_EQ(shell_word("my runs/a.lua"), "'my runs/a.lua'");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Terminal, EscapesCommandsAndKeepsSpaces) {
  EXPECT_EQ(strip_control_characters("a\x1b[2J\r\x7f b \n\tc "), "a [2J   b \n\tc ");
  EXPECT_EQ(strip_control_characters("\u009b31m\u0085 \u00a0é"), " 31m  \u00a0é");
}

TEST(Terminal, ReplacesBidirectionalMarksAndInvalidUtf8) {
  EXPECT_EQ(strip_control_characters("a\u202Egpj.exe\u202C \u2066b\u2069 \u200F\u061C"), "a gpj.exe   b    ");
  EXPECT_EQ(strip_control_characters("\x9b"
                                     "31m \xc2"),
            "\uFFFD31m \uFFFD")
      << "an 8-bit terminal takes a lone 0x9b for a command";
  EXPECT_EQ(strip_control_characters("\xed\xa0\x80|\xc0\x9b|\xf5"), "\uFFFD\uFFFD\uFFFD|\uFFFD\uFFFD|\uFFFD");
  EXPECT_EQ(strip_control_characters("日本語 \U0001F600 \u05D0\u200D"), "日本語 \U0001F600 \u05D0\u200D");
}

TEST(Terminal, ColoursOfOursStayOnRequestAndNoOtherSequence) {
  const std::string bold = styled("a", Style::bold, true);
  EXPECT_EQ(strip_control_characters(bold + "\x1b[2J\x1b[8mb\x1b", true), bold + " [2J [8mb\uFFFD");
  EXPECT_EQ(strip_control_characters(bold), " [1ma [0m");
}

TEST(Terminal, JsonEscapesControlCharacters) {
  EXPECT_EQ(escape_control_characters("{\"a\": \"\u009b31m\x7f\u202Eé\"}\n"),
            "{\"a\": \"\\u009b31m\\u007f\\u202eé\"}\n");
}

TEST(TextTable, AlignsWordsLeftAndNumbersRight) {
  TextTable table({"name", "score"});
  table.row({"reference", "1"});
  table.row({"cpu", "100"});
  EXPECT_EQ(table.text(), "name       score\nreference      1\ncpu          100\n");
}

TEST(HumanBytes, PicksUnit) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(uint64_t{3} << 30), "3.0 GiB");
}

TEST(Text, GroupsNumbersByThousands) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(31250), "31,250");
  EXPECT_EQ(grouped(-1000005), "-1,000,005");
  EXPECT_EQ(grouped(INT64_MIN), "-9,223,372,036,854,775,808");
}

TEST(Text, CountsHaveTheirPlural) {
  EXPECT_EQ(counted(1, "frame"), "1 frame");
  EXPECT_EQ(counted(0, "frame"), "0 frames");
  EXPECT_EQ(counted(2000, "sample"), "2,000 samples");
}

TEST(Text, DurationsHaveAtMostTwoUnits) {
  EXPECT_EQ(human_duration(0), "0.0 s");
  EXPECT_EQ(human_duration(9.94), "9.9 s");
  EXPECT_EQ(human_duration(9.96), "10 s");
  EXPECT_EQ(human_duration(59.6), "1 min 00 s");
  EXPECT_EQ(human_duration(200), "3 min 20 s");
  EXPECT_EQ(human_duration(3599.9), "1 h 00 min");
  EXPECT_EQ(human_duration(86400 * 2 + 3600 * 3), "2 d 03 h");
  EXPECT_EQ(human_duration(1e300), "forever");
}

TEST(Join, ReadsLikeASentence) {
  std::vector<std::string> words{"a", "b", "c"};
  EXPECT_EQ(join_or(words), "a, b or c");
  EXPECT_EQ(split("a,b,,c", ','), (std::vector<std::string>{"a", "b", "", "c"}));
}
