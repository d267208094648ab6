// The progress line of training: on a terminal (here a pseudo-terminal) and without one.
#include "base/log.h"
#include "base/status_line.h"
#include "base/text.h"
#include "report/progress_line.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

using namespace fvlm;
using namespace fvlm::report;
using testing::HasSubstr;
using testing::Not;

namespace {

// What goes into `in` comes out of read().
class Watched {
 public:
  explicit Watched(bool terminal, unsigned short columns = 120) {
    if (terminal) {
      out = posix_openpt(O_RDWR | O_NOCTTY);
      EXPECT_EQ(grantpt(out), 0);
      EXPECT_EQ(unlockpt(out), 0);
      in = open(ptsname(out), O_RDWR | O_NOCTTY);
      winsize size{24, columns, 0, 0};
      ioctl(in, TIOCSWINSZ, &size);
      termios mode{};
      tcgetattr(in, &mode);
      mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);
      tcsetattr(in, TCSANOW, &mode);
    } else {
      int ends[2];
      EXPECT_EQ(pipe(ends), 0);
      out = ends[0], in = ends[1];
    }
    fcntl(out, F_SETFL, O_NONBLOCK);
  }
  ~Watched() {
    close(in);
    close(out);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  std::string read() const {
    std::string all;
    char part[4096];
    for (ssize_t size; (size = ::read(out, part, sizeof part)) > 0;) all.append(part, static_cast<size_t>(size));
    return all;
  }
  int in = -1, out = -1;
};

class ProgressLineTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("NO_COLOR", "1", 1);
    setenv("TERM", "xterm", 1);
  }
  // A tenth of a second a step, of which a fiftieth was spent waiting; the stage is the second half of a run.
  static TrainingProgress at(int64_t step) {
    TrainingProgress moment{"align", step, 2000, step * 32, 64000};
    moment.samples_before = 64000;
    moment.run_samples = 128000;
    moment.tokens = step * 32 * 25;
    moment.seconds = 0.1 * static_cast<double>(step);
    moment.waited = 0.002 * static_cast<double>(step);
    moment.loss = 0.84312;
    moment.lr = 1.94e-3;
    return moment;
  }
  double now = 100;
  std::function<double()> clock = [this] { return now; };
};

} // namespace

TEST_F(ProgressLineTest, PrintsPlainLinesEverLessOftenWithoutATerminal) {
  Watched watched(false);
  ProgressLine line(watched.in, clock);
  std::vector<int64_t> written;
  for (int64_t step = 0; step <= 960; ++step, now += 0.125) { // two minutes
    line.show(at(step));
    std::string text = watched.read();
    if (text.empty()) continue;
    written.push_back(step);
    EXPECT_EQ(text.find_first_of("\r\x1b"), text.npos) << text;
    EXPECT_EQ(text.back(), '\n');
    if (step == 121) {
      EXPECT_EQ(text,
                "align 121/2,000 (overall 53 %)  loss 0.8431  lr 1.9e-3  dt 100 ms  320 samples/s  8.0 k tokens/s  "
                "data wait 2 %  eta 3 min 08 s\n");
    }
  }
  EXPECT_EQ(written, (std::vector<int64_t>{1, 41, 121, 281, 521, 761}))
      << "after the first step, and 5, 15, 35, 65 and 95 seconds later";
}

TEST_F(ProgressLineTest, TerminalHasOneOverwrittenLine) {
  Watched watched(true);
  {
    ProgressLine line(watched.in, clock);
    line.show(at(1));
    EXPECT_EQ(watched.read(), "\ralign 1/2,000 (overall 50 %)  loss 0.8431  lr 1.9e-3\x1b[K") << "no rate is known yet";
    line.show(at(2));
    EXPECT_EQ(watched.read(), "") << "not more often than eyes can follow";
  }
  EXPECT_EQ(watched.read(), "\r\x1b[K");
}

TEST_F(ProgressLineTest, ShowsDataWaitFromOnePercent) {
  for (const bool waits : {false, true}) {
    Watched watched(false);
    ProgressLine line(watched.in, clock);
    TrainingProgress begin = at(0), end = at(10);
    end.waited = waits ? 0.5 * end.seconds : 0.001 * end.seconds;
    line.show(begin);
    line.show(end);
    EXPECT_EQ(watched.read().find("data wait 50 %") != std::string::npos, waits);
  }
}

