// metrics.jsonl and the events file: their content, also after a kill or on a failing disk.
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/scratch_folder.h"
#include "base/text.h"
#include "failing_writes.h"
#include "report/event_record.h"
#include "report/metrics_log.h"

#include <fmt/format.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <limits>

using namespace fvlm;
using namespace fvlm::report;
using fvlm::test::disk;
using testing::HasSubstr;
namespace fs = std::filesystem;

namespace {

Record step(int64_t number) {
  Record record{"step",
                "align",
                number,
                {},
                {{"loss", 1.0 / static_cast<double>(number)}, {"samples", 32.0 * static_cast<double>(number)}}};
  if (number % 3 == 0) record.values.emplace_back("lr.connector", 2e-3);
  return record;
}

fs::path events_of(const fs::path& run) {
  for (const auto& entry : fs::directory_iterator(run))
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) return entry.path();
  ADD_FAILURE() << "no events file in " << run;
  return {};
}

// An events file with every wall time (the first field of each event) set to zero, to compare runs.
std::string timeless(std::string bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t size = 0;
    if (bytes.size() - at < 16) return out + "<torn>";
    std::memcpy(&size, bytes.data() + at, 8);
    if (bytes.size() - at < size + 16) return out + "<torn>";
    std::string event = bytes.substr(at + 12, size);
    event.replace(1, 8, 8, '\0');
    out += event;
    at += 16 + size;
  }
  return out;
}

struct Content {
  std::string metrics, events;
};
Content content(const fs::path& run) {
  return {read_file(run / "metrics.jsonl"), timeless(read_file(events_of(run)))};
}

nlohmann::json line(const Record& record) {
  return parse_json(json_line(record), "the line");
}

template <class Body>
std::string log_of(Body body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

} // namespace

TEST(JsonLine, HoldsKindStageStepWordsAndValuesInOrder) {
  Record record{"evaluation",
                "instruct",
                1500,
                {{"set", "questions"}, {"mode", "coarse_fine"}, {"measure", "choice"}},
                {{"accuracy", 0.875}, {"samples", 960}}};
  EXPECT_EQ(json_line(record),
            R"({"kind":"evaluation","stage":"instruct","step":1500,"set":"questions","mode":"coarse_fine",)"
            R"("measure":"choice","accuracy":0.875,"samples":960})"
            "\n");
}

TEST(JsonLine, NumbersRoundTrip) {
  for (double value :
       {0.1, 1.0 / 3, 1e22, 1e23, 123456789012345680.0, 9007199254740993.0, 5e-324, DBL_MIN, DBL_MAX, -DBL_MAX,
        1.7976931348623155e308, 0.30000000000000004, -0.0, 0.0, 1e-5, 4096.0, 18446744073709552000.0}) {
    double back = line({"step", "s", 1, {}, {{"x", value}}}).at("x").get<double>();
    EXPECT_EQ(std::bit_cast<uint64_t>(back), std::bit_cast<uint64_t>(value))
        << json_line({"step", "s", 1, {}, {{"x", value}}});
  }
  EXPECT_THAT(json_line({"step", "s", 1, {}, {{"x", 0.1}}}), HasSubstr("\"x\":0.1}")) << "no digit too many";
}

TEST(JsonLine, NonFiniteIsNull) {
  double infinite = std::numeric_limits<double>::infinity();
  for (double value : {infinite, -infinite, std::nan("")})
    EXPECT_TRUE(line({"step", "s", 1, {}, {{"x", value}}}).at("x").is_null());
}

TEST(JsonLine, EscapesNamesAndWords) {
  auto read = line({"event", "a\"b\\", 1, {{"text", "line\nbreak \x01 </script> \xff end"}}, {{"lr.\"odd\"\t", 1}}});
  EXPECT_EQ(read.at("stage"), "a\"b\\");
  EXPECT_EQ(read.at("text"), "line\nbreak \x01 </script> \xEF\xBF\xBD end") << "bytes that are no UTF-8 become U+FFFD";
  EXPECT_EQ(read.at("lr.\"odd\"\t"), 1);
}

TEST(EventRecord, ChecksumIsCrc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu) << "RFC 3720, B.4";
}

TEST(MetricsLog, StartsAfreshAtZeroAndContinuesTheSameEventsFile) {
  ScratchFolder run;
  Position first;
  {
    MetricsLog log(run.path(), {});
    log.write(step(1));
    first = log.flush();
  }
  fs::path events = events_of(run.path());
  EXPECT_EQ(first.metrics, fs::file_size(run / "metrics.jsonl"));
  EXPECT_EQ(first.events, fs::file_size(events));
  {
    MetricsLog log(run.path(), first);
    log.write(step(2));
    log.flush();
  }
  EXPECT_EQ(events_of(run.path()), events);
  EXPECT_EQ(split(read_file(run / "metrics.jsonl"), '\n').size(), 3u) << "two lines and the end of the last";
  MetricsLog anew(run.path(), {});
  EXPECT_EQ(events_of(run.path()), events);
  EXPECT_EQ(anew.flush().metrics, 0u);
  EXPECT_EQ(fs::file_size(run / "metrics.jsonl"), 0u);
}

