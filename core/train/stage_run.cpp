#include "train/stage_run.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "train/disk_space.h"
#include "train/labels.h"
#include "train/memory.h"
#include "train/schedule.h"
#include "train/stage_length.h"
#include "train/stop_signals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

namespace fvlm::train {
namespace {

namespace fs = std::filesystem;

double weight_of(const plan::Term& term) {
  return std::visit([](const auto& any) { return any.weight; }, term);
}

} // namespace

StageRun::StageRun(RunContext& context, const plan::Stage& stage, const MakeModel& make_initial, RunState start,
                   const fs::path& checkpoint, const Faults& faults)
    : context_(context), stage_(stage), faults_(faults), folder_(context.folder / stage.name),
      reference_weights_(context.folder, stage), state_(std::move(start)),
      data_(context.plan, stage, context.registry,
            {.quarantine_log = context.folder / "quarantine.log", .device = context.device}),
      interval_(stage, state_, context.device),
      control_(stage, context.plan_hash, context.lua, context.folder / "journal.jsonl"),
      guard_(context.plan.guard, state_.guard), scaler_(context.plan.precision == plan::Precision::fp16, state_.scaler),
      // Where a step may change what the next one begins with, that one waits.
      defers_readback_(device::runtime() && context.plan.speed.overlap_copies && !context.plan.guard.rollback &&
                       context.plan.precision != plan::Precision::fp16) {
  data_.tokenizer().require_fit(context.description.decoder.vocab_size, context.plan.model.tokenizer_folder());
  operations_ = make_operations(context.plan, context.registry, context.device);
  const bool is_new = checkpoint.empty();
  const MakeModel make_empty = [&](const model::ArenaOptions& options) { // for weights of a checkpoint
    return std::make_unique<model::Vlm>(
        model::VlmConfig{context.description.vision, context.description.decoder, context.description.connector},
        options);
  };
  const MakeModel reference = [&](const model::ArenaOptions& options) { // what DPO holds the policy against
    if (is_new || state_.reference.empty()) return make_initial(options);
    if (auto kept = make_empty(options); reference_weights_.restore(*kept, state_.reference)) return kept;
    try {
      return make_initial(options);
    } catch (const Error& error) {
      throw Error(
          ErrorKind::data,
          fmt::format("the weights that the stage '{}' is held against are damaged or missing, and cannot be had "
                      "from where it started: {}",
                      stage.name, error.what()))
          .at(reference_weights_.file().string())
          .advise(reference_weights_.advice());
    }
  };
  auto made = make_stage_model(context.plan, stage, context.registry, context.device,
                               is_new ? make_initial : make_empty, reference);
  vlm_ = std::move(made.vlm);
  optimization_ = std::move(made.optimization);
  if (stage.remembers_reference())
    made.frozen.remembered = std::make_shared<ReferenceMemory>(data_.order(), folder_.path() / "reference.bin");
  if (stage.quantization_aware)
    quantized_ = std::make_unique<QuantizedWeights>(context.plan, context.registry, vlm_->parameters(), context.device);
  if (is_new) {
    state_.stage = stage.name;
    state_.cursor = data_.start();
    optimization_->adopt_values();
  } else {
    if (state_.stage_done) extend();
    if (!state_.stage_done) Composer::check(state_.cursor, data_.batches(), data_.order());
    load_checkpoint(checkpoint, *vlm_, *optimization_);
    saved_at_ = state_.step;
  }
  state_.plan_hash = context.plan_hash;
  state_.run_id = context.run_id;
  if (!state_.stage_done)
    check_room(folder_.path(), checkpoint_bytes(*vlm_, *optimization_),
               kept_checkpoints(context.plan.checkpoint, stage), std::ssize(folder_.steps()));
  if (!stage.evaluation.sets.empty())
    evaluator_ = std::make_unique<evaluation::Evaluator>(context.plan, stage, context.registry);
  for (const Group* group : optimization_->trained())
    for (const ops::Parameter* parameter : group->parameters) {
      const std::string name = directory_name(parameter->name);
      trained_parts_.vision = trained_parts_.vision || name.starts_with("vision.");
      trained_parts_.decoder = trained_parts_.decoder || name.starts_with("decoder.");
      trained_parts_.connector = trained_parts_.connector || name.starts_with("connector.");
    }
  if (made.frozen.reference) frozen_.push_back(made.frozen.reference->config());
  for (const auto& [term, teacher] : made.frozen.teachers) frozen_.push_back(teacher->config());
  replicas_ = std::make_unique<ThreadReplicas>(
      context.plan, stage, *vlm_, *operations_, context.registry,
      most_of(context.plan, stage, data_.batches().capacity, data_.batches().most_samples), made.frozen,
      ThreadReplicas::Size{state_.replicas, context.threads});
  if (stage.prefers() && !state_.stage_done) prepare_reference(made.frozen, reference, is_new);
}

StageRun::~StageRun() = default;

// The plan has more samples than the stage was trained with when it was done: the rest is trained.
void StageRun::extend() {
  const auto rest = Composer::extended(state_.cursor, data_.batches(), data_.order());
  if (!rest) return;
  state_.cursor = *rest;
  state_.stage_done = false;
  log_info("stage {} was done with {} samples and is extended to {}: its schedule continues at {:.0f} %", stage_.name,
           grouped(state_.samples), grouped(stage_.samples),
           100 * static_cast<double>(state_.samples) / static_cast<double>(stage_.samples));
}

// DPO's reference, which is the model as the stage finds it: what is remembered of it is computed, unless it is known.
void StageRun::prepare_reference(const FrozenModels& frozen, const MakeModel& make_reference, bool is_new) {
  auto reference = frozen.reference;
  const auto made = [&]() -> const model::Vlm& {
    if (!reference) reference = is_new ? vlm_ : make_frozen(context_.plan, context_.device, make_reference);
    return *reference;
  };
  const auto reference_changed = [&] {
    const auto found = fingerprint(made().parameters());
    if (found == state_.reference) return false;
    state_.reference = found;
    log_warning("stage {}: the weights that it starts from are not those that it was begun with", stage_.name);
    return true;
  };
  if (is_new) {
    state_.reference = fingerprint(vlm_->parameters());
    // Where all that is wanted of the reference is remembered, nobody makes it again.
    if (!frozen.remembered || (evaluator_ && evaluator_->has_preferences()))
      reference_weights_.keep(vlm_->parameters());
  }
  if (auto* cache = frozen.remembered.get()) {
    const auto open = [&] { cache->open(fmt::format("{}-{}", context_.plan_hash, state_.reference)); };
    open();
    if (!cache->complete() && context_.steps_left != 0) {
      if (reference_changed()) open();
      cache_reference(*cache, made());
    }
  } else if (!state_.reference.empty()) { // older checkpoints do not say
    reference_changed();
  }
  if (evaluator_ && evaluator_->has_preferences()) evaluator_->remember_reference(made(), *operations_);
}

// In packs as the stage will have them: those of its own model are computed in the same order.
void StageRun::cache_reference(ReferenceMemory& cache, const model::Vlm& reference) {
  const auto loader = data_.loader(data_.start());
  report::Moment moment;
  moment.stage = stage_.name + ": reference";
  moment.steps = stage_.steps;
  moment.all_samples = stage_.samples;
  PartTimes times;
  context_.line.show(moment);
  auto loaded = loader->next();
  for (; loaded && !StopSignals::stop_requested(); loaded = loader->next()) {
    const auto& samples = loaded->pack.samples;
    const auto known = [&](const PackedSample& packed) { return cache.contains(packed); };
    if (!std::all_of(samples.begin(), samples.end(), known))
      while (!run_split(loaded->pack, [&](HostPack& part) {
        if (faults_.before_reference) faults_.before_reference(stage_.name, part);
        replicas_->remember(part, reference);
      })) {
      }
    moment.step = loaded->step + loaded->last;
    moment.samples += std::ssize(samples);
    times.spent_on("reference");
    moment.seconds = times.seconds();
    context_.line.show(moment);
    loaded.reset();
  }
  replicas_->end_remembering();
  context_.line.clear();
  cache.write(!loaded);
  log_info("stage {}: the reference's log-probabilities of {} pairs are in {}{}", stage_.name, cache.pairs(),
           folder_.path().string(), loaded ? ", and more are to come" : "");
}

void StageRun::open(const Cursor& from) {
  loader_.reset(); // its memory first
  loader_ = data_.loader(from);
  in_step_ = false;
}

StageEnd StageRun::run() {
  if (state_.stage_done) return StageEnd::done;
  times_ = {}; // how long it took to get here is no step's time
  show();
  if (quantized_) quantized_->quantize();
  const StageEnd end = train_steps();
  if (quantized_) quantized_->restore(QuantizedWeights::Which::all);
  return end;
}

void StageRun::with_original_weights(QuantizedWeights::Which which, const std::function<void()>& work) {
  if (quantized_) quantized_->restore(which);
  work();
  if (quantized_) quantized_->quantize();
}

StageEnd StageRun::train_steps() {
  open(state_.cursor);
  bool ends_here = false;
  while (!ends_here) {
    if (StopSignals::stop_requested() || context_.steps_left == 0) {
      finish_pending_step();
      save();
      save_final();
      return StageEnd::stopped;
    }
    auto loaded = next_pack();
    if (!loaded) break;
    if (!process_pack(*loaded)) {
      loaded.reset();
      open(state_.cursor);
      continue;
    }
    if (!loaded->last) continue;
    PendingStep step = finish_step(*loaded);
    loaded.reset();
    if (context_.steps_left > 0) --context_.steps_left;
    finish_pending_step(); // the one before, while the device is at this one
    pending_step_ = std::move(step);
    if (needs_readback_now()) ends_here = !finish_pending_step();
  }
  finish_pending_step();
  state_.cursor = loader_->cursor(); // with what was skipped behind the last step
  loader_.reset();
  if (!ends_here) warn_of_early_end(stage_, state_.cursor);
  write_interval();
  require_used(state_.cursor, stage_.name);
  evaluate();
  show_samples();
  state_.stage_done = true;
  const SampleCounts counts = sample_counts(state_.cursor);
  context_.metrics.write({"event",
                          stage_.name,
                          state_.step,
                          {{"what", "stage_end"}, {"text", fmt::format("{} steps, {}", state_.step, counts.text())}},
                          numbers_of(counts)});
  log_info("{}: done, {} steps, {}, loss {:.4g}", stage_.name, grouped(state_.step), counts.text(), last_loss_);
  saved_at_ = -1;
  save();
  save_final();
  return StageEnd::done;
}

// Where there is none for a reason, the step under way is told of first.
std::optional<LoadedPack> StageRun::next_pack() {
  try {
    if (faults_.before_data) faults_.before_data();
    auto loaded = loader_->next();
    times_.spent_on(PartTimes::waiting);
    return loaded;
  } catch (const Error&) {
    finish_pending_step();
    throw;
  }
}

bool StageRun::is_logged(int64_t step) const {
  return context_.plan.log_every > 0 && step % context_.plan.log_every == 0;
}

// A pack may be more than the memory holds: it is cut, now and from here on, and its step begins again.
bool StageRun::process_pack(LoadedPack& loaded) {
  if (!in_step_) {
    counts_ = counts_of(stage_, *loaded.of_step);
    used_.clear();
    replicas_->begin_step();
    packing_ = {};
    in_step_ = true;
  }
  if (!loaded.pack.samples.empty()) packing_.add(loaded.pack);
  const double scale = scaler_.scale();
  for (const PackedSample& packed : loaded.pack.samples) used_.push_back(packed.sample);
  try {
    return run_split(loaded.pack, [&](HostPack& part) {
      if (faults_.before_pack) faults_.before_pack(stage_.name, steps_started(), part);
      const bool measures_attention = is_logged(steps_started() + 1) && !replicas_->has_attention_entropy();
      replicas_->take(part, counts_, scale, times_, measures_attention);
    });
  } catch (const UnsupportedCall& refused) {
    if (replicas_->drop(refused)) {
      finish_pending_step();
      return false;
    }
    save_after_failure();
    throw;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::plugin) save_after_failure();
    throw;
  }
}

