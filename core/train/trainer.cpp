#include "train/trainer.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/answer_end.h"
#include "data/chat.h"
#include "device/runtime.h"
#include "model/weights/generation_config.h"
#include "train/memory.h"
#include "train/schedule.h"
#include "train/stage_length.h"
#include "train/stop_signals.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace fvlm::train {
namespace {

struct StopInEvaluation {};

// Of templates from which a model learns what nobody wants.
void warn_of_chats(const plan::Stage& stage, const Tokenizer& tokenizer, const DecoderConfig& decoder) {
  const plan::Mix& mix = stage.data;
  if (mix.documents || mix.questions) return;
  if (mix.chat_template) {
    const auto ends = end_tokens(tokenizer.folder(), decoder.eos_token_id);
    if (const auto problem = missing_answer_end(tokenizer, *mix.chat_template, ends))
      log_warning("stage {}: {}", stage.name, *problem);
  } else if (own_chat_template(tokenizer, mix.system)) {
    log_warning(
        "stage {}: chats are written in ChatML, with the mix's system turn, and otherwise by the chat template of the "
        "decoder's folder\n"
        "  chat_template = \"default\", system = \"\" in the stage's fvlm.mix writes them as the decoder knows them",
        stage.name);
  }
}

} // namespace

StageEnd Trainer::run() {
  if (state_.stage_done) return StageEnd::done;
  times_ = {}; // the time until now belongs to no step
  show_progress();
  if (model_.quantized) model_.quantized->quantize();
  const StageEnd end = train();
  if (model_.quantized) model_.quantized->restore(QuantizedWeights::Which::all);
  return end;
}

StageEnd Trainer::train() {
  open_loader(state_.cursor);
  begin_together();
  if (state_.ends_here) return finish(true);
  if (!catch_up()) return finish(true);
  std::optional<StageEnd> end;
  while (!end)
    if (context_.trace && context_.trace->is_due())
      context_.trace->record(times_, [&] { return !(end = advance()); });
    else
      end = advance();
  return *end;
}

// A step may have been saved before what follows it was done: where the run was stopped, or that failed.
bool Trainer::catch_up() {
  const bool lacks_evaluation = evaluator_ && is_due(stage_.evaluation.every) && state_.evaluated_at != state_.step;
  if (!lacks_evaluation && (state_.step == 0 || !lacks_control())) return true;
  checkpoints_.mark_unsaved(); // which of them is best depends on the evaluation
  const bool continues = conclude();
  if (continues) save();
  return continues;
}

std::optional<StageEnd> Trainer::advance() {
  if (stop_requested() || context_.steps_left == 0) return stop();
  auto loaded = next_pack();
  if (!loaded) return finish(false);
  const bool is_computed = forward_backward(*loaded);
  if (is_computed && !loaded->last) return {};
  const StepTotals totals = total(*loaded, is_computed);
  if (totals.begins_anew()) {
    loaded.reset();
    observe(); // all ranks do, also those that had no trouble: they begin at the same step
    if (totals.cut_packs) report_cut_packs();
    open_loader(state_.cursor);
    return {};
  }
  if (totals.used.samples == 0 && context_.ranks.are_several()) { // one process skips such a step in its loader
    assembly_.reset();
    return {};
  }
  if (rollouts_) rollouts_->end_step();
  PendingStep step = optimizer_step(*loaded, totals);
  loaded.reset();
  if (context_.steps_left > 0) --context_.steps_left;
  observe(); // the previous step, while the device computes this one
  pending_ = std::move(step);
  const bool ends_here = must_observe_now() && !observe();
  if (context_.trace) context_.trace->end_step(stage_.name);
  return ends_here ? std::optional(finish(true)) : std::nullopt;
}

StageEnd Trainer::stop() {
  observe();
  save();
  checkpoints_.wait_until_saved();
  return StageEnd::stopped;
}

