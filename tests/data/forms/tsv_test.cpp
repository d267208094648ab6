// Tables with tabs between their columns. tsv_test.py holds the form against Python's csv module.
#include "base/base64.h"
#include "data/shards/shard_set.h"
#include "made_forms.h"

#include <gmock/gmock.h>
#include <random>

namespace fvlm::test {
namespace {

using testing::HasSubstr;

struct Table {
  Folder folder;
  std::shared_ptr<const Shard> open(const std::string& text, const std::string& name = "a.tsv") const {
    write_bytes(folder / name, text);
    return Shard::open(folder / name, {.cache = folder / "cache", .index_beside = false});
  }
};

// Of the i-th row: its JSON, or why it has none.
std::string told(const Shard& shard, int64_t i) {
  const ShardSample sample = shard.sample(i);
  if (!sample.damage.empty()) return sample.damage;
  try {
    return shard.json(sample)->dump();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
}

TEST(Tsv, FieldsInQuotationMarksHaveTabsAndLineBreaks) {
  const Table table;
  const auto shard = table.open("\xef\xbb\xbfindex\tquestion\tanswer\r\n"
                                "0\t\"one\ttab,\ntwo \"\"lines\"\"\"\tyes\r\n\r\n"
                                "1\ta 3\" pipe\t\n");
  ASSERT_EQ(shard->size(), 2);
  EXPECT_EQ(told(*shard, 0), R"({"answer":"yes","index":"0","question":"one\ttab,\ntwo \"lines\""})");
  EXPECT_EQ(told(*shard, 1), R"({"answer":null,"index":"1","question":"a 3\" pipe"})");
  EXPECT_EQ(shard->sample(0).key, "row 0 (line 2)");
  EXPECT_EQ(shard->sample(1).key, "row 1 (line 5)");
}

TEST(Tsv, RowsThatAreBrokenAreSaidToBe) {
  const Table table;
  const auto shard = table.open("a\tb\n1\t2\n1\n1\t2\t3\n1\t\xff\n5\t6\n7\t\"cut off\n");
  ASSERT_EQ(shard->size(), 6);
  EXPECT_EQ(told(*shard, 0), R"({"a":"1","b":"2"})");
  EXPECT_THAT(told(*shard, 1), HasSubstr("it has 1 fields, and the first line names 2 columns"));
  EXPECT_THAT(told(*shard, 2), HasSubstr("it has 3 fields"));
  EXPECT_THAT(told(*shard, 3), HasSubstr("no UTF-8"));
  EXPECT_EQ(told(*shard, 4), R"({"a":"5","b":"6"})");
  EXPECT_THAT(told(*shard, 5), HasSubstr("cut short"));
}

TEST(Tsv, AFileThatIsNoneSaysWhy) {
  const Table table;
  for (const auto& [text, reason] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", "the file is empty"}, {"only\n1\n", "has no tab"}, {"a\tb\ta\n1\t2\t3\n", "'a' twice"}}) {
    const auto shard = table.open(text);
    ASSERT_EQ(shard->size(), 0) << text;
    ASSERT_EQ(shard->damage().size(), 1) << text;
    EXPECT_THAT(shard->damage().front().reason, HasSubstr(reason));
  }
}

// A sample of a mix has its image in a column.
TEST(Tsv, ImagesInBase64AreThoseOfFiles) {
  const Table table;
  const std::string png = write_png(plain_image(9, 7, 10, 100, 200));
  write_bytes(table.folder / "a.png", png);
  std::string reason;
  const auto in_row = table.open(fmt::format("user\tassistant\timage\nwhich?\tthis\t{}\n", encode_base64(png)));
  const auto in_file = table.open("user\tassistant\timage\nwhich?\tthis\ta.png\n", "b.tsv");
  const uint64_t expected = digest_of(*in_file, 0, reason);
  EXPECT_NE(expected, 0) << reason;
  EXPECT_EQ(digest_of(*in_row, 0, reason), expected) << reason;
}

// Rows of the size of a piece that the scan reads, and just beside it.
TEST(Tsv, RowsAreFoundWhereverPiecesEnd) {
  const Table table;
  for (const size_t size : {(size_t{1} << 20) - 9, (size_t{1} << 20) - 4, (size_t{1} << 20) - 3, (size_t{1} << 20) - 2,
                            (size_t{1} << 20) - 1, size_t{1} << 20, size_t{3} << 20}) {
    const auto shard = table.open("a\tb\n" + std::string(size, 'x') + "\t\"q\"\"\n\"\"\"\n1\t2\n");
    ASSERT_EQ(shard->size(), 2) << size;
    EXPECT_EQ(shard->json(shard->sample(0))->at("b"), "q\"\n\"") << size;
    EXPECT_EQ(shard->json(shard->sample(0))->at("a").get<std::string>().size(), size);
    EXPECT_EQ(told(*shard, 1), R"({"a":"1","b":"2"})") << size;
  }
}

TEST(Tsv, MutatedFilesAreReadOrRefused) {
  const Table table;
  const std::string whole = "index\tquestion\tanswer\n0\t\"a\tb\n\"\"c\"\"\"\tyes\n1\tplain\tno\n2\t\"\"\t\"d\"\n";
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    std::string text = whole;
    for (int i = 0; i < 3; ++i) {
      const size_t at = random() % text.size();
      static constexpr std::string_view signs = "\t\n\"\r\0\xff a";
      if (random() % 2)
        text[at] = signs[random() % signs.size()];
      else
        text.erase(at, 1 + random() % 9);
      if (text.empty()) text = "\n";
    }
    const auto shard = table.open(text);
    for (int64_t i = 0; i < shard->size(); ++i) EXPECT_FALSE(told(*shard, i).empty());
  }
}

} // namespace
} // namespace fvlm::test
