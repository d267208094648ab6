#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "data/stream/quarantine.h"

#include <gtest/gtest.h>

#include <fstream>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fvlm {
namespace {

using testing::HasSubstr;

class QuarantineLog : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "quarantine." + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    log_ = folder_ / "broken.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> all;
    for (const auto& line : split(read_file(log_), '\n'))
      if (!line.empty()) all.push_back(parse_json(line, "line"));
    return all;
  }
  std::filesystem::path folder_, log_;
};

TEST_F(QuarantineLog, WritesSampleAndReasonPerLine) {
  Quarantine quarantine(log_, {});
  quarantine.add({12, "a.tar", "clip-7", "no 'assistant'"});
  quarantine.add({40, "b.tar", "bytes \xff", "not a\nJPEG"});
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_EQ(
      lines()[0],
      (nlohmann::json{
          {"position", 12}, {"shard", "a.tar"}, {"key", "clip-7"}, {"reason", "no 'assistant'"}, {"broken", true}}));
  EXPECT_EQ(lines()[1]["reason"], "not a\nJPEG");
}

TEST_F(QuarantineLog, DoesNotRepeatSamplesAfterResume) {
  Quarantine(log_, {}).add({12, "a.tar", "clip-7", "no 'assistant'"});
  std::ofstream(log_, std::ios::app) << "{\"position\":13,\"half a li";
  Quarantine again(log_, {});
  again.add({12, "a.tar", "clip-7", "no 'assistant'"});
  again.add({13, "a.tar", "clip-8", "no 'assistant'"});
  const auto text = split(read_file(log_), '\n');
  ASSERT_EQ(text.size(), 4u) << read_file(log_); // the last ends in a line's end
  EXPECT_EQ(parse_json(text[2], "line")["key"], "clip-8");
}

TEST_F(QuarantineLog, ProcessesThatWriteTogetherKeepEachOthersLines) {
  constexpr int processes = 8, samples = 1500;
  std::vector<pid_t> children;
  for (int process = 0; process < processes; ++process) {
    const pid_t child = fork();
    if (child == 0) {
      Quarantine quarantine(log_, {});
      for (int i = 0; i < samples; ++i)
        quarantine.add({i, "a.tar", fmt::format("clip-{}-{}", process, i), "too long", false});
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(lines().size(), static_cast<size_t>(processes * samples));
}

TEST_F(QuarantineLog, WarnsOnceInAllEpochs) {
  testing::internal::CaptureStderr();
  for (int64_t loader = 0; loader < 2; ++loader) {
    Quarantine quarantine(log_, {});
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      quarantine.add({100 * epoch + 12, "a.tar", "clip-7", "no 'assistant'"});
      quarantine.add({100 * epoch + 13, "a.tar", "clip-8", "no 'assistant'"});
    }
  }
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines().size(), 2u);
  size_t warnings = 0;
  for (size_t at = reported.find("clip-7"); at != std::string::npos; at = reported.find("clip-7", at + 1)) ++warnings;
  EXPECT_EQ(warnings, 1u) << reported;
}

TEST(QuarantineLimits, ProtectSmallSetsToo) {
  const plan::Quarantine limits;
  EXPECT_FALSE(limits.exceeded_by(49, 49)) << "too few to judge by";
  EXPECT_FALSE(limits.exceeded_by(5, 50));
  EXPECT_TRUE(limits.exceeded_by(6, 50));
  EXPECT_FALSE(limits.exceeded_by(900, 10000)) << "few, and less than a tenth";
  EXPECT_FALSE(limits.exceeded_by(1001, 200000));
  EXPECT_TRUE(limits.exceeded_by(1001, 100000));
  const plan::Quarantine lenient{.share = 0.3};
  EXPECT_FALSE(lenient.exceeded_by(30, 100));
  EXPECT_TRUE(lenient.exceeded_by(31, 100));
  EXPECT_FALSE((plan::Quarantine{.share = 1}).exceeded_by(5000, 5000));
}

TEST_F(QuarantineLog, EndsTheRunWhenBothLimitsArePassed) {
  Quarantine quarantine(log_, {.count = 2, .share = 0.1});
  for (int i = 0; i < 12; ++i) quarantine.add({i, "a.tar", "clip-" + std::to_string(i), "cut short"});
  EXPECT_NO_THROW(quarantine.check(2, 2));    // few
  EXPECT_NO_THROW(quarantine.check(10, 100)); // a small share
  try {
    quarantine.check(11, 100);
    ADD_FAILURE() << "11 of 100 were let through";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 4);
    EXPECT_THAT(error.text(), HasSubstr("11 of 100 samples read are broken"));
    EXPECT_THAT(error.text(), HasSubstr("a.tar, sample 'clip-11': cut short"));
    EXPECT_THAT(error.text(), testing::Not(HasSubstr("clip-1:")));
    EXPECT_THAT(error.text(), HasSubstr(log_.string()));
  }
}

} // namespace
} // namespace fvlm