StageEnd Trainer::finish(bool ended_early) {
  observe();
  state_.cursor =
      of_all_ranks(loader_->cursor(), loader_->failed_decodes()); // with what was skipped behind the last step
  loader_.reset();
  if (!ended_early) warn_of_early_end(stage_, state_.cursor);
  observer_.write_interval(times_);
  require_used(state_.cursor, stage_.name);
  state_.ends_here = ended_early;
  if (evaluator_) save(); // whatever becomes of the evaluation
  if (!evaluate()) return stop();
  rollouts_.reset();
  if (evaluator_ && context_.ranks.is_first()) try {
      evaluator_->show(*model_.model, *operations_, {checkpoints_.folder().path() / "show", stage_.name, state_.step});
    } catch (const Error& error) { // the weights are worth more than samples with their answers
      if (error.kind() != ErrorKind::output) throw;
      log_warning("no samples are shown: {}\n  `fvlm-engine eval RECIPE --show DIR` writes them", error.text());
    }
  state_.stage_done = true;
  const SampleCounts counts = sample_counts(state_.cursor);
  context_.metrics.write({"event",
                          stage_.name,
                          state_.step,
                          {{"what", "stage_end"}, {"text", fmt::format("{} steps, {}", state_.step, counts.text())}},
                          numbers_of(counts)});
  context_.ranks.enter("end of the stage", stage_.name, state_.step);
  log_info("{}: done, {} steps, {}, loss of the last step {:.4g}", stage_.name, grouped(state_.step), counts.text(),
           observer_.loss());
  checkpoints_.mark_unsaved();
  save();
  checkpoints_.wait_until_saved();
  return StageEnd::done;
}

void Trainer::open_loader(const Cursor& from) {
  loader_.reset(); // its memory is released first
  loader_ = data_.loader(from);
  assembly_.reset();
}

std::optional<LoadedPack> Trainer::next_pack() {
  context_.ranks.enter("loading data", stage_.name, steps_begun());
  try {
    if (faults_.before_data) faults_.before_data();
    auto loaded = loader_->next();
    times_.add_elapsed(PartTimes::waiting);
    return loaded;
  } catch (const Error&) {
    save_before_failure();
    throw;
  }
}

bool Trainer::is_logged(int64_t step) const {
  return context_.plan.log_every > 0 && step % context_.plan.log_every == 0;
}

bool Trainer::forward_backward(LoadedPack& loaded) {
  context_.ranks.enter("forward and backward", stage_.name, steps_begun());
  if (!assembly_) {
    assembly_.emplace().counts = counts_of(stage_, *loaded.of_step, progress());
    gradients_->begin_step();
    if (rollouts_) rollouts_->begin_step(steps_begun() + 1, is_logged(steps_begun() + 1));
    if (GradientReduction* reduction = model_.optimization->reduction())
      reduction->begin_step(loaded.most_packs * state_.split);
  }
  if (!loaded.pack.samples.empty()) assembly_->packing.add(loaded.pack);
  const double scale = observer_.loss_scale();
  try {
    GradientReduction* reduction = model_.optimization->reduction();
    return in_parts(loaded.pack, [&](HostPack& part, bool is_last) {
      if (rollouts_) {
        rollouts_->answer(part, state_.split);
        times_.add_elapsed("rollouts");
      }
      for (const PackedSample& packed : part.samples) assembly_->used.push_back(packed.sample);
      if (faults_.before_pack) faults_.before_pack(stage_.name, steps_begun(), part);
      const bool measure_attention = is_logged(steps_begun() + 1) && !gradients_->has_measured_attention();
      gradients_->forward_backward(part, assembly_->counts, scale, times_, measure_attention,
                                   reduction ? reduction->for_pass(loaded.last && is_last) : nullptr);
    });
  } catch (const UnsupportedCall& refused) {
    if (!shares_packs() && gradients_->drop(refused)) {
      dropped_plugin_ = true;
      return false;
    }
    save_before_failure();
    throw;
  } catch (const Error& error) {
    // Of a plugin, of a function that rewards answers, or of a device whose memory does not hold a sample.
    const std::array kinds{ErrorKind::plugin, ErrorKind::recipe, ErrorKind::device};
    if (std::ranges::find(kinds, error.kind()) != kinds.end()) save_before_failure();
    throw;
  }
}

