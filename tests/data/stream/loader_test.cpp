#include "base/file.h"
#include "base/text.h"
#include "data/stream/loader.h"
#include "synthetic_source.h"

#include <atomic>
#include <gmock/gmock.h>
#include <map>
#include <thread>

namespace fvlm {
namespace {

using testing::HasSubstr;

const BatchPlan by_samples{.batch = {.samples = 16}, .capacity = {40, 300}, .window = 64, .samples = 400};
const BatchPlan by_budget{.batch = {.tokens = 500}, .capacity = {40, 300}, .window = 64, .samples = 400};

struct Stage {
  explicit Stage(const SyntheticSource& from, const BatchPlan& by = by_samples, int64_t epochs = 0)
      : source(from), plan(by), order(Order::shuffled(mix_of({3, 1}, epochs), from.sizes(), 42, "align", by.samples)),
        cursor(Composer::start(plan, order)) {}
  DataLoader loader(const DataLoaderOptions& options = {}) const {
    return {source, order, plan, first_fit, options, cursor};
  }

  const SyntheticSource& source;
  BatchPlan plan;
  Order order;
  Cursor cursor;
};

std::vector<uint64_t> hashes(DataLoader& loader, size_t most = 1000000) {
  std::vector<uint64_t> all;
  while (all.size() < most) {
    const auto loaded = loader.next();
    if (!loaded) break;
    all.push_back(loaded->pack.hash());
  }
  return all;
}

TEST(DataLoader, GivesFramesOfEachSampleInPlace) {
  const SyntheticSource source({100, 30});
  const Stage stage(source);
  auto loader = stage.loader({.workers = 3});
  int64_t samples = 0, steps = 0;
  while (auto loaded = loader.next()) {
    EXPECT_EQ(loaded->step, steps);
    int64_t next = 0;
    for (const auto& packed : loaded->pack.samples) {
      EXPECT_EQ(packed.first_frame, next);
      next += packed.sample->frames;
      const auto dash = packed.sample->key.find('-');
      const DrawnSample drawn{0, std::stoul(packed.sample->key), 0, std::stol(packed.sample->key.substr(dash + 1))};
      for (int64_t i = 0; i < packed.sample->frames * 6; ++i)
        ASSERT_EQ(loaded->pack.frames[static_cast<size_t>(packed.first_frame * 6 + i)],
                  SyntheticSource::pixel(drawn, static_cast<size_t>(i)))
            << packed.sample->key;
    }
    EXPECT_EQ(loaded->pack.frame_count, next);
    samples += static_cast<int64_t>(loaded->pack.samples.size());
    if (loaded->last) {
      ++steps;
      EXPECT_EQ(loaded->after.samples, samples);
      EXPECT_EQ(samples, 16 * steps);
    }
  }
  EXPECT_EQ(samples, 400);
}

TEST(DataLoader, PacksDoNotDependOnTheNumberOfWorkers) {
  SyntheticSource source({100, 30});
  source.dawdles = true;
  for (const auto& plan : {by_samples, by_budget}) {
    const Stage stage(source, plan);
    auto one = stage.loader({.workers = 1}), two = stage.loader({.workers = 2}), eight = stage.loader({.workers = 8});
    const auto expected = hashes(one);
    EXPECT_GT(expected.size(), 20u);
    EXPECT_EQ(hashes(two), expected);
    EXPECT_EQ(hashes(eight), expected);
  }
}

// A process that is killed anywhere resumes from the cursor of the last complete step that it saved.
TEST(DataLoader, ResumesWithTheSamePacksAfterKill) {
  SyntheticSource source({300, 100});
  source.dawdles = true;
  source.broken = [](const DrawnSample& drawn) { return drawn.sample % 17 == 3; };
  source.undecodable = [](const DrawnSample& drawn) { return drawn.sample % 23 == 7; };
  const RandomStream random(3, "kills");
  uint64_t draw = 0;
  for (const auto& plan : {by_samples, by_budget}) {
    Stage stage(source, plan);
    auto whole = stage.loader({.workers = 2, .quarantine = {.share = 1}});
    const auto expected = hashes(whole);
    for (int round = 0; round < 100;) {
      stage.cursor = Composer::start(plan, stage.order);
      std::vector<uint64_t> observed, saved; // saved: up to the cursor
      for (bool ended = false; !ended && round < 100; ++round) {
        observed = saved;
        const int workers = 1 << random.bits(draw++) % 4;
        auto loader = stage.loader({.workers = workers, .quarantine = {.share = 1}});
        const uint64_t packs = random.bits(draw++) % 20;
        for (uint64_t i = 0; i < packs && !ended; ++i) {
          const auto loaded = loader.next();
          ended = !loaded;
          if (ended) break;
          observed.push_back(loaded->pack.hash());
          if (!loaded->last) continue;
          stage.cursor = Cursor::parse(loaded->after.text(), "cursor");
          saved = observed;
        }
        ASSERT_LE(observed.size(), expected.size());
        ASSERT_TRUE(std::equal(observed.begin(), observed.end(), expected.begin()))
            << "round " << round << ", workers " << workers;
      }
    }
  }
}

TEST(DataLoader, RanksSharePacksWithoutOverlap) {
  const SyntheticSource source({100, 30});
  auto plan = by_samples;
  plan.capacity = {20, 150};
  plan.ranks = 3;
  const Stage stage(source, plan);
  std::map<std::string, int> observed;
  std::vector<int64_t> steps;
  for (int64_t rank = 0; rank < 3; ++rank) {
    auto loader = stage.loader({.workers = 2, .rank = rank});
    int64_t step = 0;
    while (const auto loaded = loader.next()) {
      for (const auto& packed : loaded->pack.samples) ++observed[std::to_string(packed.position)];
      if (loaded->last) ++step;
    }
    steps.push_back(step);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{25, 25, 25}));
  EXPECT_EQ(observed.size(), 400u);
  for (const auto& [position, times] : observed) EXPECT_EQ(times, 1) << position;
}

TEST(DataLoader, UndecodableSampleLeavesOtherFramesContiguous) {
  SyntheticSource source({100, 0});
  source.undecodable = [](const DrawnSample& drawn) { return drawn.sample % 4 == 1; };
  const auto log = std::filesystem::path(testing::TempDir()) / "undecodable.jsonl";
  std::filesystem::remove(log);
  const Stage stage(source, by_samples, 1);
  auto loader = stage.loader({.workers = 2, .quarantine_log = log, .quarantine = {.share = 1}});
  size_t samples = 0;
  Cursor last;
  while (auto loaded = loader.next()) {
    int64_t next = 0;
    for (const auto& packed : loaded->pack.samples) {
      EXPECT_EQ(packed.first_frame, next);
      const int64_t number = std::stol(packed.sample->key.substr(2));
      EXPECT_NE(number % 4, 1);
      EXPECT_EQ(loaded->pack.frames[static_cast<size_t>(next * 6)], static_cast<float>(number));
      next += packed.sample->frames;
    }
    samples += loaded->pack.samples.size();
    if (loaded->last) last = loaded->after;
  }
  EXPECT_EQ(samples, 75u);
  EXPECT_EQ(last.broken, 25);
  const auto lines = split(read_file(log), '\n');
  EXPECT_EQ(lines.size(), 26u);
  EXPECT_THAT(lines[0], HasSubstr("half a picture"));
  std::filesystem::remove(log);
}

TEST(DataLoader, TooManyBrokenSamplesEndTheRun) {
  SyntheticSource source({100, 30});
  source.broken = [](const DrawnSample& drawn) { return drawn.sample % 2 == 1; };
  const Stage stage(source);
  auto loader = stage.loader({.workers = 2, .quarantine = {.count = 20, .share = 0.1}});
  try {
    hashes(loader);
    ADD_FAILURE() << "half of the samples are broken";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 4);
    EXPECT_THAT(error.text(), HasSubstr("samples read are broken"));
  }
}

