// The line that says how far training has got: on a terminal (a pseudo-terminal here) and where there is none.
#include "base/log.h"
#include "base/status_line.h"
#include "base/text.h"
#include "report/progress_line.h"

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
  Moment at(int64_t step) const {
    Moment moment{"align", step, 2000, step * 32, 64000};
    moment.loss = 0.84312;
    moment.data_wait_share = 0.021;
    return moment;
  }
  double now = 100;
  std::function<double()> clock = [this] { return now; };
};

} // namespace

TEST_F(ProgressLineTest, without_a_terminal_a_plain_line_at_most_every_30_seconds) {
  Watched watched(false);
  ProgressLine line(watched.in, clock);
  int lines = 0;
  for (int64_t step = 1; step <= 1200; ++step, now += 0.1) { // two minutes
    line.show(at(step));
    std::string text = watched.read();
    if (text.empty()) continue;
    ++lines;
    EXPECT_EQ(text.find_first_of("\r\x1b"), text.npos) << text;
    EXPECT_EQ(text.back(), '\n');
    if (step == 301) {
      EXPECT_EQ(text, "align  step 301 of 2,000  loss 0.8431  320 samples/s  data wait 2 %  2 min 50 s left\n");
    }
  }
  EXPECT_EQ(lines, 4) << "at 0, 30, 60 and 90 seconds";
}

TEST_F(ProgressLineTest, a_terminal_has_one_line_that_is_written_over_and_taken_away) {
  Watched watched(true);
  {
    ProgressLine line(watched.in, clock);
    line.show(at(1));
    EXPECT_EQ(watched.read(), "\ralign  step 1 of 2,000  loss 0.8431  data wait 2 %\x1b[K") << "no rate is known yet";
    now += 0.01;
    line.show(at(2));
    EXPECT_EQ(watched.read(), "") << "not more often than eyes can follow";
  }
  EXPECT_EQ(watched.read(), "\r\x1b[K");
}

TEST_F(ProgressLineTest, a_narrow_terminal_keeps_what_matters_most) {
  for (unsigned short columns : {30, 45, 60, 75, 90}) {
    Watched watched(true, columns);
    ProgressLine line(watched.in, clock);
    line.show(at(1));
    EXPECT_LT(display_width(watched.read()) - 1, columns);
  }
  Watched narrow(true, 30);
  ProgressLine line(narrow.in, clock);
  line.show(at(1));
  EXPECT_EQ(narrow.read(), "\ralign  step 1 of 2,000\x1b[K");
}

TEST_F(ProgressLineTest, colours_only_where_they_are_wanted) {
  Watched plain(true), coloured(true), dumb(true);
  ProgressLine(plain.in, clock).show(at(1));
  EXPECT_THAT(plain.read(), Not(HasSubstr("\x1b[1m")));
  unsetenv("NO_COLOR");
  ProgressLine(coloured.in, clock).show(at(1));
  EXPECT_THAT(coloured.read(), HasSubstr("\x1b[1malign\x1b[0m"));
  setenv("TERM", "dumb", 1);
  ProgressLine(dumb.in, clock).show(at(1));
  EXPECT_THAT(dumb.read(), testing::MatchesRegex("align  step 1 of 2,000[^\r\x1b]*\n")) << "cannot take a line back";
}

TEST_F(ProgressLineTest, the_log_writes_above_the_line) {
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
  EXPECT_THAT(watched.read(), testing::EndsWith("data wait 2 %\x1b[K\r\x1b[Kwarning: the disk is full\n"));
}

TEST(SmoothedRate, follows_a_change_and_forgets_the_start) {
  SmoothedRate rate;
  EXPECT_FALSE(rate.value());
  for (int step = 0; step < 1000; ++step) rate.add(32, 0.1);
  EXPECT_NEAR(*rate.value(), 320, 1e-6);
  for (int step = 0; step < 300; ++step) rate.add(32, 0.2); // a minute
  EXPECT_NEAR(*rate.value(), 160, 10);
  rate.add(32, 0);
  EXPECT_NEAR(*rate.value(), 160, 10);
}

TEST_F(ProgressLineTest, another_stage_or_a_resume_begins_the_rate_anew) {
  Watched watched(false);
  ProgressLine line(watched.in, clock);
  line.show(at(1));
  watched.read();
  Moment next{"instruct", 1, std::nullopt, 32, 48000};
  line.show(next);
  EXPECT_EQ(watched.read(), "instruct  step 1\n");
  now += 31;
  next.step = 101, next.samples = 32 + 3100;
  line.show(next);
  EXPECT_EQ(watched.read(), "instruct  step 101  100 samples/s  7 min 29 s left\n");
  now += 31;
  next.step = 50, next.samples = 1600;
  line.show(next);
  EXPECT_EQ(watched.read(), "instruct  step 50\n") << "rolled back";
}
