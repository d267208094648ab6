// What ranks tell each other besides tensors.
#include "threads_as_ranks.h"

#include <gtest/gtest.h>

namespace fvlm::dist {
namespace {

TEST(Ranks, GatherTextsOfAnyBytesAndLength) {
  test::as_ranks(3, [](const Ranks& ranks) {
    const std::vector<std::string> texts = {std::string("a\0\xff", 3), "", std::string(70000, 'x')};
    EXPECT_EQ(ranks.gather(texts.at(static_cast<size_t>(ranks.rank()))), texts) << "rank " << ranks.rank();
    EXPECT_EQ(ranks.gather(""), (std::vector<std::string>(3))) << "nothing from anybody";
  });
}

} // namespace
} // namespace fvlm::dist