// A plugin failed before anything of its step was applied: the steps before it are not lost.
void StageRun::save_after_failure() {
  try {
    finish_pending_step();
    if (state_.step == 0) return;
    save();
    context_.writer.wait();
    log_info("stage {}: step {} is saved; the same command resumes there", stage_.name, state_.step);
  } catch (const std::exception& error) {
    log_warning("stage {}: what was learnt since the last checkpoint is not saved: {}", stage_.name, error.what());
  }
}

bool StageRun::run_split(const HostPack& pack, const std::function<void(HostPack& part)>& work) {
  try {
    for (HostPack& part : split_pack(pack, state_.split)) work(part);
    return true;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    finish_pending_step();
    const auto* of_plugin = dynamic_cast<const Error*>(&error);
    const bool is_single_sample = state_.split >= static_cast<int64_t>(pack.samples.size());
    if (is_single_sample && of_plugin && of_plugin->kind() == ErrorKind::plugin) throw; // its own words name it
    if (is_single_sample)
      throw Error(ErrorKind::device, fmt::format("the memory does not hold a single sample: {}", error.what()))
          .at(fmt::format("stage {}, step {}", stage_.name, state_.step))
          .advise("activation_checkpointing, fewer frames or shorter texts need less");
  }
  state_.split *= 2;
  event("out_of_memory", fmt::format("packs are cut into {} from here on", state_.split));
  return false;
}