// A run of 12 lines with a checkpoint after the fifth, killed at every byte that it may have written behind it.
TEST(MetricsLog, KilledRunResumesToTheFilesOfAnUninterruptedOne) {
  ScratchFolder whole, killed;
  Position checkpoint;
  for (const auto& run : {whole.path(), killed.path()}) {
    MetricsLog log(run, {});
    for (int64_t number = 1; number <= 5; ++number) log.write(step(number));
    checkpoint = log.flush();
    for (int64_t number = 6; number <= 12; ++number) log.write(step(number));
    log.flush();
  }
  Content expected = content(whole.path());
  std::string metrics = read_file(killed / "metrics.jsonl"), events = read_file(events_of(killed.path()));
  int cuts = 0;
  for (size_t beyond = 0; beyond <= events.size() - checkpoint.events; ++beyond) {
    size_t lines = std::min(metrics.size(), checkpoint.metrics + beyond);
    write_file_atomic(killed / "metrics.jsonl", metrics.substr(0, lines));
    write_file_atomic(events_of(killed.path()), events.substr(0, checkpoint.events + beyond));
    MetricsLog log(killed.path(), checkpoint);
    for (int64_t number = 6; number <= 12; ++number) log.write(step(number));
    log.flush();
    Content found = content(killed.path());
    ASSERT_EQ(found.metrics, expected.metrics) << beyond << " bytes behind the checkpoint";
    ASSERT_EQ(found.events, expected.events) << beyond << " bytes behind the checkpoint";
    ++cuts;
  }
  EXPECT_GT(cuts, 200);
}

// Logs that were deleted, truncated or edited between a checkpoint and its resume.
class LogsOfOthers : public testing::Test {
 protected:
  LogsOfOthers() {
    MetricsLog log(run_.path(), {});
    log.write(step(1));
    log.write(step(2));
    at_ = log.flush();
    lines_ = read_file(run_ / "metrics.jsonl");
    events_ = events_of(run_.path());
  }

  // Resumes at the checkpoint and writes a third step; what the log warned of.
  std::string resume() {
    return log_of([&] {
      MetricsLog log(run_.path(), at_);
      log.write(step(3));
      after_ = log.flush();
    });
  }

  fs::path newest_events() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(run_.path()))
      if (entry.path().filename().string().starts_with("events.out.tfevents.")) all.push_back(entry.path());
    return *std::max_element(all.begin(), all.end());
  }

  ScratchFolder run_;
  Position at_, after_;
  std::string lines_;
  fs::path events_;
};

TEST_F(LogsOfOthers, MissingEventsBeginANewFile) {
  fs::remove(events_);
  EXPECT_THAT(resume(), HasSubstr("the events file that the run wrote is missing"));
  EXPECT_EQ(fs::file_size(newest_events()), after_.events);
  EXPECT_EQ(read_file(run_ / "metrics.jsonl"), lines_ + json_line(step(3)));
  EXPECT_EQ(log_of([&] { MetricsLog again(run_.path(), after_); }), "") << "the new file is the run's own from here on";
}

TEST_F(LogsOfOthers, ShortenedEventsBeginANewFileBesideTheOld) {
  fs::resize_file(events_, at_.events - 3);
  EXPECT_THAT(resume(), HasSubstr("is not as it was when the checkpoint was written"));
  EXPECT_EQ(fs::file_size(events_), at_.events - 3) << "left as it is";
  EXPECT_NE(newest_events(), events_);
  EXPECT_EQ(fs::file_size(newest_events()), after_.events);
}

TEST_F(LogsOfOthers, AnotherEventsFileOfTheSameSizeIsNotCut) {
  const std::string junk(at_.events + 40, 'x');
  write_file_atomic(events_, junk);
  resume();
  EXPECT_EQ(read_file(events_), junk);
  EXPECT_EQ(fs::file_size(newest_events()), after_.events);
}

TEST_F(LogsOfOthers, AnOlderEventsFileIsPassedOver) {
  write_file_atomic(run_ / "events.out.tfevents.1.fvlm-engine", "");
  EXPECT_EQ(resume(), "");
  EXPECT_EQ(fs::file_size(events_), after_.events);
}

TEST_F(LogsOfOthers, APipeOrALinkInPlaceOfEventsIsPassedOver) {
  const std::string kept = read_file(events_);
  fs::remove(events_);
  ASSERT_EQ(mkfifo(events_.c_str(), 0600), 0); // opening it would wait for a writer
  EXPECT_THAT(resume(), HasSubstr("the events file that the run wrote is missing"));
  EXPECT_EQ(fs::file_size(newest_events()), after_.events);
  fs::remove(newest_events());
  fs::remove(events_);
  write_file_atomic(run_ / "elsewhere", kept);
  fs::create_symlink(run_ / "elsewhere", events_);
  EXPECT_THAT(resume(), HasSubstr("the events file that the run wrote is missing"));
  EXPECT_EQ(read_file(run_ / "elsewhere"), kept);
}

