// What the ranks of a stage agree on: where they begin, the totals of a step, and whether they stop behind it.
#include "train/stop_signals.h"
#include "train/trainer.h"

#include <utility>

namespace fvlm::train {

// What the ranks have to agree on before their first step.
void Trainer::begin_together() {
  state_.split = std::stoll(context_.ranks.from_first(std::to_string(state_.split)));
  double wanted = StopSignals::stop_requested() ? 1 : 0;
  context_.ranks.sum({&wanted, 1});
  stop_agreed_ = wanted > 0;
}

// Several ranks stop behind the same step, though a signal reaches them at different moments.
bool Trainer::stop_requested() const {
  return context_.ranks.are_several() ? stop_agreed_ : StopSignals::stop_requested();
}

// A position that counts failures of this rank alone, with those of all ranks in their place.
Cursor Trainer::of_all_ranks(Cursor position, int64_t own_failures) const {
  double all = counts_packs() ? static_cast<double>(own_failures) : 0;
  context_.ranks.sum({&all, 1});
  return with_failures(std::move(position), static_cast<int64_t>(all) - own_failures);
}

Cursor Trainer::with_failures(Cursor position, int64_t of_others) {
  position.add_undecodable(of_others);
  return position;
}

// Of the step that is put together, whose last pack is computed or did not get that far.
StepTotals Trainer::total(const LoadedPack& last, bool is_computed) {
  const bool own_memory = std::exchange(ran_out_of_memory_, false), own_cut = std::exchange(cut_packs_, false);
  if (GradientReduction* reduction = model_.optimization->reduction()) reduction->finish();
  context_.ranks.enter("totals of the step", stage_.name, steps_begun());
  StepTotals own;
  own.ran_out_of_memory = !is_computed && own_memory;
  own.cut_packs = own.ran_out_of_memory && own_cut;
  own.dropped_plugin = std::exchange(dropped_plugin_, false);
  own.stop_requested = StopSignals::stop_requested();
  own.failed_decodes = last.failed_decodes;
  own.used = assembly_->counts;
  if (is_computed) {
    own.counted = gradients_->counted();
    own.used_rows = gradients_->used_rows();
    own.all_rows = gradients_->all_rows();
    own.flops = flops_->of(assembly_->used, gradients_->encoded_frames());
    if (rollouts_ || context_.ranks.are_several() || std::ssize(assembly_->used) != own.used.samples)
      own.used = counts_of(stage_, assembly_->used, assembly_->counts.progress);
    own.used.of_term.resize(assembly_->counts.of_term.size());
  }
  StepTotals all = sum_over(context_.ranks, own);
  if (all.cut_packs && !own.cut_packs) state_.split *= 2;
  stop_agreed_ = all.stop_requested;
  all.used.weights = assembly_->counts.weights;
  return all;
}

} // namespace fvlm::train
