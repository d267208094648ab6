// Setting up a stage: its data, model and reference, from its beginning or from a checkpoint.
#include "base/log.h"
#include "base/text.h"
#include "device/runtime.h"
#include "train/initial_model.h"
#include "train/memory.h"
#include "train/resume.h"
#include "train/trainer.h"

namespace fvlm::train {
namespace {

namespace fs = std::filesystem;

bool needs_reference(const plan::Stage& stage) {
  using enum plan::ObjectiveTerm::Reference;
  return stage.uses(live) || stage.uses(cached);
}

} // namespace

Trainer::Trainer(RunContext& context, const plan::Stage& stage, const MakeModel& begin, RunState start,
                 const std::filesystem::path& checkpoint, const Faults& faults)
    : context_(context), stage_(stage), faults_(faults), state_(std::move(start)),
      data_(context.plan, stage, context.registry,
            {.rank = context.ranks.data_rank(),
             .ranks_here = context.ranks.on_this_machine(),
             .quarantine_log = counts_packs() ? context.folder / "quarantine.log" : std::filesystem::path(),
             .device = context.device},
            context.ranks.data_count()),
      reference_(context, stage, state_), checkpoints_(context, stage, state_, model_),
      observer_(context, stage, state_),
      control_(stage, context.plan_hash, context.lua, context.folder / "journal.jsonl", context.ranks),
      // Where a step may change what the next one starts from, that one waits. Answers
      // are drawn behind an observed step alone: only observing notices that another rank was lost in the step.
      observes_late_(device::runtime() && context.plan.speed.overlap_copies && !context.plan.guard.rollback &&
                     context.plan.precision != plan::Precision::fp16 && !stage.rollouts()) {
  data_.check_vocabulary_sizes(context.plan.model, context.description.decoders());
  operations_ = make_operations(context.plan, context.registry, context.device, ops::ContextGroup::of(context.ranks));
  const bool begins = checkpoint.empty();
  const MakeModel bare = [&](const model::ArenaOptions& options) { // for the weights of a checkpoint
    return make_bare(context.description, options);
  };
  const MakeModel reference = [&](const model::ArenaOptions& options) {
    return begins ? begin(options) : reference_.make(begin, bare, options);
  };
  const auto replicas = replicas_of(stage, {state_.replicas, context.threads});
  model_ = make_stage_model(context.plan, stage, context.registry, context.device, begins ? begin : bare, reference,
                            Sharing::among(context.ranks, context.zero, replicas.parts == 1), context.left_by);
  if (stage.uses(plan::ObjectiveTerm::Reference::cached))
    model_.frozen.cache =
        std::make_shared<ReferenceLogProbCache>(data_.order(), checkpoints_.folder().path() / "reference.bin");
  if (stage.caches_teacher()) {
    check_cached_teachers(stage, model_.model->parameters());
    model_.frozen.teacher_cache =
        std::make_shared<TeacherRowCache>(data_.order(), checkpoints_.folder().path() / "teacher.safetensors");
  }
  if (stage.quantization_aware)
    model_.quantized =
        std::make_unique<QuantizedWeights>(context.plan, context.registry, model_.model->parameters(), context.device);
  if (begins) {
    state_.stage = stage.name;
    state_.cursor = data_.start();
    model_.optimization->adopt_values();
  } else {
    if (state_.stage_done) extend();
    if (!state_.stage_done) Composer::check(state_.cursor, data_.batches(), data_.order());
  }
  if (!state_.stage_done) {
    const std::string changes = adopt_data(state_, data_, context.folder, context.allow_plan_change);
    if (!changes.empty()) context.event(stage.name, state_.step, "data_change", changes);
  }
  if (!begins) checkpoints_.load(checkpoint);
  state_.plan_hash = context.plan_hash;
  state_.run_id = context.run_id;
  if (!state_.stage_done) checkpoints_.check_room();
  if (!stage.evaluation.sets.empty())
    evaluator_ = std::make_unique<evaluation::Evaluator>(
        context.plan, stage, context.registry, feed::MixDataOptions{.ranks_here = context.ranks.on_this_machine()},
        &context.ranks);
  flops_.emplace(context.plan, stage, *model_.model, *model_.optimization, model_.frozen.models);
  const model::Capacity most =
      max_capacity_of(context.plan, stage, data_.batches().capacity, data_.batches().most_samples);
  gradients_ = std::make_unique<ThreadReplicas>(context.plan, stage, *model_.model, *operations_, context.registry,
                                                most, model_.frozen, replicas);
  if (stage.rollouts() && !state_.stage_done)
    rollouts_.emplace(RolloutsRequest{
        context.plan, stage, data_.tokenizer(), *model_.model, *operations_, most, context.lua,
        counts_packs() && context.ranks.is_first() ? checkpoints_.folder().path() / "rollouts.jsonl" : fs::path(),
        state_.step});
  const int64_t split = state_.split;
  if (needs_reference(stage) && !state_.stage_done) provide_reference(reference, begins);
  if (model_.frozen.teacher_cache && !state_.stage_done && context.steps_left != 0)
    cache_teachers(context, stage, model_, data_, *gradients_, [this](const HostPack& pack) {
      compute_once(pack, [this](const HostPack& part) { gradients_->cache_teachers(part); });
    });
  ran_out_of_memory_ = false;
  if (context.ranks.are_several()) state_.split = split; // which all ranks have in common
}

Trainer::~Trainer() = default;

// The plan has more samples than the stage was trained with when it was done: the rest is trained.
void Trainer::extend() {
  const auto rest = Composer::extended(state_.cursor, data_.batches(), data_.order());
  if (!rest) return;
  state_.cursor = *rest;
  state_.stage_done = false;
  log_info("stage {} was done with {} samples and is extended to {}: its schedule continues at {:.0f} %", stage_.name,
           grouped(state_.samples), grouped(stage_.samples),
           100 * static_cast<double>(state_.samples) / static_cast<double>(stage_.samples));
}

void Trainer::provide_reference(const MakeModel& reference, bool begins) {
  const auto cache_pack = [this](const HostPack& pack, const model::Model& model) {
    compute_once(pack, [&](const HostPack& part) { gradients_->cache_reference(part, model); });
  };
  reference_.provide({model_.frozen, begins ? model_.model : nullptr, reference, evaluator_.get(), *operations_}, data_,
                     *gradients_, cache_pack);
}

void Trainer::compute_once(const HostPack& pack, const std::function<void(const HostPack& part)>& compute) {
  const auto compute_part = [&](HostPack& part, bool) {
    if (faults_.before_reference) faults_.before_reference(stage_.name, part);
    compute(part);
  };
  while (!in_parts(pack, compute_part))
    if (std::exchange(cut_packs_, false)) report_cut_packs();
}

} // namespace fvlm::train
