#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/shards/shard.h"
#include "tar_maker.h"

#include <gmock/gmock.h>
#include <thread>

using namespace fvlm;
using namespace fvlm::test;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

ShardOptions indexed_beside(const Folder& folder) {
  return {.cache = folder / "cache", .index_beside = true};
}

// "key: name=content name=content", one for each sample.
std::vector<std::string> samples(const Shard& shard) {
  std::vector<std::string> all;
  for (int64_t i = 0; i < shard.size(); ++i) {
    ShardSample sample = shard.sample(i);
    std::string text = sample.key + ":";
    for (const auto& member : sample.members) text += fmt::format(" {}={}", member.name, text_of(shard.read(member)));
    if (!sample.damage.empty()) text += " damage: " + sample.damage;
    all.push_back(text);
  }
  return all;
}

TarMaker two_samples() {
  TarMaker tar;
  tar.file("clips/0.json", "{}");
  tar.file("clips/0.000.jpg", "a");
  tar.file("clips/0.001.jpg", "b");
  tar.file("more/0.json", "[]");
  return tar;
}

const std::vector<std::string> both = {"clips/0: json={} 000.jpg=a 001.jpg=b", "more/0: json=[]"};
const char* const index_name = ".a.tar.fvlm-index";

size_t files_in(const fs::path& folder) {
  std::error_code none;
  fs::directory_iterator all(folder, none);
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

} // namespace

TEST(Shard, GroupsMembersByNameUpToTheFirstDot) {
  Folder folder;
  write_bytes(folder / "a.tar", two_samples().end());
  auto shard = Shard::open(folder / "a.tar", indexed_beside(folder));
  EXPECT_EQ(samples(*shard), both);
  EXPECT_EQ(shard->damages(), 0);
}

TEST(Shard, KeepsTheFirstOfDuplicateMembers) {
  Folder folder;
  TarMaker tar;
  tar.file("a.json", "1");
  tar.file("a.txt", "2");
  tar.file("a.json", "3");
  tar.file("b.json", "4");
  tar.file("a.json", "5");
  tar.file("a.jpg", "6");
  tar.file("README", "7");
  tar.file("x/.hidden", "8");
  write_bytes(folder / "a.tar", tar.end());
  auto shard = Shard::open(folder / "a.tar", indexed_beside(folder));
  EXPECT_THAT(samples(*shard), ElementsAre("a: json=1 txt=2", "b: json=4"));
  std::vector<std::string> reasons;
  for (const auto& damage : shard->damage()) reasons.push_back(fmt::format("{} {}", damage.offset, damage.reason));
  EXPECT_THAT(reasons, ElementsAre("2048 'a.json' stands a second time in its sample",
                                   "4096 the key 'a' stands a second time in this shard", HasSubstr("'README'"),
                                   HasSubstr("'x/.hidden'")));
}

TEST(Shard, GroupsMembersThatAreNotAdjacent) {
  Folder folder;
  TarMaker tar;
  tar.file("raw/1.001.png", "b");
  tar.file("raw/0.png", "a");
  tar.file("raw/1.json", "1");
  size_t lost = tar.header("raw/2.png", TarMaker::octal(0), '2');
  tar.file("raw/0.json", "0");
  tar.file("raw/1.000.png", "c");
  tar.file("raw/2.json", "2");
  write_bytes(folder / "a.tar", tar.end());
  auto shard = Shard::open(folder / "a.tar", indexed_beside(folder));
  EXPECT_THAT(samples(*shard),
              ElementsAre("raw/1: 001.png=b json=1 000.png=c", "raw/0: png=a json=0",
                          "raw/2: json=2 damage: 'raw/2.png' is a symbolic link, which is not followed"));
  ASSERT_EQ(shard->damages(), 1);
  EXPECT_EQ(shard->damage()[0].offset, lost);
}

