// One stage on its way from a state to its end: packs, steps, metrics, checkpoints, and what goes wrong.
#pragma once
#include "evaluation/evaluator.h"
#include "model/flops.h"
#include "model/weights/model_directory.h"
#include "recipe/sandbox.h"
#include "report/metrics_log.h"
#include "report/progress_line.h"
#include "train/active_lines.h"
#include "train/checkpoint_writer.h"
#include "train/control.h"
#include "train/crew.h"
#include "train/guard.h"
#include "train/interval.h"
#include "train/late.h"
#include "train/quantized_weights.h"
#include "train/reference_weights.h"
#include "train/stage_data.h"
#include "train/stage_model.h"

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>

namespace fvlm::train {

// What a run and its stages share.
struct RunContext {
  const plan::Plan& plan;
  std::string plan_hash;
  std::filesystem::path folder;
  Registry& registry;
  at::Device device;
  ModelDescription description;
  std::shared_ptr<recipe::Sandbox> lua;
  report::MetricsLog& metrics;
  report::ProgressLine& line;
  CheckpointWriter& writer;
  int64_t threads = 1;    // that a crew may have
  int64_t steps_left = 0; // that this process may take; negative: any number
  std::chrono::milliseconds write_patience = std::chrono::minutes(10); // of the last checkpoint of a stage
  std::string run_id;
  int64_t samples_before = 0, samples = 0; // planned: of the stages before this one, of all that are to run
};

// What a test does to a run at places that no input reaches. Either may throw.
struct Faults {
  std::function<void()> before_data; // waits for a pack
  std::function<void(const std::string& stage, int64_t step, HostPack& pack)> before_pack;
  std::function<void(const std::string& stage, int64_t step, model::Parameters& parameters)> before_step;
  std::function<void(const std::string& stage, const HostPack& pack)> before_reference; // is asked about the pack
};

enum class StageEnd { done, stopped }; // stopped: asked to, and resumable

class StageRun {
 public:
  // From `start`, or where `checkpoint` is not empty as it says. `make_initial` makes the model that the stage starts
  // from.
  StageRun(RunContext& context, const plan::Stage& stage, const MakeModel& make_initial, RunState start,
           const std::filesystem::path& checkpoint, const Faults& faults);
  ~StageRun();

  StageEnd run();
  std::shared_ptr<model::Vlm> model() const { return vlm_; }
  const RunState& state() const { return state_; }

 private:
  void extend();
  void prepare_reference(const FrozenModels& frozen, const MakeModel& reference, bool is_new);
  void cache_reference(ReferenceMemory& cache, const model::Vlm& reference);

  StageEnd train_steps();
  std::optional<LoadedPack> next_pack();
  void with_original_weights(QuantizedWeights::Which which, const std::function<void()>& work);
  void open(const Cursor& from);
  // A step that is on its way to the device, and not judged yet.
  struct PendingStep {
    Cursor after;
    StepCounts counts; // of the samples that were used
    double flops;
    std::vector<Optimization::Rates> rates;
    int64_t used_rows, all_rows;
    PackingStatistics packing;
    bool has_entropy;
    Late numbers; // sums of losses, norm of the gradients, entropy of attention
  };
  int64_t steps_started() const { return state_.step + (pending_step_ ? 1 : 0); }
  bool is_logged(int64_t step) const; // whether a line of metrics follows it
  // Cuts the pack as memory wants it. False: it ran out, and the next time there are more parts.
  bool run_split(const HostPack& pack, const std::function<void(HostPack& part)>& work);
  bool process_pack(LoadedPack& loaded); // false: memory ran out or a plugin refused a call, the step begins again
  void save_after_failure();             // before a step that a plugin failed in
  PendingStep finish_step(const LoadedPack& last);
  bool needs_readback_now() const; // the step under way
  bool finish_pending_step();      // the step under way, if any. False: the stage is to end here
  void apply_readback(const PendingStep& step);
  void log_active_backends(const PendingStep& first);
  std::vector<Optimization::Rates> rates(const StepCounts& counts, const Cursor& after) const;
  double flops_of(const std::vector<std::shared_ptr<const Sample>>& samples) const;
  void write_interval();
  void event(const std::string& what, const std::string& text);
  void evaluate();
  void show_samples(); // for the report
  bool after_step();   // false: the stage is to end here
  void roll_back(const std::string& why);
  void save();
  void write_snapshot();
  void save_final();
  std::string describe_next_start() const;
  void show() const;

  RunContext& context_;
  const plan::Stage& stage_;
  const Faults& faults_;
  StageFolder folder_;
  ReferenceWeights reference_weights_;
  RunState state_;
  StageData data_;
  std::unique_ptr<ops::Operations> operations_;
  std::shared_ptr<model::Vlm> vlm_;
  std::unique_ptr<Optimization> optimization_;
  std::unique_ptr<QuantizedWeights> quantized_; // of a stage that is aware of it
  std::unique_ptr<ThreadReplicas> replicas_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<evaluation::Evaluator> evaluator_; // none: the stage has no sets
  bool evaluated_ = false;                           // since the last checkpoint
  model::TrainedParts trained_parts_;
  std::vector<model::VlmConfig> frozen_; // of models that do not learn, and are asked in every step
  Interval interval_;
  ControlCalls control_;
  Guard guard_;
  Scaler scaler_;
  PartTimes times_;
  StepCounts counts_;                               // of the step under way
  std::vector<std::shared_ptr<const Sample>> used_; // of those, the ones that could be decoded
  PackingStatistics packing_;                       // the same
  bool logged_active_ = false;                      // what is active
  bool in_step_ = false;
  bool defers_readback_;                    // one step on, where nothing is to be done before
  std::optional<PendingStep> pending_step_; // `state_` is that before it
  int64_t saved_at_ = -1;
  double last_loss_ = std::numeric_limits<double>::quiet_NaN(), last_lr_ = last_loss_;
};

} // namespace fvlm::train
