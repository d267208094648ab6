// The stream over real shards, also when the process is killed any number of times.
#include "killed_stream.h"

#include <fstream>
#include <gmock/gmock.h>

namespace fvlm::test {
namespace {

constexpr int shards = 6, samples_a_shard = 20;
constexpr int64_t image_size = OpenedStream::image_size;

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

std::string tars(const Folder& folder) {
  return (folder / "*.tar").string();
}

TEST(StreamOfShards, GivesEveryGoodSampleAndReportsEveryBrokenOne) {
  const Folder folder;
  write_shards(folder);
  const OpenedStream opened(folder, tars(folder));
  const auto loader = opened.loader(opened.start(), folder / "broken.jsonl", 2);
  std::set<std::string> observed;
  while (const auto loaded = loader->next())
    for (const auto& packed : loaded->pack.samples) {
      const int number = std::stoi(packed.sample->key);
      EXPECT_NE(number % 7, 3);
      EXPECT_NE(number % 11, 5);
      EXPECT_EQ(packed.sample->frames, 1 + number % 3);
      EXPECT_EQ(loaded->pack.pixels[static_cast<size_t>(packed.first_frame * 3 * image_size * image_size)], number);
      EXPECT_EQ((*loaded->pack.normalization)[0], imagenet_normalization()[0]);
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

// The keys of a source's samples on one side.
std::set<std::string> keys_on(const Folder& folder, double held_out, plan::Portion::Side side) {
  plan::Mix mix = mix_of({1});
  mix.sources[0].shards = {tars(folder)};
  mix.sources[0].held_out = held_out;
  mix.sources[0].side = side;
  const MixSamples samples(mix, byte_tokenizer(), image_size, nullptr, plan::VisualRows{}, {.cache = folder / "cache"});
  std::set<std::string> keys;
  for (int64_t i = 0; i < samples.sizes()[0]; ++i) keys.insert(samples.key({.source = 0, .sample = i}));
  EXPECT_EQ(std::ssize(keys), samples.sizes()[0]) << "each once";
  return keys;
}

TEST(StreamOfShards, HoldsAShareOfTheSamplesOut) {
  using enum plan::Portion::Side;
  const Folder folder;
  write_shards(folder);
  for (const double share : {0.01, 0.1, 0.25, 0.3, 0.999}) {
    const auto kept = keys_on(folder, share, held_out), others = keys_on(folder, share, rest);
    EXPECT_EQ(std::ssize(kept), static_cast<int64_t>(120 * share)) << share;
    EXPECT_EQ(kept.size() + others.size(), 120u) << share;
    for (const std::string& key : kept) EXPECT_FALSE(others.contains(key)) << share << ": " << key;
  }
  const auto tenth = keys_on(folder, 0.1, held_out);
  EXPECT_THAT(tenth, testing::ElementsAre("00009", "00019", "00029", "00039", "00049", "00059", "00069", "00079",
                                          "00089", "00099", "00109", "00119"));
  std::filesystem::remove(folder / "5.tar"); // the last 20
  EXPECT_TRUE(std::ranges::includes(tenth, keys_on(folder, 0.1, held_out))) << "a sample stays on its side";
  EXPECT_THROW(keys_on(folder, 0.001, held_out), Error);
}

TEST(StreamOfShards, KilledProcessResumesWithTheSamePacks) {
  const Folder folder;
  write_shards(folder);
  expect_the_same_after_kills(folder, tars(folder), 40);
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
  OpenedStream opened(folder, tars(folder));
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