TEST(Shard, ReadsWhatPlainTarMakesOfAFolder) {
  Folder folder;
  std::string names;
  for (int i = 0; i < 30; ++i) {
    for (const char* ending : {"json", "png"}) {
      const std::string name = fmt::format("raw/{:03}.{}", i, ending);
      fs::create_directories(folder / "raw");
      write_bytes(folder / name, name);
    }
  }
  for (const char* ending : {"png", "json"}) // the order of a folder depends on the file system; this is the worst case
    for (int i = 0; i < 30; ++i) names += fmt::format(" raw/{:03}.{}", i, ending);
  ASSERT_EQ(
      std::system(fmt::format("cd '{}' && tar cf a.tar{} && tar cf b.tar raw", folder.path().string(), names).c_str()),
      0);
  for (const char* tar : {"a.tar", "b.tar"}) {
    auto shard = Shard::open(folder / tar, indexed_beside(folder));
    EXPECT_EQ(shard->damages(), 0) << tar;
    ASSERT_EQ(shard->size(), 30) << tar;
    for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(shard->sample(i).members.size(), 2) << tar;
  }
}

TEST(Shard, AnIndexOfAdjacentMembersIsMadeAgainOnlyWhereItReportsDamage) {
  Folder folder;
  TarMaker tar = two_samples();
  for (bool damaged : {false, true}) {
    if (damaged) tar.file("README", "no sample's");
    write_bytes(folder / "a.tar", tar.end());
    EXPECT_EQ(samples(*Shard::open(folder / "a.tar", indexed_beside(folder))), both);
    std::string index = read_file(folder / index_name);
    constexpr size_t version_at = 8, hash_at = 80; // of the head of an index
    index[version_at] = 1;
    Xxh64 hash;
    hash.update(std::as_bytes(std::span(index.data(), hash_at)));
    const uint64_t value = hash.value();
    std::memcpy(index.data() + hash_at, &value, sizeof value);
    write_bytes(folder / index_name, index);
    auto shard = Shard::open(folder / "a.tar", indexed_beside(folder));
    EXPECT_EQ(samples(*shard), both);
    EXPECT_EQ(shard->damages(), damaged ? 1 : 0);
    EXPECT_EQ(read_file(folder / index_name) == index, !damaged);
  }
}

TEST(Shard, SampleThatLostAMemberReportsIt) {
  Folder folder;
  TarMaker tar = two_samples();
  tar.file("z/1.json", "1");
  size_t link = tar.header("z/1.jpg", TarMaker::octal(0), '2');
  tar.file("z/2.json", "2");
  std::string bytes = tar.end();
  bytes[1024 + 300] ^= 1; // header of clips/0.000.jpg
  write_bytes(folder / "a.tar", bytes);
  auto shard = Shard::open(folder / "a.tar", indexed_beside(folder));
  EXPECT_THAT(samples(*shard),
              ElementsAre("clips/0: json={} 001.jpg=b damage: 'clips/0.000.jpg': a header with a wrong checksum",
                          both[1], "z/1: json=1 damage: 'z/1.jpg' is a symbolic link, which is not followed",
                          "z/2: json=2"));
  ASSERT_EQ(shard->damages(), 2);
  EXPECT_EQ(shard->damage()[0].offset, 1024);
  EXPECT_EQ(shard->damage()[1].offset, link);
}

TEST(Shard, DamagedNameEqualToAnExistingPartCostsNothing) {
  Folder folder;
  TarMaker tar;
  tar.file("2.json", "a");
  size_t lost = tar.file("2.txt", "b");
  tar.file("3.json", "c");
  tar.file("3.txt", "d");
  std::string bytes = tar.end();
  bytes[lost] = '3'; // now the checksum is wrong, and the name is that of the next sample's part
  write_bytes(folder / "a.tar", bytes);
  EXPECT_THAT(samples(*Shard::open(folder / "a.tar", indexed_beside(folder))),
              ElementsAre("2: json=a", "3: json=c txt=d"));
}

