// The stream over real shards, also when the process is killed any number of times.
#include "../samples/sample_maker.h"
#include "base/text.h"
#include "data/stream/loader.h"
#include "data/stream/mix_samples.h"
#include "synthetic_source.h"

#include <csignal>
#include <fstream>
#include <gmock/gmock.h>
#include <sys/wait.h>

namespace fvlm::test {
namespace {

constexpr int shards = 6, samples_a_shard = 20;
constexpr int64_t image_size = 8;

// Pictures with a question, of one, two or three frames; every seventh has a broken picture, every eleventh no answer.
void write_shards(const Folder& folder) {
  for (int shard = 0; shard < shards; ++shard) {
    TarMaker tar;
    for (int i = 0; i < samples_a_shard; ++i) {
      const int number = shard * samples_a_shard + i;
      const std::string key = fmt::format("{:05}", number);
      const auto level = static_cast<uint8_t>(number);
      for (int frame = 0; frame < 1 + number % 3; ++frame) {
        std::string picture =
            write_png(plain_image(12 + frame, 9, level, 255 - level, static_cast<uint8_t>(frame * 40)));
        if (number % 7 == 3) picture.resize(picture.size() / 2);
        tar.file(fmt::format("{}.{:03}.png", key, frame), picture);
      }
      tar.file(key + ".json", number % 11 == 5
                                  ? R"({"user": "which?"})"
                                  : fmt::format(R"({{"user": "which?", "assistant": "number {}"}})", number));
    }
    write_bytes(folder / fmt::format("{}.tar", shard), tar.end());
  }
}

struct Opened {
  explicit Opened(const Folder& folder) : mix(mix_of({1})) {
    mix.sources[0].shards = {(folder / "*.tar").string()};
    samples.emplace(mix, byte_tokenizer(), image_size, nullptr, plan::VisualRows{},
                    ShardOptions{.cache = folder / "cache", .open_shards = 3});
    order.emplace(Order::shuffled(mix, samples->sizes(), 42, "align", 300));
  }
  std::unique_ptr<DataLoader> loader(const Cursor& start, const std::filesystem::path& log, int workers) const {
    return std::make_unique<DataLoader>(
        *samples, *order, plan, first_fit,
        DataLoaderOptions{.workers = workers, .quarantine_log = log, .quarantine = {.share = 1}}, start);
  }
  Cursor start() const { return Composer::start(plan, *order); }

