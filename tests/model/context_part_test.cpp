// The parts of a pack that ranks of a context have are together the pack.
#include "model/context_part.h"
#include "tiny.h"

#include <ATen/ops/concat.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

using namespace fvlm;
using namespace fvlm::model;
using at::Tensor;

namespace {

std::vector<int64_t> numbers(const Tensor& tensor) {
  const Tensor wide = tensor.to(at::kLong).contiguous();
  return {wide.const_data_ptr<int64_t>(), wide.const_data_ptr<int64_t>() + wide.numel()};
}

TEST(ContextPart, PartsAreThePackTogether) {
  Tiny tiny;
  Dice dice(5);
  std::vector<Sample> samples{random_sample(dice, 2, 7), random_sample(dice, 0, 30), random_sample(dice, 5, 11)};
  for (const int64_t ranks : {2, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    const Pack probe = tiny.pack(samples);
    Capacity capacity = Capacity::of(samples, 1);
    capacity.rows = divisible_rows(probe.sequence.tokens.size(0) + 3, {nullptr, 0, ranks});
    const Pack whole = tiny.pack(samples, capacity);
    const int64_t chunk = capacity.rows / (2 * ranks);
    Tensor tokens = at::zeros({capacity.rows}, at::kLong), positions = at::zeros({capacity.rows}, at::kLong);
    std::map<int64_t, std::pair<int64_t, int64_t>> labels; // by row of the whole: target, text
    std::map<int64_t, int64_t> visual;                     // by row of the whole: which visual token
    int64_t used = 0;
    size_t slots = 0; // for labels
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Pack part = tiny.pack(samples, capacity);
      const ContextPart kept = keep_part(part, {nullptr, rank, ranks}, [](int64_t count) { return count + 2; });
      used += kept.used_rows;
      const auto row_of = [&](int64_t row) {
        return row < chunk ? rank * chunk + row : (2 * ranks - 1 - rank) * chunk + row - chunk;
      };
      const auto own_tokens = numbers(part.sequence.tokens), own_positions = numbers(part.texts.positions);
      ASSERT_EQ(std::ssize(own_tokens), 2 * chunk);
      for (int64_t row = 0; row < 2 * chunk; ++row) {
        tokens[row_of(row)] = own_tokens[static_cast<size_t>(row)];
        positions[row_of(row)] = own_positions[static_cast<size_t>(row)];
      }
      const auto rows = numbers(part.labels.rows), targets = numbers(part.labels.targets),
                 texts = numbers(part.labels.sequences);
      ASSERT_GE(rows.size(), kept.labels.size() + 2);
      if (rank == 0) slots = rows.size();
      EXPECT_EQ(rows.size(), slots) << "shapes differ between ranks";
      for (size_t label = 0; label < rows.size(); ++label)
        if (targets[label] >= 0) labels[row_of(rows[label])] = {targets[label], texts[label]};
      const auto visual_rows = numbers(part.sequence.visual_rows);
      for (size_t token = 0; token < visual_rows.size(); ++token)
        if (visual_rows[token] < 2 * chunk) visual[row_of(visual_rows[token])] = static_cast<int64_t>(token);
    }
    EXPECT_EQ(used, whole.texts.cu_seqlens[-1].item<int64_t>());
    EXPECT_TRUE(tokens.equal(whole.sequence.tokens));
    EXPECT_TRUE(positions.equal(whole.texts.positions.to(at::kLong)));
    const auto rows = numbers(whole.labels.rows), targets = numbers(whole.labels.targets),
               texts = numbers(whole.labels.sequences), visual_rows = numbers(whole.sequence.visual_rows);
    std::map<int64_t, std::pair<int64_t, int64_t>> all_labels;
    for (size_t label = 0; label < rows.size(); ++label)
      if (targets[label] >= 0) all_labels[rows[label]] = {targets[label], texts[label]};
    EXPECT_EQ(labels, all_labels);
    std::map<int64_t, int64_t> all_visual;
    for (size_t token = 0; token < visual_rows.size(); ++token)
      if (visual_rows[token] < capacity.rows) all_visual[visual_rows[token]] = static_cast<int64_t>(token);
    EXPECT_EQ(visual, all_visual);
  }
}

} // namespace