TEST(Shard, RepeatedDamageIsReportedUpToALimit) {
  Folder folder;
  TarMaker tar = two_samples();
  for (int i = 0; i < 3000; ++i) tar.header("link.jpg", TarMaker::octal(0), '2');
  write_bytes(folder / "a.tar", tar.end());
  auto shard = Shard::open(folder / "a.tar", indexed_beside(folder));
  EXPECT_EQ(samples(*shard), both);
  EXPECT_EQ(shard->damages(), 3000);
  EXPECT_EQ(shard->damage().size(), Grouping::max_reported);
}

TEST(Shard, IndexIsReusedFromShardFolderOrCache) {
  Folder folder;
  write_bytes(folder / "a.tar", two_samples().end());
  for (bool beside : {true, false}) {
    ShardOptions chosen = indexed_beside(folder);
    chosen.index_beside = beside;
    EXPECT_EQ(samples(*Shard::open(folder / "a.tar", chosen)), both);
    EXPECT_EQ(fs::exists(folder / index_name), beside);
    EXPECT_EQ(files_in(folder / "cache/shards"), beside ? 0 : 1);
    if (beside) {
      auto made = fs::last_write_time(folder / index_name);
      EXPECT_EQ(samples(*Shard::open(folder / "a.tar", chosen)), both);
      EXPECT_EQ(fs::last_write_time(folder / index_name), made) << "it was made again";
      fs::remove(folder / index_name);
    }
  }
}

TEST(Shard, RejectsIndexOfAnotherShard) {
  Folder folder;
  std::string tar = two_samples().end();
  write_bytes(folder / "a.tar", tar);
  EXPECT_EQ(samples(*Shard::open(folder / "a.tar", indexed_beside(folder))), both);
  auto time = fs::last_write_time(folder / "a.tar");
  TarMaker other;
  other.file("q.json", "new");
  std::string bytes = other.end();
  bytes.resize(tar.size());
  write_bytes(folder / "a.tar", bytes);
  fs::last_write_time(folder / "a.tar", time); // the same size and time
  EXPECT_THAT(samples(*Shard::open(folder / "a.tar", indexed_beside(folder))), ElementsAre("q: json=new"));
}

TEST(Shard, RebuildsDamagedIndexForEveryFlippedBit) {
  Folder folder;
  write_bytes(folder / "a.tar", two_samples().end());
  Shard::open(folder / "a.tar", indexed_beside(folder));
  const std::string good = read_file(folder / index_name);
  set_log_level(LogLevel::error); // each is told
  for (size_t byte = 0; byte < good.size(); ++byte) {
    std::string bad = good;
    bad[byte] ^= 1 << byte % 8;
    write_bytes(folder / index_name, bad);
    auto shard = Shard::open(folder / "a.tar", indexed_beside(folder));
    ASSERT_EQ(samples(*shard), both) << "byte " << byte;
    ASSERT_EQ(shard->damage().size(), 0) << "byte " << byte;
    ASSERT_EQ(read_file(folder / index_name), good) << "byte " << byte;
  }
  for (size_t size = 0; size < good.size(); size += 7) {
    write_bytes(folder / index_name, good.substr(0, size));
    ASSERT_EQ(samples(*Shard::open(folder / "a.tar", indexed_beside(folder))), both) << size << " bytes of it";
  }
  set_log_level(LogLevel::info);
}

TEST(Shard, ManyThreadsRebuildOneDamagedIndex) {
  Folder folder;
  write_bytes(folder / "a.tar", two_samples().end());
  auto shard = Shard::open(folder / "a.tar", indexed_beside(folder));
  FILE* file = std::fopen((folder / index_name).c_str(), "r+b"); // the very file that is open
  std::fseek(file, 130, SEEK_SET);
  std::fputs("xxxx", file);
  std::fclose(file);
  std::vector<std::jthread> threads;
  threads.reserve(4);
  std::atomic<int> good{0};
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { good += samples(*shard) == both; });
  threads.clear();
  EXPECT_EQ(good, 4);
}