std::vector<Optimization::Rates> StageRun::rates(const StepCounts& counts, const Cursor& after) const {
  const auto share = [&](int64_t samples) {
    return static_cast<double>(samples) / static_cast<double>(stage_.samples);
  };
  const Stretch stretch{share(after.samples - counts.samples), share(after.samples)};
  std::vector<Optimization::Rates> rates;
  for (const auto& base : optimization_->base_rates())
    rates.push_back({rate(stage_.schedule, base.lr, stretch) * state_.rate_scale,
                     rate(stage_.schedule, base.others, stretch) * state_.rate_scale});
  return rates;
}

StageRun::PendingStep StageRun::finish_step(const LoadedPack& last) {
  in_step_ = false;
  replicas_->reduce_gradients();
  if (faults_.before_step) faults_.before_step(stage_.name, steps_started(), vlm_->parameters());
  // Samples that proved broken after the step was put together are in its counts, and not in the gradient.
  const double held = replicas_->loss_terms(), whole = held > 0 ? counts_.all_terms() / held : 1;
  if (quantized_) quantized_->pass_gradients();
  const auto step_rates = rates(counts_, last.after);
  const at::Tensor sums = replicas_->sums();
  // Whether the step may be applied the device finds by itself; the host reads it when all is on its way.
  with_original_weights(QuantizedWeights::Which::trained, [&] {
    optimization_->step(step_rates, whole / scaler_.scale(), plan::common(stage_.optimizer).clip, sums);
  });
  times_.spent_on("optimizer");
  return {last.after,
          std::ssize(used_) == counts_.samples ? counts_ : counts_of(stage_, used_),
          flops_of(used_),
          step_rates,
          replicas_->used_rows(),
          replicas_->all_rows(),
          packing_,
          replicas_->has_attention_entropy(),
          Late({sums, optimization_->norm(), replicas_->attention_entropy()})};
}