bool Trainer::in_parts(const HostPack& pack, const PartWork& work) {
  try {
    auto parts = split_pack(pack, state_.split);
    for (HostPack& part : parts) work(part, &part == &parts.back());
    return true;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    if (shares_packs()) // the other ranks are in the middle of the same pack
      throw Error(ErrorKind::device, "the memory does not hold a rank's part of a pack: {}", error.what())
          .at("stage {}, step {}", stage_.name, state_.step)
          .advise("a larger --context-parallel, activation_checkpointing or a smaller packing.tokens need less");
    // What graphs take, a pass of new shapes cannot have, and it may be as much as such a pass takes.
    // Once a step: what generation captures anew must not take the place of smaller packs for ever.
    if (rollouts_) rollouts_->release_memory();
    device::Runtime* const gpu = device::runtime();
    if (gpu && std::exchange(dropped_graphs_at_, steps_begun()) != steps_begun() && gpu->drop_graphs()) {
      log_info("{}: memory ran out beside that of captured CUDA graphs, which are captured anew", stage_.name);
      ran_out_of_memory_ = true;
      return false;
    }
    if (stage_.embeds())
      throw Error(ErrorKind::device, "the memory does not hold a pack, whose texts are compared with each other: {}",
                  error.what())
          .at("stage {}, step {}", stage_.name, state_.step)
          .advise(
              "a smaller packing.tokens, with fewer negatives for each query, or activation_checkpointing need less");
    const auto* of_plugin = dynamic_cast<const Error*>(&error);
    const bool is_least = state_.split >= static_cast<int64_t>(pack.samples.size());
    if (is_least && of_plugin && of_plugin->kind() == ErrorKind::plugin) throw; // its own words name it
    if (is_least)
      throw Error(ErrorKind::device, "the memory does not hold a single sample: {}", error.what())
          .at("stage {}, step {}", stage_.name, state_.step)
          .advise("activation_checkpointing, fewer frames or shorter texts need less");
  }
  state_.split *= 2;
  ran_out_of_memory_ = cut_packs_ = true;
  return false;
}

void Trainer::report_cut_packs() const {
  context_.event(stage_.name, state_.step, "out_of_memory",
                 fmt::format("packs are cut into {} from here on", state_.split));
}

double Trainer::progress() const {
  const int64_t done = pending_ ? pending_->after.samples : state_.cursor.samples;
  return static_cast<double>(done) / static_cast<double>(stage_.samples);
}

std::vector<Optimization::Rates> Trainer::rates(const StepCounts& counts, const Cursor& after) const {
  const auto share = [&](int64_t samples) {
    return static_cast<double>(samples) / static_cast<double>(stage_.samples);
  };
  const Stretch stretch{share(after.samples - counts.samples), share(after.samples)};
  std::vector<Optimization::Rates> rates;
  for (const auto& base : model_.optimization->base_rates())
    rates.push_back({rate(stage_.schedule, base.lr, stretch) * state_.rate_scale,
                     rate(stage_.schedule, base.others, stretch) * state_.rate_scale});
  return rates;
}

PendingStep Trainer::optimizer_step(const LoadedPack& last, const StepTotals& totals) {
  const Cursor after = with_failures(last.after, totals.failed_decodes - last.failed_decodes);
  loader_->check(after);
  context_.ranks.enter("optimizer", stage_.name, steps_begun());
  const Assembly step = std::move(*assembly_);
  assembly_.reset();
  gradients_->reduce_gradients();
  if (faults_.before_step) faults_.before_step(stage_.name, steps_begun(), model_.model->parameters());
  // Samples that proved broken after the step was put together are in its counts, and not in the gradient.
  const double whole = totals.counted > 0 ? step.counts.all_terms() / totals.counted : 1;
  if (model_.quantized) model_.quantized->pass_gradients();
  const auto step_rates = rates(step.counts, after);
  model_.optimization->set_momentum(last.step);
  // The device itself finds whether the step may be applied; the host reads that once all is on its way.
  model_.with_original_weights(QuantizedWeights::Which::trained, [&] {
    model_.optimization->step(step_rates, whole / observer_.loss_scale(), plan::common(stage_.optimizer).clip,
                              gradients_->sums());
  });
  times_.add_elapsed("optimizer");
  return {after,
          totals.used,
          totals.flops,
          step_rates,
          totals.used_rows,
          totals.all_rows,
          step.packing,
          gradients_->has_measured_attention(),
          AsyncReadback({model_.optimization->sums(), model_.optimization->norm(), gradients_->attention_entropy()})};
}