TEST(DataLoader, SmallSetOfBrokenImagesEndsTheRun) {
  SyntheticSource source({60, 0});
  source.undecodable = [](const DrawnSample& drawn) { return drawn.sample % 2 == 1; };
  const Stage stage(source);
  auto loader = stage.loader({.workers = 2});
  try {
    hashes(loader);
    ADD_FAILURE() << "half of the images are broken";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 4);
    EXPECT_THAT(error.text(), HasSubstr("samples read are broken"));
    EXPECT_THAT(error.text(), HasSubstr("half a picture"));
  }
}

TEST(DataLoader, SkipsAStepWithoutDecodableSamples) {
  SyntheticSource source({100, 0});
  source.undecodable = [](const DrawnSample& drawn) { return drawn.position >= 16 && drawn.position < 48; };
  source.has_broken_head = [](const DrawnSample& drawn) { return drawn.position >= 48 && drawn.position < 56; };
  BatchPlan plan = by_samples;
  plan.capacity = {400, 3000}; // a step is one pack
  const Stage stage(source, plan);
  const DataLoaderOptions options{.workers = 2, .quarantine = {.share = 1}};
  auto loader = stage.loader(options);
  std::vector<int64_t> steps;
  std::vector<uint64_t> packs;
  Cursor first;
  while (const auto loaded = loader.next()) {
    EXPECT_FALSE(loaded->pack.samples.empty()) << "step " << loaded->step;
    if (steps.empty()) first = loaded->after;
    steps.push_back(loaded->step);
    packs.push_back(loaded->pack.hash());
  }
  ASSERT_EQ(steps.size(), 23u);
  EXPECT_EQ(steps[0], 0);
  EXPECT_EQ(steps[1], 3);
  EXPECT_EQ(loader.cursor().samples, 400);
  const SampleCounts counts = sample_counts(loader.cursor());
  EXPECT_EQ(counts.read, 408);
  EXPECT_EQ(counts.used, 368);
  EXPECT_EQ(counts.skipped[static_cast<size_t>(SkipReason::media)], 32 + 8) << "decoded too late, and seen before";
  EXPECT_EQ(sample_counts(Cursor::parse(loader.cursor().text(), "cursor")).text(), counts.text());
  // A run that resumes before such steps skips the same ones.
  DataLoader again(source, stage.order, stage.plan, first_fit, options, first);
  EXPECT_EQ(hashes(again), std::vector<uint64_t>(packs.begin() + 1, packs.end()));
  EXPECT_EQ(again.cursor(), loader.cursor());
}