// What follows it looks at the state as it is then, or changes it.
bool StageRun::needs_readback_now() const {
  const int64_t step = steps_started();
  const auto due = [&](int64_t every) { return every > 0 && step % every == 0; };
  return !defers_readback_ || due(context_.plan.checkpoint.every) || due(stage_.evaluation.every) || control_.due(step);
}

bool StageRun::finish_pending_step() {
  if (!pending_step_) return true;
  const PendingStep step = *std::exchange(pending_step_, std::nullopt);
  if (!std::exchange(logged_active_, true)) log_active_backends(step);
  apply_readback(step);
  return after_step();
}

void StageRun::apply_readback(const PendingStep& step) {
  const auto& numbers = step.numbers.read();
  if (step.numbers.mark()) times_.spent_on("device");
  const auto tallies = Learner::tallies(numbers[0]);
  const double norm = numbers[1].item<double>();
  double loss = 0;
  for (size_t term = 0; term < tallies.size(); ++term)
    if (tallies[term].count > 0) loss += weight_of(stage_.objective[term]) * tallies[term].losses / tallies[term].count;

  state_.cursor = step.after;
  ++state_.step;
  state_.samples = step.after.samples;
  state_.text_tokens += step.counts.text_tokens;
  state_.frames += step.counts.frames;
  last_loss_ = loss;
  for (last_lr_ = 0; const Optimization::Rates& rates : step.rates) last_lr_ = std::max(last_lr_, rates.lr);
  if (scaler_.reduce_on_overflow(loss, norm)) return;
  const auto verdict = guard_.check(loss, norm);
  if (verdict == Guard::Verdict::skip || verdict == Guard::Verdict::too_many) {
    event("nonfinite", fmt::format("loss {}, gradient norm {}: the step was not applied", loss, norm));
    if (verdict == Guard::Verdict::too_many)
      roll_back(fmt::format("{} steps in a row had a loss or a gradient that is not finite", state_.guard.in_a_row));
    return;
  }
  scaler_.step_done();
  const auto trained = optimization_->trained();
  std::map<std::string, double> names;
  for (size_t group = 0; group < trained.size(); ++group) names["lr." + trained[group]->name] = step.rates[group].lr;
  interval_.set_rates(std::move(names));
  const std::optional<double> entropy = step.has_entropy ? std::optional(numbers[2].item<double>()) : std::nullopt;
  interval_.add({loss, norm, step.flops, step.counts, tallies, step.used_rows, step.all_rows, entropy});
  if (verdict == Guard::Verdict::spike) {
    event("spike", fmt::format("loss {:.4g}, and {:.4g} is its running mean", loss, state_.guard.mean_loss));
    if (context_.plan.guard.rollback) roll_back("the loss made a leap");
  }
}

