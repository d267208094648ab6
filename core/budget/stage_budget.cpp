#include "budget/stage_budget.h"

#include "base/text.h"
#include "model/size_class.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::budget {

PackCapacity capacity_of(const plan::Stage& stage, int64_t rows_per_frame, std::vector<std::string>& assumptions) {
  const auto largest = stage.largest_sample(rows_per_frame);
  PackCapacity capacity{0, stage.packing.tokens.count.value_or(std::max(largest.tokens, usual_rows))};
  if (largest.frames == 0) return capacity;
  capacity.frames = stage.packing.frames.value_or(capacity.rows / largest.tokens * largest.frames);
  if (!stage.packing.frames)
    assumptions.push_back(fmt::format("packing.frames is open: training takes it from the data; here {}, for samples "
                                      "of {} frames and {} tokens",
                                      capacity.frames, largest.frames, stage.data.max_text_tokens));
  return capacity;
}

PackShape largest_pack(const plan::Stage& stage, int64_t rows_per_frame, std::vector<std::string>& assumptions) {
  const auto largest = stage.largest_sample(rows_per_frame);
  const PackCapacity most = capacity_of(stage, rows_per_frame, assumptions);
  // A pack is no more than its step.
  int64_t frames = most.frames, rows = most.rows;
  if (stage.batch.tokens && *stage.batch.tokens < rows) {
    rows = *stage.batch.tokens;
    if (!stage.packing.frames) frames = rows / largest.tokens * largest.frames;
  }
  if (stage.batch.frames) frames = std::min(frames, *stage.batch.frames);
  if (stage.batch.samples) {
    frames = std::min(frames, *stage.batch.samples * largest.frames);
    rows = std::min(rows, *stage.batch.samples * largest.tokens);
  }
  frames = model::size_class(frames, most.frames);
  rows = model::size_class(rows, most.rows);
  PackShape pack{frames, rows};
  pack.visual_rows = std::min(rows, stage.texts_per_frame() * frames * rows_per_frame);
  pack.sequences = stage.texts_per_sample() * stage.packing.segments.value_or(rows / 16 + 1);
  pack.labels = model::size_class(rows - pack.visual_rows, most.rows);
  return pack;
}

std::string chosen_text(const ChosenPack& chosen) {
  std::string size = fmt::format("packs of {} tokens", grouped(chosen.rows));
  if (chosen.frames > 0) size += fmt::format(" and {} frames", grouped(chosen.frames));
  const std::string estimated = human_bytes(static_cast<uint64_t>(chosen.estimated));
  switch (chosen.bound) {
  case ChosenPack::Bound::memory:
    break;
  case ChosenPack::Bound::step:
    return fmt::format("{}, which hold a whole step; estimated {}, the limit is {}", size, estimated,
                       chosen.limit.said);
  case ChosenPack::Bound::segments:
    return fmt::format("{}, which packing.segments fill; estimated {}, the limit is {}", size, estimated,
                       chosen.limit.said);
  case ChosenPack::Bound::largest:
    return fmt::format("{}, the most there may be; estimated {}, the limit is {}", size, estimated, chosen.limit.said);
  }
  return fmt::format("{}, the largest that fit; estimated {}, the limit is {}", size, estimated, chosen.limit.said);
}

int64_t packs_in_flight(const plan::Plan& plan, int64_t frames) {
  constexpr int64_t most_packs = 32;                 // that the loader has under way
  if (plan.model.connector->reads_bytes()) return 0; // texts are not held apart
  const int64_t size = plan.model.image_size, bytes = frames * 3 * size * size;
  return bytes > 0 ? bytes * std::min((plan.loader.memory_mib << 20) / bytes, most_packs) : 0;
}

int64_t checkpoint_copy(const Need& need) {
  int64_t copy = -need.base;
  for (const Item item : {Item::weights, Item::masters, Item::moments}) copy += need.amounts[static_cast<size_t>(item)];
  return copy;
}

} // namespace fvlm::budget