// What follows the step looks at the state as it is then, or changes it.
bool Trainer::must_observe_now() const {
  const int64_t step = steps_begun();
  const auto due = [&](int64_t every) { return every > 0 && step % every == 0; };
  return !observes_late_ || due(context_.plan.checkpoint.every) || due(stage_.evaluation.every) || control_.due(step);
}

bool Trainer::observe() {
  if (!pending_) return true;
  const PendingStep step = *std::exchange(pending_, std::nullopt);
  if (!std::exchange(reported_active_, true)) report_active(step);
  context_.ranks.wait_for_device(true); // for its numbers
  const auto trouble = observer_.observe(step, *model_.optimization, times_);
  context_.ranks.wait_for_device(false);
  if (trouble)
    if (const auto back_at = checkpoints_.roll_back(*trouble)) {
      observer_.begin_anew();
      state_.guard.rolled_back_to = *back_at;
    }
  show_progress();
  return conclude();
}

bool Trainer::conclude() {
  if (is_due(stage_.evaluation.every) && !evaluate()) return true;
  bool continues = true, saves = is_due(context_.plan.checkpoint.every);
  if (lacks_control()) continues = follow_control(saves);
  if (is_logged(state_.step)) observer_.write_interval(times_);
  times_.add_elapsed("metrics");
  const bool in_trouble = state_.guard.in_a_row > 0; // what is saved now may be what is wrong
  if (saves && continues && !in_trouble) save();
  return continues;
}

// False: the stage is to end here.
bool Trainer::follow_control(bool& saves) {
  auto numbers = observer_.interval().values();
  numbers.insert(state_.evaluation.begin(), state_.evaluation.end());
  numbers["step"] = static_cast<double>(state_.step);
  numbers["tokens"] = numbers["text_tokens"]; // its name in recipes written for earlier versions
  bool continues = true;
  std::vector<plan::Action> actions;
  try {
    actions = control_.answer(state_.step, numbers, state_.memory);
  } catch (const Error&) {
    save_before_failure();
    throw;
  }
  state_.controlled_at = state_.step;
  for (const plan::Action& action : actions) {
    if (const auto* scale = std::get_if<plan::ScaleRate>(&action)) {
      state_.rate_scale *= scale->factor;
      context_.event(stage_.name, state_.step, "control", fmt::format("learning rates times {:g}", scale->factor));
    } else if (std::holds_alternative<plan::Save>(action)) {
      saves = true;
    } else {
      context_.event(stage_.name, state_.step, "control", "the stage ends here");
      continues = false;
    }
  }
  return continues;
}

// Plugins are chosen when a step first meets a shape: they are known now.
void Trainer::report_active(const PendingStep& first) {
  const auto& operations = operations_->choices();
  const auto precision = product_precision(context_.plan.precision, context_.device, operations);
  if (auto peak = peak_flops(context_.device, precision))
    observer_.interval().set_peak(*peak * static_cast<double>(context_.ranks.count()));
  PackingStatistics packing = first.packing;
  if (first.all_rows > 0)
    packing.padding_share = 1 - static_cast<double>(first.used_rows) / static_cast<double>(first.all_rows);
  const ActiveParts parts{operations, model_.optimization->choices(), data_.packer(), packing,
                          operations_->did_without_fp8()};
  for (const std::string& line : active_lines(context_.plan, stage_, context_.device, parts))
    if (context_.registry.is_first_occurrence(line)) log_info("{}", line);
  warn_of_chats(stage_, data_.tokenizer(), model_.model->config().decoder);
}