// Plugins are chosen when a step first meets a shape: it is known now.
void StageRun::log_active_backends(const PendingStep& first) {
  const auto& operations = operations_->choices();
  const auto precision = product_precision(context_.plan.precision, context_.device, operations);
  interval_.set_peak(peak_flops(context_.device, precision));
  PackingStatistics packing = first.packing;
  if (first.all_rows > 0)
    packing.padding_share = 1 - static_cast<double>(first.used_rows) / static_cast<double>(first.all_rows);
  const ActiveParts parts{operations, optimization_->choices(), data_.packer(), packing};
  for (const std::string& line : active_lines(context_.plan, stage_, context_.device, parts))
    if (context_.registry.is_news(line)) log_info("{}", line);
}

double StageRun::flops_of(const std::vector<std::shared_ptr<const Sample>>& samples) const {
  model::Work work;
  for (const auto& sample : samples) {
    std::vector<int64_t> texts;
    int64_t learnt = 0;
    for (const SampleText& text : sample->texts) {
      texts.push_back(static_cast<int64_t>(text.ids.size()));
      const auto flags = labels(text, stage_);
      learnt += std::count(flags.begin(), flags.end(), true);
    }
    work.add(sample->frames, texts, learnt);
  }
  const auto& terms = stage_.objective;
  const auto coarse = static_cast<size_t>(std::count_if(terms.begin(), terms.end(), plan::is_coarse));
  const double reads = (coarse > 0 ? 1 : 0) + (coarse < terms.size() ? 1 : 0); // of the text
  work.rows *= reads;
  work.pairs *= reads;
  work.labels *= reads;
  const int64_t size = context_.plan.model.image_size, tokens = vlm_->tower().tokens_per_frame(size, size);
  double all = model::flops(vlm_->config(), tokens, work, trained_parts_, stage_.mode);
  for (const auto& config : frozen_) all += model::flops(config, tokens, work, {}, stage_.mode);
  return all;
}