TEST_F(ProgressLineTest, ShowsWorkBetweenStepsOnTerminalsOnly) {
  Watched terminal(true), pipe(false);
  ProgressLine(terminal.in, clock).note("align: evaluating questions");
  ProgressLine(pipe.in, clock).note("align: evaluating questions");
  EXPECT_THAT(terminal.read(), HasSubstr("\ralign: evaluating questions\x1b[K"));
  EXPECT_EQ(pipe.read(), "");
}

TEST_F(ProgressLineTest, NarrowTerminalKeepsTheMostImportantParts) {
  for (unsigned short columns : {30, 45, 60, 75, 90}) {
    Watched watched(true, columns);
    ProgressLine line(watched.in, clock);
    line.show(at(1));
    EXPECT_LT(display_width(watched.read()) - 1, columns);
  }
  Watched narrow(true, 32);
  ProgressLine line(narrow.in, clock);
  line.show(at(1));
  EXPECT_EQ(narrow.read(), "\ralign 1/2,000 (overall 50 %)\x1b[K");
}

TEST_F(ProgressLineTest, ColoursOnlyWhereRequested) {
  Watched plain(true), coloured(true), dumb(true);
  ProgressLine(plain.in, clock).show(at(1));
  EXPECT_THAT(plain.read(), Not(HasSubstr("\x1b[1m")));
  unsetenv("NO_COLOR");
  ProgressLine(coloured.in, clock).show(at(1));
  EXPECT_THAT(coloured.read(), HasSubstr("\x1b[1malign\x1b[0m"));
  setenv("TERM", "dumb", 1);
  ProgressLine line(dumb.in, clock);
  line.show(at(0));
  line.show(at(1));
  EXPECT_THAT(dumb.read(), testing::MatchesRegex("align 1/2,000 [^\r\x1b]*\n")) << "cannot take a line back";
}

TEST_F(ProgressLineTest, LogWritesAboveTheLine) {
  Watched watched(true);
  int standard_error = dup(STDERR_FILENO);
  dup2(watched.in, STDERR_FILENO);
  {
    ProgressLine line(STDERR_FILENO, clock);
    line.show(at(1));
    log_warning("the disk is full");
  }
  dup2(standard_error, STDERR_FILENO);
  close(standard_error);
  EXPECT_THAT(watched.read(), testing::EndsWith("lr 1.9e-3\x1b[K\r\x1b[Kwarning: the disk is full\n"));
}

TEST(SmoothedRate, FollowsAChangeAndForgetsTheStart) {
  SmoothedRate rate;
  EXPECT_FALSE(rate.value());
  for (int step = 0; step < 1000; ++step) rate.add(32, 0.1);
  EXPECT_NEAR(*rate.value(), 320, 1e-6);
  for (int step = 0; step < 300; ++step) rate.add(32, 0.2); // a minute
  EXPECT_NEAR(*rate.value(), 160, 10);
  rate.add(32, 0);
  EXPECT_NEAR(*rate.value(), 160, 10);
}

TEST_F(ProgressLineTest, AnotherStageOrAResumeRestartsRates) {
  Watched watched(false);
  ProgressLine line(watched.in, clock);
  line.show(at(0));
  line.show(at(1));
  EXPECT_THAT(watched.read(), HasSubstr("320 samples/s"));
  TrainingProgress next{"instruct", 0, std::nullopt, 0, 48000};
  line.show(next);
  EXPECT_EQ(watched.read(), "") << "nothing is known yet";
  next.step = 100, next.samples = 3100, next.seconds = 31;
  line.show(next);
  EXPECT_EQ(watched.read(), "instruct 100  dt 310 ms  100 samples/s  eta 7 min 29 s\n");
  now += 31;
  next.step = 50, next.samples = 1600;
  line.show(next);
  EXPECT_EQ(watched.read(), "") << "rolled back";
  next.step = 51, next.samples = 1616, next.seconds += 2;
  line.show(next);
  EXPECT_EQ(watched.read(), "instruct 51  dt 2.00 s  8.00 samples/s  eta 1 h 37 min\n");
}
