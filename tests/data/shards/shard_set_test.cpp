#include "base/error.h"
#include "data/shards/shard_set.h"
#include "tar_maker.h"

#include <deque>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <thread>

using namespace fvlm;
using namespace fvlm::test;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

// Shard NAME.tar with samples NAME-0, NAME-1, ...
void make(const Folder& folder, const std::string& name, int samples) {
  TarMaker tar;
  for (int i = 0; i < samples; ++i) tar.file(fmt::format("{}-{}.txt", name, i), fmt::format("{} {}", name, i));
  write_bytes(folder / (name + ".tar"), tar.end());
}

ShardOptions cached_in(const Folder& folder) {
  return {.cache = folder / "cache"};
}

std::vector<std::string> keys(const ShardSet& set) {
  std::vector<std::string> all;
  for (int64_t i = 0; i < set.size(); ++i) {
    SampleLocation place = set.locate(i);
    all.push_back(set.shard(place)->sample(place.sample).key);
  }
  return all;
}

size_t open_descriptors() {
  fs::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

int64_t resident_kib() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  long all = 0, resident = 0;
  if (std::fscanf(file, "%ld %ld", &all, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident * 4;
}

// Lowers how many files the process may have open.
class FileLimit {
 public:
  explicit FileLimit(rlim_t most) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit lower = before_;
    lower.rlim_cur = most;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

} // namespace

TEST(ShardSet, HashOfItsContentIsThatOfACopyAndOfNoOtherData) {
  Folder folder;
  const auto hash = [&](const std::string& name) {
    return ShardSet({(folder / name).string()}, cached_in(folder)).content_hash();
  };
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += fmt::format("{{\"prompt\": \"{}\", \"answer\": \"no\"}}\n", i);
  write_bytes(folder / "a.jsonl", lines);
  const uint64_t before = hash("a.jsonl");
  fs::create_directories(folder / "there");
  fs::copy(folder / "a.jsonl", folder / "there/b.jsonl");
  EXPECT_EQ(hash("there/b.jsonl"), before) << "neither name nor time counts";
  for (const size_t place : {size_t{0}, lines.size() / 4, lines.size() - 60}) {
    std::string other = lines;
    other.replace(other.find("no", place), 2, "on");
    write_bytes(folder / "other.jsonl", other);
    EXPECT_NE(hash("other.jsonl"), before) << "a word at byte " << place;
  }

  for (const char* files : {"files", "copied"}) {
    fs::create_directories(folder / files);
    write_bytes(folder / files / "1.txt", "no");
    write_bytes(folder / files / "2.txt", "no");
  }
  EXPECT_EQ(hash("files"), hash("copied"));
  write_bytes(folder / "copied/2.txt", "on");
  EXPECT_NE(hash("files"), hash("copied")) << "a file of the same size";
}

TEST(ShardSet, ListsSamplesInPatternOrderSortedWithinWildcards) {
  Folder folder;
  for (const char* name : {"b", "a", "c"}) make(folder, name, 2);
  make(folder, "empty", 0);
  make(folder, "9", 1);
  make(folder, "10", 1);
  auto at = [&](const char* pattern) { return (folder / pattern).string(); };
  ShardSet set({at("{9..10}.tar"), at("[b-c].tar"), at("empty.tar"), at("*.tar")}, cached_in(folder));
  EXPECT_THAT(keys(set), ElementsAre("9-0", "10-0", "b-0", "b-1", "c-0", "c-1", "a-0", "a-1"));
  EXPECT_EQ(set.shards(), 6);
  EXPECT_EQ(set.locate(6), (SampleLocation{5, 0}));
  EXPECT_EQ(set.samples(4), 0);
  EXPECT_EQ(set.first(5), 6);
  EXPECT_THROW(set.locate(8), Error);
  EXPECT_THROW(set.locate(-1), Error);
}

TEST(ShardSet, PatternWithoutMatchIsAnErrorThatNamesIt) {
  Folder folder;
  make(folder, "a", 1);
  make(folder, "0", 1);
  make(folder, "empty", 0);
  auto message = [&](const char* pattern) {
    try {
      ShardSet({(folder / "a.tar").string(), (folder / pattern).string()}, cached_in(folder));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      return error.text();
    }
    return std::string("no error");
  };
  EXPECT_THAT(message("b*.tar"), HasSubstr("b*.tar: no file matches"));
  EXPECT_THAT(message("{0..3}.tar"), HasSubstr("3 of the 4 names"));
  EXPECT_THAT(message("{0..3}.tar"), HasSubstr("1.tar"));
  EXPECT_THAT(message("."),
              AllOf(HasSubstr("it is a folder of shards, and no shard"), HasSubstr("matches the 3 shards in it")));
  try {
    ShardSet none({(folder / "empty.tar").string()}, cached_in(folder));
    FAIL() << "no sample at all, and no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("no sample in 1 shard"));
  }
  write_bytes(folder / "zip.tar", "PK" + std::string(2000, 'x'));
  try {
    ShardSet none({(folder / "zip.tar").string()}, cached_in(folder));
    FAIL() << "no tar, and no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("it is not a tar, or only a piece of one"));
  }
}

TEST(ShardSet, BlamesADownloadOnlyForDamage) {
  Folder folder;
  TarMaker tar;
  for (int i = 0; i < 2; ++i) tar.file("a.json", "{}"), tar.file("README", "x");
  write_bytes(folder / "a.tar", tar.end());
  testing::internal::CaptureStderr();
  ShardSet set({(folder / "a.tar").string()}, cached_in(folder));
  const std::string output = testing::internal::GetCapturedStderr();
  EXPECT_THAT(output, HasSubstr("3 places in it are damaged or of no use"));
  EXPECT_THAT(output, HasSubstr("a name of their own"));
  EXPECT_THAT(output, testing::Not(HasSubstr("downloaded")));
}

TEST(ShardSet, ReportsProgressAndDoesNotDependOnThreads) {
  Folder folder;
  for (int i = 0; i < 20; ++i) make(folder, fmt::format("{:02}", i), i % 3);
  std::vector<std::string> first;
  for (int threads : {1, 2, 8}) {
    ShardOptions chosen = cached_in(folder);
    chosen.threads = threads;
    std::vector<int64_t> reported;
    ShardSet set({(folder / "*.tar").string()}, chosen, [&](int64_t done, int64_t all) {
      EXPECT_EQ(all, 20);
      reported.push_back(done);
    });
    EXPECT_EQ(reported.size(), 20);
    EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end()));
    if (first.empty()) first = keys(set);
    EXPECT_EQ(keys(set), first) << threads << " threads";
  }
  EXPECT_EQ(first.size(), 19);
}