void StageRun::write_interval() {
  if (const auto line = interval_.take(times_)) context_.metrics.write(*line);
}

void StageRun::event(const std::string& what, const std::string& text) {
  log_warning("{}, step {}: {}", stage_.name, state_.step, text);
  context_.metrics.write({"event", stage_.name, state_.step, {{"what", what}, {"text", text}}, {}});
}

bool StageRun::after_step() {
  const auto due = [&](int64_t every) { return every > 0 && state_.step % every == 0; };
  bool continues = true, saves = due(context_.plan.checkpoint.every);
  show();
  if (control_.due(state_.step)) {
    auto numbers = interval_.values();
    numbers["step"] = static_cast<double>(state_.step);
    numbers["tokens"] = numbers["text_tokens"]; // its name in recipes written for earlier versions
    for (const plan::Action& action : control_.answer(state_.step, numbers, state_.memory)) {
      if (const auto* scale = std::get_if<plan::ScaleRate>(&action)) {
        state_.rate_scale *= scale->factor;
        event("control", fmt::format("learning rates times {:g}", scale->factor));
      } else if (std::holds_alternative<plan::Save>(action)) {
        saves = true;
      } else {
        event("control", "the stage ends here");
        continues = false;
      }
    }
  }
  if (is_logged(state_.step)) write_interval();
  times_.spent_on("metrics");
  if (continues && due(stage_.evaluation.every)) evaluate();
  const bool is_skipping = state_.guard.in_a_row > 0; // what is saved now may be what is wrong
  if (saves && continues && !is_skipping) save();
  return continues;
}

void StageRun::evaluate() {
  if (!evaluator_ || state_.evaluated_at == state_.step) return;
  state_.evaluated_at = state_.step;
  const auto& best_by = context_.plan.checkpoint.best_by;
  state_.score.reset();
  evaluated_ = true;
  const auto progress = [&](const evaluation::Moment& moment) {
    context_.line.note(fmt::format("{}: evaluating {}, {}: {} of {} samples", stage_.name, moment.set.name,
                                   evaluation::name_of(moment.mode), grouped(moment.done), grouped(moment.all)));
  };
  const auto results =
      ops::with_next_preference(*operations_, [&] { return evaluator_->evaluate(*vlm_, *operations_, progress); });
  for (const evaluation::Result& result : results) {
    context_.metrics.write(result.record(stage_.name, state_.step));
    log_info("{}, step {}: {}", stage_.name, grouped(state_.step), result.text());
    if (!state_.score && (!best_by || result.set == *best_by)) state_.score = result.quality();
  }
  times_.pass_over(); // each result has its own seconds
}

void StageRun::show_samples() {
  if (evaluator_) evaluator_->show(*vlm_, *operations_, {folder_.path() / "show", stage_.name, state_.step});
}

