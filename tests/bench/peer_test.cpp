// Times of a measurement, and the peer that the engine alternates with.
#include "base/error.h"
#include "bench/peer.h"

#include <gmock/gmock.h>

namespace fvlm::bench {
namespace {

// A peer that answers each number of steps, $n, with what this piece of shell prints.
Peer shell(const std::string& answer) {
  return {"sh -c 'while read n; do " + answer + "; done'", {"--model", "nowhere"}};
}

std::string message_of(Peer& peer, int64_t steps) {
  try {
    (void)peer.run(steps);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    return error.what();
  }
  return "no error";
}

TEST(Times, SummaryHasMedianAndMinimum) {
  Times times;
  for (const double wall : {4.0, 1.0, 3.0}) times.add({wall, wall + 10});
  EXPECT_EQ(times.median(), 3);
  times.add({2, 12});
  EXPECT_EQ(times.median(), 2.5);
  EXPECT_EQ(times.min(), 1);
  EXPECT_EQ(times.total(), 10);
  EXPECT_EQ(times.median_cpu(), 12.5);
  EXPECT_EQ(times.json(5).at("samples_per_second"), 2000.0);
}

TEST(Peer, RunsRequestedStepsRoundByRound) {
  Peer peer = shell(R"(case $n in
    2) echo "{\"times_ms\": [1.5, 2.5], \"cpu_ms\": [3, 4], \"loss\": 7}" ;;
    *) echo "{\"times_ms\": [], \"cpu_ms\": [], \"loss\": null}" ;; esac)");
  EXPECT_TRUE(peer.run(0).turns.empty());
  const Peer::Answer answer = peer.run(2);
  ASSERT_EQ(answer.turns.size(), 2u);
  EXPECT_EQ(answer.turns[1].wall, 2.5);
  EXPECT_EQ(answer.turns[1].cpu, 4);
  EXPECT_EQ(answer.loss, 7);
  EXPECT_THAT(message_of(peer, 1), testing::HasSubstr("without the times of 1 steps and a loss: {\"times_ms\": []"));
}

TEST(Peer, RunsStepsForSeconds) {
  Peer peer = shell(R"(case $n in
    "for 2.5") echo "{\"times_ms\": [1, 2, 3], \"cpu_ms\": [1, 2, 3], \"loss\": 7}" ;;
    *) echo "{\"times_ms\": [], \"cpu_ms\": [], \"loss\": null}" ;; esac)");
  const Peer::Answer answer = peer.run_for(2.5);
  EXPECT_EQ(answer.turns.size(), 3u);
  EXPECT_EQ(answer.loss, 7);
  try {
    (void)peer.run_for(1);
    FAIL() << "no step is no answer";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("without the times of steps and a loss"));
  }
}

TEST(Peer, ExitIsAnErrorWithStatus) {
  Peer gone("sh -c 'exit 3'", {});
  EXPECT_EQ(message_of(gone, 1), "the peer ended with exit code 3");
  Peer missing("/nowhere/bench-step 2>/dev/null", {});
  EXPECT_EQ(message_of(missing, 1), "the peer ended with exit code 127");
  Peer killed("sh -c 'kill -9 $$'", {});
  EXPECT_THAT(message_of(killed, 1),
              testing::AnyOf("the peer was killed by signal 9", "the peer ended with exit code 137"));
}

TEST(Peer, QuotesMalformedOutput) {
  Peer peer = shell("echo hello");
  EXPECT_THAT(message_of(peer, 1), testing::HasSubstr("without JSON: hello"));
}

} // namespace
} // namespace fvlm::bench
