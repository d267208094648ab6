// What is refused of ranks that do not fit together.
#include "base/error.h"
#include "train/rank_view.h"

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<RankView> three() {
  RankView view{"node1", "NVIDIA H100 at 1B", {"NCCL: 2.27.5", "fvlm-engine: 1", "the GPU: NVIDIA H100, sm_90"}, 1000};
  std::vector<RankView> views{view, view, view};
  views[1].device = "NVIDIA H100 at 43"; // each has its own
  views[2].host = "node2";
  views[2].clock = 1059;
  return views;
}

std::string refused(const std::vector<RankView>& views) {
  try {
    require_equal(views);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.text();
  }
  return "";
}

TEST(RankView, HostsGpusAndClocksMayDifferALittle) {
  EXPECT_EQ(refused(three()), "");
  EXPECT_DOUBLE_EQ(clock_difference(three()), 59);
}

TEST(RankView, NamesEveryRankThatDiffersAndInWhat) {
  auto views = three();
  views[1].lines[0] = "NCCL: 2.26.2";
  views[2].lines.push_back("the plugin other: 1, library 0123");
  EXPECT_THAT(refused(views),
              AllOf(HasSubstr("rank 1 (node1) is not set up as rank 0 (node1) is"),
                    HasSubstr("rank 1 has NCCL: 2.26.2\n  rank 0 has NCCL: 2.27.5"), Not(HasSubstr("sm_90")),
                    HasSubstr("rank 2 has the plugin other: 1, library 0123\n  rank 0 has nothing besides")));
}

TEST(RankView, RefusesClocksThatAreFarApart) {
  auto views = three();
  views[1].clock = 500;
  EXPECT_THAT(refused(views), HasSubstr("the clocks of the ranks differ by 559 s, and 60 s are allowed: that of rank 2 "
                                        "(node2) is ahead"));
}

} // namespace
} // namespace fvlm::train
