// Reading from a failing disk: failing_disk.c makes the reads of a shard_probe fail.
#include "tar_maker.h"

#include <charconv>
#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::test;
using testing::HasSubstr;

namespace {

class FailingDisk : public testing::Test {
 protected:
  void SetUp() override {
    TarMaker tar;
    tar.file("0.json", "{}");
    tar.file("0.txt", std::string(9000, 'x'));
    tar.file("1.json", "[]");
    write_bytes(folder / "a.tar", tar.end());
    good = run("none 0 0");
    EXPECT_THAT(good, HasSubstr("damages 0 paused 0 ms"));
    calls = calls_made();
    ASSERT_GE(calls, 3) << "reads of the probe";
  }

  // The probe's output; its log follows "log:".
  std::string run(const std::string& rule, const char* file = "a.tar", bool fresh = true, const char* more = "") {
    if (fresh) fs::remove(folder / ".a.tar.fvlm-index");
    auto command = fmt::format(
        "LD_PRELOAD={} ASAN_OPTIONS=verify_asan_link_order=0 FAILING_DISK='{}' FAILING_DISK_FILE={} "
        "FAILING_DISK_COUNT={}/calls {} {} {} {} > {}/out 2> {}/log",
        FVLM_FAILING_DISK, rule, file, at(), FVLM_SHARD_PROBE, (folder / "a.tar").string(), at(), more, at(), at());
    int status = std::system(command.c_str());
    exit_code = WEXITSTATUS(status);
    log = read_file(folder / "log");
    return read_file(folder / "out");
  }

  std::string at() const { return folder.path().string(); }
  long calls_made() const {
    std::string text = read_file(folder / "calls");
    long number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number;
  }

  // The same but for the pauses.
  static std::string read_part(const std::string& out) { return out.substr(0, out.find(" paused")); }

  Folder folder;
  std::string good, log;
  long calls = 0;
  int exit_code = 0;
};

} // namespace

TEST_F(FailingDisk, TransientFailureIsRetried) {
  for (const char* kind : {"eio", "end", "vanish"})
    for (long call = 1; call <= calls; ++call) {
      std::string out = run(fmt::format("{} {} 2", kind, call));
      EXPECT_EQ(exit_code, 0) << kind << " at call " << call << ": " << out;
      EXPECT_EQ(read_part(out), read_part(good)) << kind << " at call " << call;
      EXPECT_THAT(out, testing::ContainsRegex("paused (500|2100) ms")) << kind << " at call " << call;
      EXPECT_THAT(log, HasSubstr("again in 100 ms (try 2 of 5)"));
      EXPECT_THAT(log, HasSubstr("a.tar: could read the file at try"));
    }
}

TEST_F(FailingDisk, PermanentFailureEndsAfterFiveTries) {
  for (long call = 1; call <= calls; ++call) {
    std::string out = run(fmt::format("eio {} -1", call));
    EXPECT_EQ(exit_code, 4) << "call " << call << ": " << out;
    EXPECT_THAT(out, HasSubstr("ReadError errno 5 offset")) << "call " << call;
    EXPECT_THAT(out, HasSubstr("cannot read the file, tried 5 times: Input/output error")) << "call " << call;
    EXPECT_THAT(out, HasSubstr("a.tar at byte")) << "call " << call;
    EXPECT_THAT(log, HasSubstr("again in 6400 ms (try 5 of 5)")) << "call " << call;
    EXPECT_EQ(calls_made(), call + 4);
  }
  EXPECT_THAT(run("vanish 2 -1"), HasSubstr("ReadError errno 116")) << "stale, though it can be opened";
  EXPECT_THAT(run("vanish 2 99"), HasSubstr("ReadError errno 2 offset")) << "a file that stays away";
  EXPECT_THAT(run("end 2 -1"), HasSubstr("the file ends here, and it was 12800 bytes long"));
}

TEST_F(FailingDisk, ShortReadsContinueAndSlowOnesAreLogged) {
  EXPECT_EQ(run("short 1 -1"), good);
  EXPECT_EQ(log, "");
  EXPECT_EQ(run("slow 2 2", "a.tar", true, "slow"), good);
  EXPECT_THAT(log, HasSubstr("the disk is slow"));
}

TEST_F(FailingDisk, UnreadableIndexIsRebuilt) {
  run("none 0 0"); // makes the index
  EXPECT_EQ(run("eio 1 1", ".fvlm-index", false), good) << "at its head";
  std::string out = run("eio 3 1", ".fvlm-index", false);
  EXPECT_EQ(out, good) << "at a record";
  EXPECT_THAT(log, HasSubstr("its index is damaged"));
  EXPECT_EQ(exit_code, 0);
  // A failing disk is never taken for a broken sample, wherever it fails.
  EXPECT_THAT(run("eio 3 -1", ".fvlm-index", false), HasSubstr("ReadError errno 0"));
}