TEST(DataLoader, SkipsEmptyBudgetPacksAndEndsTheirStep) {
  SyntheticSource source({100, 0});
  source.undecodable = [](const DrawnSample& drawn) { return drawn.sample % 3 != 0; };
  BatchPlan plan = by_budget;
  plan.capacity = {14, 100}; // packs of a few samples
  const Stage stage(source, plan);
  auto loader = stage.loader({.workers = 2, .quarantine = {.share = 1}});
  int64_t samples = 0, of_step = 0;
  while (const auto loaded = loader.next()) {
    of_step += std::ssize(loaded->pack.samples);
    samples += std::ssize(loaded->pack.samples);
    EXPECT_TRUE(loaded->last || !loaded->pack.samples.empty());
    if (!loaded->last) continue;
    EXPECT_GT(of_step, 0) << "step " << loaded->step;
    of_step = 0;
  }
  EXPECT_EQ(samples, sample_counts(loader.cursor()).used);
  EXPECT_GT(samples, 0);
}

TEST(DataLoader, ConsecutiveUnusableSamplesEndTheRun) {
  SyntheticSource source({100, 0});
  source.broken = [](const DrawnSample& drawn) { return drawn.sample % 2 == 0; };
  source.undecodable = [](const DrawnSample&) { return true; };
  BatchPlan plan = by_samples;
  plan.samples = 40000;
  const Stage stage(source, plan);
  auto loader = stage.loader({.workers = 2, .quarantine = {.share = 1}});
  try {
    hashes(loader);
    ADD_FAILURE() << "no sample is of use";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 4);
    EXPECT_THAT(error.text(), testing::MatchesRegex("none of 1,1.. samples drawn in a row can be used;(.|\n)*"));
  }
}

