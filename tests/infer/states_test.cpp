// Decoders that carry a state from row to row: what a pass says of its sequences.
#include "model/decoder/kv_pages.h"

#include <gmock/gmock.h>

namespace fvlm::infer {

using namespace model;
using testing::ElementsAre;

namespace {

std::vector<int> values(const at::Tensor& tensor) {
  const at::Tensor listed = tensor.contiguous();
  return {listed.const_data_ptr<int>(), listed.const_data_ptr<int>() + listed.numel()};
}

// One sequence for each pair of the row that it begins with and the number of its rows, with the slots 7, 8, ...
PassRows pass_of(const std::vector<std::pair<int64_t, int64_t>>& parts, bool has_states = true) {
  PassRows rows(16, has_states);
  int32_t slot = 7;
  for (const auto& [begin, count] : parts) {
    const std::vector<int32_t> pages(static_cast<size_t>((begin + count + 15) / 16), slot);
    rows.begin_sequence(pages, slot++);
    for (int64_t row = begin; row < begin + count; ++row) rows.append(5, row);
    rows.mark_output();
  }
  return rows;
}

TEST(StagedStates, SayWhereEachSequenceBeginsAndWhetherItsStateDoes) {
  const PassRows first = pass_of({{0, 3}, {9, 1}, {16, 5}}), second = pass_of({{3, 2}, {0, 6}, {21, 1}});
  StagedRows staged(first, at::kCPU, StagedRows::Sizes::coarse(first));
  std::vector<int> bounds(17, 9), slots(16, 0), starts(16, 0);
  std::ranges::copy(std::array{0, 3, 4}, bounds.begin());
  std::ranges::copy(std::array{7, 8, 9}, slots.begin());
  starts[0] = 1;
  EXPECT_EQ(values(staged.row_bounds), bounds) << "padding has no rows";
  EXPECT_EQ(values(staged.slots), slots);
  EXPECT_EQ(values(staged.starts), starts);
  EXPECT_EQ(staged.longest_run(), 16);
  const void* const memory = staged.row_bounds.const_data_ptr();
  staged.restage(second);
  EXPECT_EQ(staged.row_bounds.const_data_ptr(), memory);
  std::ranges::copy(std::array{0, 2, 8}, bounds.begin());
  std::swap(starts[0], starts[1]);
  EXPECT_EQ(values(staged.row_bounds), bounds);
  EXPECT_EQ(values(staged.starts), starts);
  for (const at::Tensor& each : {staged.row_bounds, staged.slots, staged.starts})
    EXPECT_EQ(each.storage_offset() % 64, 0) << "aligned as an allocation of its own";
}

TEST(StagedStates, TheLongestRunHasFewSizes) {
  const auto run = [](int64_t rows) { return StagedRows::Sizes::of(pass_of({{4, 1}, {0, rows}})).longest_run; };
  const auto coarse = [](int64_t rows) { return StagedRows::Sizes::coarse(pass_of({{4, 1}, {0, rows}})).longest_run; };
  EXPECT_THAT((std::array{run(1), run(2), run(16), run(17), run(100)}), ElementsAre(1, 16, 16, 32, 128));
  EXPECT_THAT((std::array{coarse(1), coarse(2), coarse(17), coarse(65)}), ElementsAre(1, 16, 64, 256));
}

TEST(StagedStates, AreNotThereForDecodersWithoutThem) {
  const PassRows without = pass_of({{0, 3}, {9, 1}}, false), with = pass_of({{0, 3}, {9, 1}});
  const StagedRows staged(without, at::kCPU);
  EXPECT_FALSE(staged.row_bounds.defined());
  EXPECT_FALSE(staged.slots.defined());
  EXPECT_FALSE(staged.starts.defined());
  EXPECT_EQ(staged.longest_run(), 0);
  auto sizes = StagedRows::Sizes::of(with);
  sizes.longest_run = 0;
  EXPECT_EQ(sizes, StagedRows::Sizes::of(without)) << "nothing else differs";
}

} // namespace
} // namespace fvlm::infer