TEST(Shard, GzippedTarIsUnpackedOnce) {
  Folder folder;
  write_bytes(folder / "plain.tar", two_samples().end());
  auto gzip = [&](const char* more) {
    auto command =
        fmt::format("cd {0} && head -c 1000 plain.tar | gzip > a.tgz && tail -c +1001 plain.tar | gzip >> a.tgz {1}",
                    folder.path().string(), more);
    ASSERT_EQ(std::system(command.c_str()), 0);
  };
  gzip(""); // two gzip members, which are one stream
  EXPECT_EQ(samples(*Shard::open(folder / "a.tgz", indexed_beside(folder))), both);
  EXPECT_EQ(files_in(folder / "cache/shards"), 2) << "the tar and its index";
  auto tar = [&] {
    for (const auto& entry : fs::directory_iterator(folder / "cache/shards"))
      if (entry.path().extension() == ".tar") return entry.path();
    return fs::path();
  };
  auto first = tar(), made = fs::path();
  auto time = fs::last_write_time(first);
  EXPECT_EQ(samples(*Shard::open(folder / "a.tgz", indexed_beside(folder))), both);
  EXPECT_EQ(fs::last_write_time(first), time) << "it was unpacked again";

  TarMaker more = two_samples();
  more.file("third.txt", "3");
  write_bytes(folder / "plain.tar", more.end());
  gzip("");
  EXPECT_THAT(samples(*Shard::open(folder / "a.tgz", indexed_beside(folder))),
              ElementsAre(both[0], both[1], "third: txt=3"));
  EXPECT_FALSE(fs::exists(first)) << "what the old file unpacked to stays behind";
}

TEST(Shard, TruncatedGzipStreamGivesItsBeginning) {
  Folder folder;
  TarMaker tar = two_samples();
  std::string noise(100'000, '\0');
  uint32_t state = 1;
  for (char& c : noise) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  tar.file("last.txt", noise);
  write_bytes(folder / "plain.tar", tar.end());
  ASSERT_EQ(
      std::system(fmt::format("cd {} && gzip < plain.tar | head -c 60000 > a.tgz", folder.path().string()).c_str()), 0);
  auto shard = Shard::open(folder / "a.tgz", indexed_beside(folder));
  EXPECT_THAT(samples(*shard), ElementsAre(both[0], both[1]));
  EXPECT_GE(shard->damages(), 1);
}

TEST(Shard, RefusesGzipBombWithALimit) {
  Folder folder;
  ASSERT_EQ(std::system(fmt::format("head -c 3000000 /dev/zero | gzip > {}/a.tgz", folder.path().string()).c_str()), 0);
  ShardOptions limited = indexed_beside(folder);
  limited.most_unpacked = 2'000'000;
  try {
    Shard::open(folder / "a.tgz", limited);
    FAIL() << "3,000,000 bytes were unpacked";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("unpacks to more than 1.9 MiB"));
  }
  EXPECT_EQ(files_in(folder / "cache/shards"), 0) << "something stays behind";
}

TEST(Shard, RefusesWhatIsNoFileAndNoFolder) {
  Folder folder;
  fs::create_directory(folder / "a.tar");
  EXPECT_EQ(Shard::open(folder / "a.tar", indexed_beside(folder))->size(), 0);
  EXPECT_THROW(Shard::open("/dev/null", indexed_beside(folder)), Error);
}

TEST(Shard, SaysWhatToDoWithoutAPlaceForAnIndex) {
  Folder folder;
  write_bytes(folder / "a.tar", two_samples().end());
  write_bytes(folder / "cache", "no folder");
  ShardOptions nowhere = indexed_beside(folder);
  nowhere.index_beside = false;
  try {
    Shard::open(folder / "a.tar", nowhere);
    FAIL() << "where is the index?";
  } catch (const ReadError& error) {
    EXPECT_THAT(error.text(), HasSubstr("no place for the shard's index"));
    EXPECT_THAT(error.text(), HasSubstr("FVLM_CACHE"));
  }
}
