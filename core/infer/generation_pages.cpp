// The memory of a GenerationBatch: pages of keys and values, and slots for states.
#include "infer/generation_batch.h"
#include "ops/out_of_memory.h"

#include <algorithm>

namespace fvlm::infer {

// Pages, and slots where states are carried, for the prompts that wait, while no other prompt's rows are in them.
bool GenerationBatch::reserve() {
  bool dropped = false;
  while (!scheduler_.is_running() && scheduler_.is_waiting()) {
    const auto pages_of = [&](int64_t rows) { return (rows + options_.page_rows - 1) / options_.page_rows; };
    const SchedulerCounts present = scheduler_.counts();
    const int64_t wanted = std::max(scheduler_.wanted_pages(), pages_of(options_.reserved_rows)),
                  usual = std::max(std::min(wanted, pages_of(options_.cache_rows)), present.pages),
                  most = scheduler_.max_needed_pages(),
                  needed = options_.outlives_long_prompts ? scheduler_.needed_pages() : most,
                  sequences = std::max(scheduler_.wanted_slots(), options_.reserved_sequences),
                  pages = needed > usual ? std::min(most, std::max(needed, 2 * usual)) : usual,
                  slots = model_.decoder().carries_state()
                              ? std::max(std::min(sequences, options_.max_sequences), present.slots)
                              : 0;
    if (pages == present.pages && slots == present.slots) break;
    try {
      make_pages(pages, slots);
      break;
    } catch (const std::exception& error) {
      const bool is_too_long = present.pages > 0 && needed > present.pages;
      if (!options_.outlives_long_prompts || !is_too_long || !ops::is_out_of_memory(error)) throw;
      make_pages(present.pages, present.slots);
      const int64_t number = scheduler_.first_waiting();
      GeneratedAnswer& ended = finished_.emplace_back(std::move(answers_.at(number).answer));
      ended.shared_rows = scheduler_.shared_rows(number);
      ended.lacks_memory = ended.tokens.empty();
      dropped = true;
      forget(number);
    }
  }
  return dropped;
}

void GenerationBatch::make_pages(int64_t pages, int64_t slots) {
  for (DecodeGraphs& graphs : graphs_) graphs.clear();
  if (mixed_graphs_) mixed_graphs_->clear();
  pages_ = {}; // first, so that its memory serves the new ones
  pages_ = model_.decoder().make_kv_pages(ops_, pages + 1, options_.page_rows, slots + 1);
  scheduler_.resize(pages, slots);
  if (draft_model_) draft_model_->resize(pages);
}

void GenerationBatch::clear_prefix_cache() {
  const SchedulerCounts present = scheduler_.counts();
  scheduler_.resize(present.pages, present.slots);
  if (draft_model_) draft_model_->resize(present.pages);
}

} // namespace fvlm::infer