// Back to the weights of the last checkpoint; the data that led away from them are passed over.
void StageRun::roll_back(const std::string& why) {
  context_.writer.wait();
  const auto last = folder_.newest();
  const bool may = context_.plan.guard.rollback && last && state_.guard.rolled_back_to != *last;
  if (!may)
    throw Error(ErrorKind::diverged, why)
        .at(fmt::format("stage {}, step {}", stage_.name, state_.step))
        .advise(
            last ? fmt::format("the last good checkpoint is {}; a lower learning rate, or guard.rollback = true, may "
                               "help",
                               folder_.of(*last).string())
                 : "the stage has no checkpoint yet, and the same command begins it anew; a lower learning rate or "
                   "a longer warmup may help");
  with_original_weights(QuantizedWeights::Which::all,
                        [&] { load_checkpoint(folder_.of(*last), *vlm_, *optimization_); });
  guard_.reset();
  state_.guard.rolled_back_to = *last;
  event("rollback",
        fmt::format("{}: back to the weights of step {}, on with the data of step {}", why, *last, state_.step));
}

void StageRun::save() {
  if (saved_at_ == state_.step) return;
  if (!evaluated_ && state_.evaluated_at != state_.step) state_.score.reset();
  evaluated_ = false;
  interval_.add_times(times_);
  state_.optimizer_steps = optimization_->steps();
  write_snapshot();
  saved_at_ = state_.step;
  times_.spent_on("checkpoint");
}

// Of the state as it is, with the metrics that are on disk by now.
void StageRun::write_snapshot() {
  const auto position = context_.metrics.flush();
  state_.metrics_bytes = position.metrics;
  state_.events_bytes = position.events;
  with_original_weights(QuantizedWeights::Which::all, [&] {
    context_.writer.write(folder_, snapshot(context_.description, *vlm_, *optimization_, state_));
  });
}

// A stage ends, and a run stops, only with its last checkpoint on disk. A folder that cannot be made and a disk that is
// full may get well again; who asks the run to stop does not wait for that.
void StageRun::save_final() {
  using namespace std::chrono;
  const auto until = steady_clock::now() + context_.write_patience;
  milliseconds pause(1000);
  while (!context_.writer.wait()) {
    const auto rest = duration_cast<milliseconds>(until - steady_clock::now());
    if (rest <= milliseconds(0) || StopSignals::stop_requested())
      throw Error(ErrorKind::stopped, fmt::format("the last checkpoint of stage '{}', step {}, is not on disk: {}",
                                                  stage_.name, state_.step, context_.writer.why_not()))
          .at(folder_.of(state_.step).string())
          .advise(fmt::format("correct that, and start the same command again: it {}", describe_next_start()));
    pause = std::min(pause, rest);
    log_warning("stage '{}' ends when its last checkpoint is on disk; trying again in {}, for {} at most", stage_.name,
                human_duration(duration<double>(pause).count()), human_duration(duration<double>(rest).count()));
    for (const auto next = steady_clock::now() + pause; steady_clock::now() < next && !StopSignals::stop_requested();)
      std::this_thread::sleep_for(std::min(pause, milliseconds(50)));
    pause = std::min(2 * pause, milliseconds(30000));
    write_snapshot();
  }
}

// What the same command does now.
std::string StageRun::describe_next_start() const {
  const auto steps = folder_.steps();
  return steps.empty() ? fmt::format("begins the stage '{}' anew, which has no checkpoint yet", stage_.name)
                       : fmt::format("resumes from {}", folder_.of(steps.back()).string());
}

void StageRun::show() const {
  report::Moment moment;
  moment.stage = stage_.name;
  moment.step = state_.step;
  moment.steps = stage_.steps;
  moment.samples = state_.samples;
  moment.all_samples = stage_.samples;
  moment.samples_before = context_.samples_before;
  moment.run_samples = context_.samples;
  moment.tokens = state_.decoder_tokens(stage_.texts());
  moment.seconds = times_.seconds();
  moment.waited = times_.waited();
  moment.loss = last_loss_;
  moment.lr = last_lr_;
  context_.line.show(moment);
}

} // namespace fvlm::train
