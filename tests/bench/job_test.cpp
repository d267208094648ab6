// The data of measured steps: random, others in every sample and pack, and the same in every run.
#include "bench/job.h"
#include "plugin/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace fvlm::bench {
namespace {

class SyntheticData : public testing::Test {
 protected:
  Job job(const std::string& name, const std::string& reference = "") {
    return job_of(configuration_named(name), TrainingSetting(), 2, 24, reference, models_, registry_, at::kCPU, 3);
  }
  Registry registry_{RegistryOptions{}};
  SyntheticModels models_;
};

std::string text_of(const SampleText& text) {
  std::string all;
  for (const TokenId id : text.ids) all += std::to_string(id) + " ";
  return all;
}

// Every frame by itself.
std::multiset<std::string> frames_of(const Job& job) {
  std::multiset<std::string> frames;
  for (const train::SyntheticPack& pack : job.packs) {
    const auto pixels = pack.host.pixels;
    const size_t size = pixels.size() / static_cast<size_t>(pack.host.frame_count);
    for (size_t at = 0; at < pixels.size(); at += size)
      frames.emplace(reinterpret_cast<const char*>(pixels.data()) + at, size);
  }
  return frames;
}

template <class Value>
size_t distinct(const std::multiset<Value>& all) {
  return std::set(all.begin(), all.end()).size();
}

TEST_F(SyntheticData, DiffersBetweenSamplesAndPacks) {
  const Job made = job("tiny:2");
  ASSERT_EQ(made.packs.size(), 3u);
  std::multiset<std::string> texts;
  std::multiset<int64_t> positions;
  for (const train::SyntheticPack& pack : made.packs)
    for (const PackedSample& packed : pack.host.samples) {
      texts.insert(text_of(packed.sample->texts.front()));
      positions.insert(packed.position);
    }
  EXPECT_EQ(texts.size(), 6u);
  EXPECT_EQ(distinct(texts), 6u);
  EXPECT_EQ(positions, (std::multiset<int64_t>{0, 1, 2, 3, 4, 5}));
  const auto frames = frames_of(made);
  EXPECT_EQ(frames.size(), 12u);
  EXPECT_EQ(distinct(frames), 12u);
  for (const std::string& frame : frames)
    EXPECT_EQ(std::set<char>(frame.begin(), frame.end()).size(), 256u) << "every value of a byte occurs";
  EXPECT_EQ(frames_of(job("tiny:2")), frames) << "another run has the same";
}

TEST_F(SyntheticData, AnswersOfAPairDiffer) {
  std::multiset<std::string> texts;
  for (const train::SyntheticPack& pack : job("tiny:2", "live").packs)
    for (const auto& sample : pack.samples)
      for (const SampleText& text : sample->texts) texts.insert(text_of(text));
  EXPECT_EQ(texts.size(), 12u);
  EXPECT_EQ(distinct(texts), 12u);
}

TEST_F(SyntheticData, QuestionsDifferAndTheirTeacherReadsTheSameAnswer) {
  std::multiset<std::string> texts, bytes;
  for (const train::SyntheticPack& pack : job("tiny-latentwire:2").packs)
    for (const auto& sample : pack.samples) {
      texts.insert(text_of(sample->texts.front()));
      bytes.emplace(sample->bytes.begin(), sample->bytes.end());
      const auto &own = sample->texts.front().ids, &teacher = sample->teacher_texts.front().ids;
      EXPECT_TRUE(std::equal(own.end() - 6, own.end(), teacher.end() - 6));
    }
  EXPECT_EQ(distinct(texts), 6u);
  EXPECT_EQ(distinct(bytes), 6u);
}

} // namespace
} // namespace fvlm::bench
