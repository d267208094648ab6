// Trainer: one stage from its beginning, or a checkpoint, to its end. The loop takes a pack, computes its gradients,
// steps the optimizer, observes what came of it, and saves; what each of these needs lives beside it.
#pragma once
#include "evaluation/evaluator.h"
#include "train/control.h"
#include "train/rollouts.h"
#include "train/run_context.h"
#include "train/stage_checkpoints.h"
#include "train/stage_data.h"
#include "train/stage_model.h"
#include "train/stage_reference.h"
#include "train/stage_teachers.h"
#include "train/step_flops.h"
#include "train/step_observer.h"
#include "train/step_totals.h"
#include "train/thread_replicas.h"

#include <functional>
#include <memory>
#include <optional>

namespace fvlm::train {

enum class StageEnd { done, stopped }; // stopped: as requested, and resumable

class Trainer {
 public:
  // From `start`, or where `checkpoint` is not empty as it says. `begin` makes the model that the stage starts from.
  Trainer(RunContext& context, const plan::Stage& stage, const MakeModel& begin, RunState start,
          const std::filesystem::path& checkpoint, const Faults& faults);
  ~Trainer();

  StageEnd run();
  std::shared_ptr<model::Model> model() const { return model_.model; }
  const RunState& state() const { return state_; }

 private:
  // Setting up.
  void extend();
  void provide_reference(const MakeModel& reference, bool begins);
  // What frozen models read before training, as memory allows.
  void compute_once(const HostPack& pack, const std::function<void(const HostPack& part)>& compute);

  // The loop and its parts.
  StageEnd train();
  bool catch_up(); // with what the step at which the run goes on lacks; false: the stage is to end here
  std::optional<StageEnd> advance(); // by a pack; nothing: the stage goes on
  StageEnd stop();
  StageEnd finish(bool ended_early);
  void open_loader(const Cursor& from);
  std::optional<LoadedPack> next_pack();
  // False: memory ran out or a plugin refused a call, and the step begins again.
  bool forward_backward(LoadedPack& loaded);
  PendingStep optimizer_step(const LoadedPack& last, const StepTotals& totals);
  // What the ranks agree on.
  void begin_together();
  bool stop_requested() const;
  StepTotals total(const LoadedPack& last, bool is_computed);
  // Whether several ranks compute each pack, and whether this is the one that counts it.
  bool shares_packs() const { return context_.ranks.context_count() > 1; }
  bool counts_packs() const { return context_.ranks.context_rank() == 0; }
  Cursor of_all_ranks(Cursor position, int64_t own_failures) const;
  static Cursor with_failures(Cursor position, int64_t of_others);
  // Whether the pending step is observed before the next one is computed.
  bool must_observe_now() const;
  // The pending step, if any. False: the stage is to end here.
  bool observe();
  // What is due after the step: evaluation, `control`, which reads its results, a line of metrics, a checkpoint. False:
  // the stage is to end here. Where a stop is requested during the evaluation, all of it waits until the run goes on.
  bool conclude();
  bool lacks_control() const { return control_.due(state_.step) && state_.controlled_at != state_.step; }
  bool follow_control(bool& saves);
  // False: a stop was asked for, and nothing is measured. The run evaluates this step when it goes on.
  bool evaluate();
  std::vector<evaluation::Result> evaluated();
  void save();
  void save_before_failure();

  // Cuts the pack as memory allows. False: it ran out, and from now on there are more parts.
  using PartWork = std::function<void(HostPack& part, bool is_last)>;
  bool in_parts(const HostPack& pack, const PartWork& work);
  void report_cut_packs() const;
  int64_t steps_begun() const { return state_.step + (pending_ ? 1 : 0); }
  double progress() const;            // share of the stage's samples before the step that is being put together
  bool is_logged(int64_t step) const; // whether a line of metrics follows it
  bool is_due(int64_t every) const { return every > 0 && state_.step > 0 && state_.step % every == 0; }
  std::vector<Optimization::Rates> rates(const StepCounts& counts, const Cursor& after) const;
  void report_active(const PendingStep& first);
  void show_progress() const;

  RunContext& context_;
  const plan::Stage& stage_;
  const Faults& faults_;
  RunState state_;
  StageData data_;
  std::unique_ptr<ops::Operations> operations_;
  StageReference reference_;
  StageModel model_;
  StageCheckpoints checkpoints_;
  std::unique_ptr<evaluation::Evaluator> evaluator_; // null: the stage has no sets
  std::optional<StepFlops> flops_;
  std::unique_ptr<ThreadReplicas> gradients_;
  std::optional<Rollouts> rollouts_; // where the model gives the answers that it learns from
  StepObserver observer_;
  ControlCalls control_;
  std::unique_ptr<DataLoader> loader_;
  PartTimes times_;

  // The step that is being put together from packs.
  struct Assembly {
    StepCounts counts;
    std::vector<std::shared_ptr<const Sample>> used; // of its samples, those that could be decoded
    PackingStatistics packing;
  };
  std::optional<Assembly> assembly_;
  std::optional<PendingStep> pending_; // `state_` is that before it
  const bool observes_late_;           // one step later, where nothing is to be done before
  bool reported_active_ = false;
  bool ran_out_of_memory_ = false, cut_packs_ = false, dropped_plugin_ = false; // in the step that is put together
  int64_t dropped_graphs_at_ = -1; // the step that graphs were last dropped in
  bool stop_agreed_ = false;       // all ranks stop behind this step
};

} // namespace fvlm::train