bool Trainer::evaluate() {
  if (!evaluator_ || state_.evaluated_at == state_.step) return true;
  if (rollouts_) rollouts_->release_memory(); // evaluations take their own
  context_.ranks.enter("evaluation", stage_.name, state_.step);
  std::vector<evaluation::Result> results;
  try {
    if (faults_.before_evaluation) faults_.before_evaluation(stage_.name, state_.step);
    results = evaluated();
  } catch (const StopInEvaluation&) {
    log_info("{}, step {}: asked to stop, the evaluation follows when the run goes on", stage_.name,
             grouped(state_.step));
    return false;
  } catch (const std::exception&) {
    save_before_failure();
    throw;
  }
  state_.evaluated_at = state_.step;
  state_.evaluation = evaluation::values_by_name(results);
  state_.score.reset();
  const auto& best_by = context_.plan.checkpoint.best_by;
  for (const evaluation::Result& result : results) {
    context_.metrics.write(result.record(stage_.name, state_.step));
    log_info("{}, step {}: {}", stage_.name, grouped(state_.step), result.text());
    if (!state_.score && (!best_by || result.set == *best_by)) state_.score = result.quality();
  }
  times_.skip_elapsed("evaluation"); // each result has its own seconds
  return true;
}

// Several ranks share an evaluation, and stop behind it.
std::vector<evaluation::Result> Trainer::evaluated() {
  const auto progress = [&](const evaluation::EvaluationState& state) {
    if (StopSignals::stop_requested() && !context_.ranks.are_several()) throw StopInEvaluation();
    context_.line.note(fmt::format("{}: evaluating {}, {}: {} of {} samples", stage_.name, state.set.name, state.mode,
                                   grouped(state.done), grouped(state.all)));
  };
  const auto evaluate_once = [&] { return evaluator_->evaluate(*model_.model, *operations_, progress); };
  try {
    return evaluate_once();
  } catch (const std::exception& error) {
    device::Runtime* const gpu = device::runtime();
    if (!is_out_of_memory(error) || context_.ranks.are_several() || !gpu || !gpu->drop_graphs()) throw;
  }
  log_info("{}: memory ran out beside that of captured CUDA graphs, which are captured anew", stage_.name);
  return evaluate_once();
}

void Trainer::save() {
  if (checkpoints_.is_saved()) return;
  context_.ranks.enter("checkpoint", stage_.name, state_.step);
  if (faults_.before_checkpoint) faults_.before_checkpoint(stage_.name, state_.step);
  // A score is that of an evaluation since the step at which a checkpoint was last due.
  const int64_t every = context_.plan.checkpoint.every, due_before = every > 0 ? (state_.step - 1) / every * every : 0;
  if (state_.evaluated_at <= due_before) state_.score.reset();
  observer_.interval().add_times(times_);
  checkpoints_.save();
  times_.add_elapsed("checkpoint");
}

// Something failed before anything of its step was applied: the previous steps are not lost. Several ranks, which the
// others do not wait for, have their last checkpoint.
void Trainer::save_before_failure() {
  if (context_.ranks.are_several()) return;
  try {
    observe();
    if (state_.step == 0) return;
    save();
    if (context_.writer.wait())
      log_info("stage {}: step {} is saved; the same command resumes there", stage_.name, state_.step);
  } catch (const std::exception& error) {
    log_warning("stage {}: what was learnt since the last checkpoint is not saved: {}", stage_.name, error.what());
  }
}

void Trainer::show_progress() const {
  report::TrainingProgress progress;
  progress.stage = stage_.name;
  progress.step = state_.step;
  progress.steps = stage_.steps;
  progress.samples = state_.samples;
  progress.all_samples = stage_.samples;
  progress.samples_before = context_.samples_before;
  progress.run_samples = context_.samples;
  progress.tokens = observer_.interval().decoder_tokens();
  progress.seconds = times_.seconds();
  progress.waited = times_.waited();
  progress.loss = observer_.loss();
  progress.lr = observer_.max_rate();
  context_.line.show(progress);
}

} // namespace fvlm::train