TEST(ShardSet, KeepsFewShardsOpenAndMemoryFlat) {
  Folder folder;
  constexpr int shards = 300, samples = 100;
  for (int i = 0; i < shards; ++i) make(folder, fmt::format("{:03}", i), samples);
  ShardOptions chosen = cached_in(folder);
  chosen.open_shards = 16;
  ShardSet set({(folder / "{000..299}.tar").string()}, chosen);
  ASSERT_EQ(set.size(), shards * samples);
  size_t before = open_descriptors(), most = 0;
  int64_t early = 0, number = 0;
  for (int64_t i = 0; i < set.size(); i += 3) { // a shuffle: 7919 is prime
    number = (number + 7919) % set.size();
    SampleLocation place = set.locate(number);
    auto shard = set.shard(place);
    ASSERT_EQ(shard->sample(place.sample).key, fmt::format("{:03}-{}", number / samples, number % samples));
    if (i % 300 == 0) most = std::max(most, open_descriptors());
    if (i == set.size() / 10) early = resident_kib();
  }
  EXPECT_LE(most, before + 2 * 16 + 2);
  int64_t late = resident_kib();
#ifdef __SANITIZE_ADDRESS__ // keeps what is freed
  late = early;
#endif
  EXPECT_LE(late, early + 4096) << "KiB resident at 10 % and 100 %: " << early << ", " << late;
}

TEST(ShardSet, ManySetsShareTheFilesThatMayBeOpen) {
  Folder folder;
  for (int i = 0; i < 120; ++i) make(folder, fmt::format("{:03}", i), 2);
  const FileLimit limit(64);
  std::deque<ShardSet> sets;
  for (int i = 0; i < 12; ++i)
    sets.emplace_back(std::vector{(folder / fmt::format("{:02}*.tar", i)).string()}, cached_in(folder));
  for (int64_t i = 0; i < 20; ++i)
    for (const ShardSet& set : sets) {
      const SampleLocation place = set.locate(i);
      EXPECT_EQ(set.shard(place)->sample(place.sample).key.substr(3), fmt::format("-{}", i % 2));
    }
  EXPECT_GT(open_descriptors(), 16U) << "shards stay open";
  sets.clear();
  EXPECT_LE(open_descriptors(), 16U) << "and are closed with their sets";
}

TEST(ShardSet, TooManyOpenFilesAreToldAtOnce) {
  Folder folder;
  make(folder, "a", 1);
  ShardOptions options = cached_in(folder);
  options.retry.pause = [](std::chrono::milliseconds) { ADD_FAILURE() << "a pause cannot help"; };
  const FileLimit limit(32);
  std::vector<Descriptor> others;
  while (others.empty() || others.back()) others.emplace_back(dup(0));
  try {
    const Shard* shard = Shard::open(folder / "a.tar", options).get();
    ADD_FAILURE() << shard;
  } catch (const ReadError& error) {
    EXPECT_THAT(error.text(), AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n")));
  }
}

TEST(ShardSet, StopsWhenAShardIsReplacedDuringUse) {
  Folder folder;
  make(folder, "a", 3);
  ShardSet set({(folder / "a.tar").string()}, cached_in(folder));
  make(folder, "a", 40);
  EXPECT_THROW(set.shard(0), ReadError);
}

TEST(ShardSet, ManyThreadsReadAtOnce) {
  Folder folder;
  for (int i = 0; i < 8; ++i) make(folder, fmt::format("{}", i), 50);
  ShardOptions chosen = cached_in(folder);
  chosen.open_shards = 2;
  ShardSet set({(folder / "*.tar").string()}, chosen);
  std::atomic<int> good{0};
  std::vector<std::jthread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < set.size(); ++i) {
        SampleLocation place = set.locate((i * 37 + t * 11) % set.size());
        auto shard = set.shard(place);
        ShardSample sample = shard->sample(place.sample);
        good += text_of(shard->read(sample.members.at(0))) == fmt::format("{} {}", place.shard, place.sample);
      }
    });
  threads.clear();
  EXPECT_EQ(good, 4 * 400);
}

TEST(ShardSet, RefillsACacheThatWasEmptied) {
  Folder folder;
  make(folder, "a", 3);
  ASSERT_EQ(std::system(fmt::format("cd {} && gzip < a.tar > a.tgz", folder.path().string()).c_str()), 0);
  ShardOptions chosen = cached_in(folder);
  chosen.open_shards = 1;
  ShardSet set({(folder / "a.t{gz,ar}").string()}, chosen);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_THAT(keys(set), ElementsAre("a-0", "a-1", "a-2", "a-0", "a-1", "a-2"));
    fs::remove_all(folder / "cache");
    fs::remove(folder / ".a.tar.fvlm-index");
  }
}