  plan::Mix mix;
  std::optional<MixSamples> samples;
  std::optional<Order> order;
  BatchPlan plan{.batch = {.tokens = 600}, .capacity = {16, 400}, .window = 32, .samples = 300};
};

std::vector<std::string> hashes(DataLoader& loader) {
  std::vector<std::string> all;
  while (const auto loaded = loader.next()) all.push_back(fmt::format("{:016x}", loaded->pack.hash()));
  return all;
}

std::set<std::string> reasons(const std::filesystem::path& log) {
  std::set<std::string> all;
  for (const auto& line : split(read_file(log), '\n'))
    if (!line.empty()) all.insert(line);
  return all;
}

// The work of a process that will be killed: after each step it writes its packs' hashes and the cursor.
void run_until_killed(const Folder& folder, int workers) {
  const Opened opened(folder);
  Cursor cursor = opened.start();
  std::string reported;
  if (std::filesystem::exists(folder / "state")) {
    const std::string state = read_file(folder / "state");
    const size_t end = state.find('\n');
    cursor = Cursor::parse(state.substr(0, end), "state");
    reported = state.substr(end + 1);
  }
  const auto loader = opened.loader(cursor, folder / "killed.jsonl", workers);
  while (const auto loaded = loader->next()) {
    reported += fmt::format("{:016x}\n", loaded->pack.hash());
    if (loaded->last) write_file_atomic(folder / "state", loaded->after.text() + "\n" + reported);
  }
}

TEST(StreamOfShards, GivesEveryGoodSampleAndReportsEveryBrokenOne) {
  const Folder folder;
  write_shards(folder);
  const Opened opened(folder);
  const auto loader = opened.loader(opened.start(), folder / "broken.jsonl", 2);
  std::set<std::string> observed;
  while (const auto loaded = loader->next())
    for (const auto& packed : loaded->pack.samples) {
      const int number = std::stoi(packed.sample->key);
      EXPECT_NE(number % 7, 3);
      EXPECT_NE(number % 11, 5);
      EXPECT_EQ(packed.sample->frames, 1 + number % 3);
      const float red = loaded->pack.frames[static_cast<size_t>(packed.first_frame * 3 * image_size * image_size)];
      EXPECT_NEAR((red * 0.229f + 0.485f) * 255, number, 0.01);
      EXPECT_THAT(reported(packed.sample->texts[0]), testing::HasSubstr(fmt::format("number {}", number)));
      observed.insert(packed.sample->key);
    }
  EXPECT_EQ(observed.size(), 120u - 17 - 11 + 2); // 38 and 115 are broken both ways
  const std::string all = read_file(folder / "broken.jsonl");
  EXPECT_THAT(all, testing::HasSubstr("\"key\":\"00003\""));
  EXPECT_THAT(all, testing::HasSubstr("\"key\":\"00005\""));
  EXPECT_THAT(all, testing::Not(testing::HasSubstr("\"key\":\"00004\"")));
  EXPECT_THAT(all, testing::Not(testing::HasSubstr("sample '"))) << "place and key are told once";
}

TEST(StreamOfShards, KilledProcessResumesWithTheSamePacks) {
  const Folder folder;
  write_shards(folder);
  const Opened opened(folder);
  const auto expected = hashes(*opened.loader(opened.start(), folder / "broken.jsonl", 2));
  ASSERT_GT(expected.size(), 20u);
  const RandomStream random(5, "kills");
  int killed = 0;
  for (uint64_t round = 0; round < 1000; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      run_until_killed(folder, 1 << round % 4);
      _exit(0);
    }
    if (killed < 40) std::this_thread::sleep_for(std::chrono::microseconds(random.bits(round) % 20000));
    if (killed < 40) kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
      ASSERT_EQ(WTERMSIG(status), SIGKILL);
      ++killed;
      continue;
    }
    ASSERT_EQ(WEXITSTATUS(status), 0);
    break;
  }
  const std::string state = read_file(folder / "state");
  EXPECT_EQ(state.substr(state.find('\n') + 1), join(expected, "\n") + "\n") << "after " << killed << " deaths";
  EXPECT_EQ(reasons(folder / "killed.jsonl"), reasons(folder / "broken.jsonl"));
  EXPECT_GT(killed, 0);
}

int64_t resident_kib() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

TEST(StreamOfShards, MemoryStaysFlatOverAThousandShards) {
  constexpr int64_t all = 8000;
  const Folder folder;
  const std::string picture = write_png(plain_image(9, 9, 1, 2, 3));
  for (int shard = 0; shard < 1000; ++shard) {
    TarMaker tar;
    for (int i = 0; i < 8; ++i) {
      tar.file(fmt::format("{}.png", i), picture);
      tar.file(fmt::format("{}.json", i), R"({"user": "which?", "assistant": "this"})");
    }
    write_bytes(folder / fmt::format("{:04}.tar", shard), tar.end());
  }
  Opened opened(folder);
  opened.plan.samples = all;
  opened.order.emplace(Order::shuffled(mix_of({1}, 1), opened.samples->sizes(), 42, "align", all));
  const auto loader = opened.loader(opened.start(), {}, 2);
  int64_t samples = 0, early = 0;
  while (const auto loaded = loader->next()) {
    samples += static_cast<int64_t>(loaded->pack.samples.size());
    if (early == 0 && samples >= all / 10) early = resident_kib();
  }
  const int64_t late = resident_kib();
  EXPECT_EQ(samples, all);
  fmt::print("resident at 10 %: {} KiB, at 100 %: {} KiB\n", early, late);
#if !defined(__SANITIZE_ADDRESS__) // which keeps freed memory
  EXPECT_LE(late, early + 4096);
#endif
}

} // namespace
} // namespace fvlm::test