TEST(DataLoader, CountsSkippedSamplesByReason) {
  SyntheticSource source({100, 30});
  source.broken = [](const DrawnSample& drawn) { return drawn.source == 0 && drawn.sample == 1; };
  source.leaves_out = [](const DrawnSample& drawn) {
    return drawn.source == 0 && drawn.sample < 4 && drawn.sample > 1;
  };
  source.undecodable = [](const DrawnSample& drawn) { return drawn.source == 0 && drawn.sample > 93; };
  const Stage stage(source, by_samples, 1);
  auto loader = stage.loader({.workers = 2});
  hashes(loader);
  EXPECT_EQ(sample_counts(loader.cursor()).text(),
            "130 samples read, 121 used, 9 skipped (1 text or fields, 6 image or video, 2 text too long)");
}

TEST(DataLoader, FailingDiskEndsTheRunAndIsNoBrokenSample) {
  for (const bool while_decoding : {false, true}) {
    struct Failing : SyntheticSource {
      using SyntheticSource::SyntheticSource;
      void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const override {
        if (decoding_fails && drawn.position == 50) throw ReadError("a.tar", 512, 5, "the disk failed");
        SyntheticSource::decode(drawn, sample, frames);
      }
      bool decoding_fails = false;
    } source({100, 0});
    source.decoding_fails = while_decoding;
    if (!while_decoding) source.fails = [](const DrawnSample& drawn) { return drawn.position == 50; };
    const Stage stage(source);
    auto loader = stage.loader({.workers = 2});
    size_t packs = 0;
    EXPECT_THROW(while (loader.next())++ packs, ReadError);
    EXPECT_GT(packs, 0u) << "what came before it is given";
  }
}

TEST(DataLoader, LimitsItsMemory) {
  const SyntheticSource source({100, 30});
  const Stage stage(source);
  const size_t pack = 40 * 6 * sizeof(float);
  std::atomic<size_t> held{0}, most{0};
  const AllocateHost counted = [&](size_t bytes) {
    held += bytes;
    most = std::max(most.load(), held.load());
    return std::shared_ptr<std::byte>(new std::byte[bytes], [&held, bytes](std::byte* memory) {
      held -= bytes;
      delete[] memory;
    });
  };
  {
    auto loader = stage.loader({.workers = 4, .memory = 3 * pack + 100, .allocate = counted});
    auto first = loader.next(); // while it is held, the next two are prefetched
    while (held < 3 * pack) std::this_thread::yield();
    first.reset();
    EXPECT_GT(hashes(loader).size(), 25u);
  }
  EXPECT_EQ(most, 3 * pack);
  EXPECT_EQ(held, 0u) << "all memory is given back";
  try {
    stage.loader({.memory = 2 * pack - 1});
    ADD_FAILURE() << "less than two packs";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("hold no two packs of 40 frames"));
  }
}

TEST(DataLoader, PackOutlivesItsLoader) {
  const SyntheticSource source({100, 30});
  const Stage stage(source);
  std::optional<LoadedPack> first;
  {
    auto loader = stage.loader({.workers = 2});
    first = loader.next();
  }
  ASSERT_TRUE(first);
  auto again = stage.loader({.workers = 1});
  EXPECT_EQ(first->pack.hash(), again.next()->pack.hash());
}

} // namespace
} // namespace fvlm
