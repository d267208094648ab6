// The stream over every form: the same packs for any number of workers, and after any number of deaths. FVLM_KILLS is
// their number for each form (8).
#include "../stream/killed_stream.h"
#include "made_forms.h"

namespace fvlm::test {
namespace {

class StreamOfForm : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Forms, StreamOfForm, testing::ValuesIn(made_forms()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

TEST_P(StreamOfForm, GivesTheSamePacksWithOneAndEightWorkers) {
  const Folder folder;
  const OpenedStream opened(folder, write_form(GetParam(), folder / "form").string());
  const auto one = hashes(*opened.loader(opened.start(), folder / "1.jsonl", 1));
  const auto eight = hashes(*opened.loader(opened.start(), folder / "8.jsonl", 8));
  ASSERT_GT(one.size(), 20u);
  EXPECT_EQ(one, eight);
  EXPECT_EQ(reasons(folder / "1.jsonl"), reasons(folder / "8.jsonl"));
  EXPECT_EQ(reasons(folder / "1.jsonl").size(), 2) << "the two broken samples, once each";
}

TEST_P(StreamOfForm, KilledProcessResumesWithTheSamePacks) {
  const Folder folder;
  const char* kills = std::getenv("FVLM_KILLS");
  expect_the_same_after_kills(folder, write_form(GetParam(), folder / "form").string(), kills ? std::atoi(kills) : 8);
}

} // namespace
} // namespace fvlm::test