TEST_F(LogsOfOthers, ShortenedMetricsKeepTheirWholeLines) {
  write_file_atomic(run_ / "metrics.jsonl", lines_.substr(0, lines_.size() - 1));
  EXPECT_THAT(resume(), HasSubstr(fmt::format("metrics.jsonl: 1 of the {} bytes", at_.metrics)));
  EXPECT_EQ(read_file(run_ / "metrics.jsonl"), json_line(step(1)) + json_line(step(3)));
  EXPECT_EQ(after_.metrics, fs::file_size(run_ / "metrics.jsonl"));
}

TEST_F(LogsOfOthers, MissingMetricsBeginAnew) {
  fs::remove(run_ / "metrics.jsonl");
  EXPECT_THAT(resume(), HasSubstr("a new log begins"));
  EXPECT_EQ(read_file(run_ / "metrics.jsonl"), json_line(step(3)));
}

TEST_F(LogsOfOthers, AnotherMetricsFileIsKeptAside) {
  const std::string junk(at_.metrics + 5, 'x');
  for (const char* aside : {"metrics.jsonl.aside", "metrics.jsonl.aside-2"}) {
    write_file_atomic(run_ / "metrics.jsonl", junk);
    EXPECT_THAT(resume(), HasSubstr("ends no line"));
    EXPECT_EQ(read_file(run_ / aside), junk);
    EXPECT_EQ(read_file(run_ / "metrics.jsonl"), json_line(step(3)));
  }
}

TEST(MetricsLog, FullDiskIsReportedOnceRetriedAndLeavesNoHalfLine) {
  ScratchFolder whole, run;
  Position calm;
  {
    MetricsLog log(whole.path(), {});
    for (int64_t number = 1; number <= 9; ++number) log.write(step(number));
    calm = log.flush();
  }
  MetricsLog log(run.path(), {});
  for (int64_t number = 1; number <= 3; ++number) log.write(step(number));
  Position before = log.flush();
  std::string warned = log_of([&] {
    disk = {.write_error = ENOSPC, .room = 20};
    for (int64_t number = 4; number <= 6; ++number) log.write(step(number));
    EXPECT_EQ(log.flush(), before) << "a checkpoint made now counts what is on disk";
  });
  EXPECT_GE(disk.writes_refused, 6) << "tried with each line";
  EXPECT_EQ(fs::file_size(run / "metrics.jsonl"), before.metrics) << "half a line is cut off";
  EXPECT_EQ(fs::file_size(events_of(run.path())), before.events);
  EXPECT_THAT(warned, HasSubstr("metrics.jsonl: cannot write the file: No space left on device"));
  EXPECT_EQ(split(warned, '\n').size(), 5u) << "two files, two lines each: " << warned;
  std::string again = log_of([&] {
    disk = {};
    for (int64_t number = 7; number <= 9; ++number) log.write(step(number));
  });
  EXPECT_THAT(again, HasSubstr("metrics.jsonl: written again, nothing is lost"));
  EXPECT_EQ(log.flush(), calm);
  EXPECT_EQ(content(run.path()).metrics, content(whole.path()).metrics);
  EXPECT_EQ(content(run.path()).events, content(whole.path()).events);
}

TEST(MetricsLog, RewritesUnflushedRecords) {
  ScratchFolder run;
  MetricsLog log(run.path(), {});
  log.write(step(1));
  Position before = log.flush();
  std::string warned = log_of([&] {
    disk = {.sync_error = EIO};
    log.write(step(2));
    EXPECT_EQ(log.flush(), before);
    EXPECT_EQ(log.flush(), before);
    // The page that could not be flushed may be dropped: as if the disk had kept nothing of it.
    fs::resize_file(run / "metrics.jsonl", before.metrics);
    disk = {};
    Position after = log.flush();
    EXPECT_EQ(after.metrics, fs::file_size(run / "metrics.jsonl"));
    EXPECT_GT(after.metrics, before.metrics);
  });
  EXPECT_EQ(read_file(run / "metrics.jsonl"), json_line(step(1)) + json_line(step(2)));
  EXPECT_THAT(warned, HasSubstr("cannot flush the file: Input/output error"));
  EXPECT_THAT(warned, HasSubstr("written again, nothing is lost"));
}

TEST(MetricsLog, CountsRecordsThatMemoryCannotHold) {
  ScratchFolder run;
  MetricsLog log(run.path(), {});
  Position before = log.flush();
  std::string warned = log_of([&] {
    disk = {.write_error = EIO};
    for (int number = 0; number < 70; ++number)
      log.write({"event", "align", number, {{"what", "test"}, {"text", std::string(1 << 20, 'x')}}, {}});
    EXPECT_EQ(log.flush(), before);
    disk = {};
    log.write(step(71));
    log.write(step(72));
    log.flush();
  });
  EXPECT_THAT(warned, HasSubstr("written again; 7 records found no room in memory and are lost"));
  auto lines = split(read_file(run / "metrics.jsonl"), '\n');
  ASSERT_EQ(lines.size(), 63u + 2 + 1) << "which fitted, what came after, and the end of the last line";
  EXPECT_EQ(lines[64] + "\n", json_line(step(72)));
}
