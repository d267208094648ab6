#include "train/run.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/text.h"
#include "budget/frame_rows.h"
#include "model/loading.h"
#include "model/weights/resolve_model.h"
#include "ops/host_memory.h"
#include "plugin/active_call.h"
#include "recipe/names_stage.h"
#include "recipe/positions.h"
#include "train/context_parallel.h"
#include "train/data_rehearsal.h"
#include "train/initial_model.h"
#include "train/memory_packing.h"
#include "train/optimization.h"
#include "train/rank_view.h"
#include "train/resume.h"
#include "train/run_folder.h"
#include "train/stage_files.h"
#include "train/stage_length.h"
#include "train/stop_signals.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <unistd.h>
#include <utility>

namespace fvlm::train {
namespace {

// Ranks that share a sequence exchange the keys of all of it, and plugins attend to them.
void require_plain_attention(const ModelDescription& description) {
  for (const DecoderConfig& decoder : description.decoders()) {
    if (decoder.attn_logit_softcapping > 0)
      throw Error(ErrorKind::usage, "--context-parallel: the decoder's attention bounds its scores, which ranks that "
                                    "share sequences do not")
          .advise("train it without --context-parallel");
    if (decoder.has_windows())
      throw Error(ErrorKind::usage,
                  "--context-parallel: layers of the decoder attend to the last {} rows alone, and "
                  "ranks share the attention to all rows",
                  decoder.sliding_window)
          .advise("train it without --context-parallel");
    if (decoder.convolutions() + decoder.delta_rules() > 0)
      throw Error(ErrorKind::usage,
                  "--context-parallel: layers of the decoder have a convolution or a delta rule, which reads rows that "
                  "another rank has")
          .advise("train it without --context-parallel");
  }
}

void require_positions(const recipe::Resolved& resolved, const ModelDescription& description) {
  for (const DecoderConfig& decoder : description.decoders())
    recipe::require_positions(resolved, decoder.max_position_embeddings,
                              budget::most_rows_per_frame(resolved.plan.model));
}

// A function that rewards answers shows its mistakes before anything is trained.
void try_rewards(const std::vector<const plan::Stage*>& stages, const std::shared_ptr<recipe::Sandbox>& lua) {
  for (const plan::Stage* stage : stages)
    if (const plan::Rollouts* rollouts = stage->rollouts()) const Rewards tried(*rollouts, lua);
}

namespace fs = std::filesystem;

class Run {
 public:
  Run(const recipe::Resolved& resolved, const TrainRequest& request, Registry& registry)
      : resolved_(resolved), plan_(resolved.plan), request_(request), registry_(registry),
        ranks_(request.ranks ? *request.ranks : alone_) {}

  TrainReport train() {
    const double started = steady_seconds();
    const auto stages = wanted_stages();
    require_equal_views(ranks_, resolved_, registry_, request_.device, request_.zero);
    if (ranks_.context_count() > 1) require_context_parallel(plan_, stages);
    try_rewards(stages, resolved_.lua);
    const Place place = open(stages);
    const auto metrics =
        leads() ? std::make_unique<report::MetricsLog>(
                      request_.folder, report::Position{place.state.metrics_bytes, place.state.events_bytes})
                : std::make_unique<report::MetricsLog>();
    report::ProgressLine line(leads() ? STDERR_FILENO : -1);
    const auto description = described(place);
    CheckpointWriter writer(plan_.checkpoint, &ranks_, request_.faults.before_part);
    ThreadReplicas::Size replicas = request_.replicas.value_or(choose_replicas(description, request_.device));
    replicas.parts = std::stoll(ranks_.from_first(std::to_string(replicas.parts)));
    if (ranks_.context_count() > 1) replicas = {}; // as replicas would call the ring in any order
    RunContext context{plan_,
                       resolved_.hash,
                       request_.folder,
                       registry_,
                       request_.device,
                       ranks_,
                       request_.zero,
                       description,
                       resolved_.lua,
                       *metrics,
                       line,
                       writer,
                       *sources_,
                       replicas.threads,
                       request_.max_steps,
                       request_.write_patience,
                       opened_.record.id,
                       request_.allow_plan_change};
    context.left_by = [&](const std::string& stage, const model::ArenaOptions& options) {
      return make(context.description, stage, options);
    };
    std::optional<StepTrace> trace;
    if (request_.profile && leads()) context.trace = &trace.emplace(*request_.profile, request_.folder / "trace.json");
    const StopSignals signals;
    TrainReport report;
    for (size_t i = 0; i < place.stage; ++i) context.samples_before += stages[i]->samples;
    const auto to_train = counted(place, stages, description, replicas.parts);
    context.samples = context.samples_before;
    for (const plan::Stage& stage : to_train) context.samples += stage.samples;
    RunState state = place.state;
    if (state.replicas == 0 || ranks_.context_count() > 1) state.replicas = replicas.parts;
    for (size_t i = place.stage; i < stages.size(); ++i) {
      const plan::Stage& stage = to_train[i - place.stage];
      const fs::path checkpoint = i == place.stage ? place.checkpoint : fs::path();
      const bool begins = i == 0 && request_.from;
      const MakeModel begin = [&](const model::ArenaOptions& options) {
        return make(context.description, begins ? request_.from->string() : stage.from, options);
      };
      if (checkpoint.empty()) state = stage_begins(state);
      Trainer run(context, stage, begin, state, checkpoint, request_.faults);
      if (i == place.stage && folder_) {
        folder_->write(opened_, resolved_);
        record_changes(place, *metrics);
      }
      if (folder_) folder_->write_parameters(stage.name, budget::group_lines(plan_.model, stage, description));
      const int64_t before = run.state().step;
      const StageEnd end = run.run();
      line.clear();
      state = run.state();
      take_state(report, state, before);
      report.checkpoint = writer.last_good().empty() ? checkpoint : writer.last_good();
      report.stopped = end == StageEnd::stopped;
      if (report.stopped) break;
      context.samples_before += stage.samples;
      metrics->flush();
      write_report();
    }
    metrics->flush();
    if (trace) trace->report();
    report.seconds = steady_seconds() - started;
    return report;
  }

  // Where train() would begin, in words. Throws what it would throw before its first stage.
  std::string start() {
    const auto stages = wanted_stages();
    refuse_other_content(request_.folder);
    opened_ = read_run_folder(request_.folder, resolved_);
    const bool is_known = !opened_.record.id.empty();
    const Place place = request_.resume ? checkpoints_.named(*request_.resume, stages) : checkpoints_.peek(stages);
    check_change(place, stages, true);
    if (!place.checkpoint.empty())
      return fmt::format("the run would resume at stage {}, step {} ({})", place.state.stage, grouped(place.state.step),
                         place.checkpoint.string());
    return fmt::format("{} at stage {}, step 0, in {}",
                       is_known ? "the run has no checkpoint of these stages: it would start" : "the run would start",
                       stages[place.stage]->name, request_.folder.string());
  }

  // To the log alone: who started the run says it on the terminal. Nothing before the folder was opened, and nothing
  // stays of a run that has not started. And to the other ranks, which cannot go on without this one.
  void log_failure(const std::string& text) {
    if (log_) log_->write(LogLevel::error, text);
    ranks_.report_failure(text);
    if (folder_) folder_->remove_unstarted(plan_);
  }

 private:
  bool leads() const { return ranks_.is_first(); }

  // The first rank opens the run's folder, alone: it decides where the others start, too.
  Place open(const std::vector<const plan::Stage*>& stages) {
    ranks_.enter("opening the run's folder");
    if (!leads()) {
      opened_.record.id = ranks_.from_first("");
      Place place;
      place.stage = std::stoull(ranks_.from_first(""));
      place.checkpoint = ranks_.from_first("");
      place.state = RunState::parse(ranks_.from_first(""), "the first rank's state");
      return place;
    }
    folder_.emplace(request_.folder);
    opened_ = folder_->open(resolved_);
    log_.emplace(request_.folder / "log.txt");
    crashes_.emplace(request_.folder / "log.txt");
    const Place place = request_.resume ? checkpoints_.named(*request_.resume, stages) : checkpoints_.newest(stages);
    const bool is_known = !opened_.record.id.empty();
    if (opened_.record.id.empty())
      opened_.record.id = place.state.run_id.empty() ? RunRecord::new_id() : place.state.run_id;
    check_change(place, stages);
    const auto to_begin = stages.begin() + static_cast<int64_t>(place.stage) + (place.checkpoint.empty() ? 0 : 1);
    require_stage_files(resolved_, {to_begin, stages.end()},
                        {.run = request_.folder, .starts_elsewhere = request_.from && place.checkpoint.empty()});
    announce(place, *stages[place.stage], is_known);
    const bool is_last = place.stage + 1 == stages.size();
    if (request_.from && !place.checkpoint.empty()) announce_unused(*request_.from, place.state.stage_done && is_last);
    if (request_.resume) checkpoints_.set_aside_behind(place.state);
    checkpoints_.link();
    ranks_.from_first(opened_.record.id);
    ranks_.from_first(std::to_string(place.stage));
    ranks_.from_first(place.checkpoint.empty() ? "" : fs::absolute(place.checkpoint).string());
    ranks_.from_first(place.state.text());
    return place;
  }

  // The stages from `place` on, with the numbers that their data and the memory decide.
  std::vector<plan::Stage> counted(const Place& place, const std::vector<const plan::Stage*>& stages,
                                   const ModelDescription& description, int64_t replicas) {
    const MemoryPacking memory(plan_, description, registry_, ranks_,
                               {request_.device, request_.memory, request_.zero, replicas});
    std::vector<plan::Stage> to_train;
    for (size_t i = place.stage; i < stages.size(); ++i) {
      const bool has_begun = i == place.stage && !place.checkpoint.empty();
      to_train.push_back(memory.with_pack(with_length(plan_, *stages[i]), opened_.record.packs,
                                          has_begun || opened_.differences.empty()));
    }
    return to_train;
  }

  // The model of the plan, whose base, if it has one, has to be that of the checkpoint. Both are sources of weights.
  ModelDescription described(const Place& place) {
    ModelDescription description = describe(plan_);
    description.seal_bases();
    require_positions(resolved_, description);
    if (ranks_.context_count() > 1) require_plain_attention(description);
    sources_.emplace(description);
    if (!place.checkpoint.empty()) {
      const auto directory = ModelDirectory::open(place.checkpoint);
      require_same_base(directory, description);
      sources_->add(directory);
    }
    return description;
  }

  void write_report() const {
    if (!request_.write_report || !leads()) return;
    try {
      request_.write_report(request_.folder);
    } catch (const Error& error) { // the run is worth more than its report
      log_warning("no report: {}\n  `fvlm-engine report {}` makes it later", error.text(), request_.folder.string());
    }
  }

  std::vector<const plan::Stage*> wanted_stages() const {
    std::vector<const plan::Stage*> stages;
    for (const plan::Stage& stage : plan_.stages)
      if (!request_.stage || stage.name == *request_.stage) stages.push_back(&stage);
    return stages;
  }

  // A changed plan has to be allowed, to have something to train, and to leave the trained samples as they were.
  // Whoever goes back to an earlier checkpoint has to have the data that it read. All this is known before anything is
  // changed.
  void check_change(const Place& place, const std::vector<const plan::Stage*>& stages, bool is_dry_run = false) const {
    const bool changed = !opened_.differences.empty();
    if (!place.checkpoint.empty() && (changed || request_.resume || is_dry_run)) check_data(place, stages);
    if (changed && !request_.allow_plan_change)
      throw Error(ErrorKind::usage, "the run was begun with another plan")
          .at(request_.folder.string())
          .advise("--allow-plan-change resumes with the new one; --run-dir trains into another folder\n" +
                  opened_.differences);
  }

  void check_data(const Place& place, const std::vector<const plan::Stage*>& stages) const {
    const plan::Stage& planned = *stages[place.stage];
    const plan::Stage stage = with_length(plan_, planned, false); // its samples, where the plan has epochs
    const StageData data(plan_, stage, registry_, {.device = request_.device});
    const bool done = place.state.stage_done;
    const bool matches = Composer::matches(place.state.cursor, data.batches(), data.order());
    if (!done && !matches) refuse_another_length(place.state, stage, data);
    if (!done && !opened_.differences.empty() && !matches)
      throw Error(ErrorKind::usage,
                  "the run was begun with another plan, and its stage '{}' cannot be resumed at step {} with this one: "
                  "other shards, weights, samples, seed or batch give other samples",
                  stage.name, grouped(place.state.step))
          .at(request_.folder.string())
          .advise("undo the change, or train into another folder with --run-dir; --allow-plan-change does not help\n" +
                  opened_.differences);
    if (!done) {
      Composer::check(place.state.cursor, data.batches(), data.order());
      RunState state = place.state;
      adopt_data(state, data, request_.folder, request_.allow_plan_change);
    }
    if (!opened_.before) return;
    const bool extends = done && Composer::extended(place.state.cursor, data.batches(), data.order());
    for (const plan::Stage& trained : plan_.stages) {
      if (&trained == &planned && (extends || !done)) break;
      refuse_other_samples(trained);
      if (&trained == &planned) break;
    }
    if (done && !extends && place.stage + 1 == stages.size())
      throw Error(ErrorKind::usage, "every stage is done, and the new plan trains nothing more")
          .at(request_.folder.string())
          .advise("more `samples` or `epochs` of the last stage extend it; --run-dir trains into another folder");
  }

  // Of a stage under way, whose number of samples decides in which order they are read.
  void refuse_another_length(const RunState& state, const plan::Stage& stage, const StageData& data) const {
    if (!opened_.before) return;
    for (const plan::Stage& planned : opened_.before->stages) {
      if (planned.name != stage.name) continue;
      const int64_t before = with_length(*opened_.before, planned, false).samples;
      const auto order = data.order().of_length(before);
      if (before == stage.samples || !order || !Composer::matches(state.cursor, data.batches(), *order)) return;
      throw Error(ErrorKind::usage,
                  "stages.{}.samples was {} and is {}, and the stage is under way, at step {}: its number of samples "
                  "decides in which order they are read",
                  stage.name, grouped(before), grouped(stage.samples), grouped(state.step))
          .at(request_.folder.string())
          .advise(
              "train the stage to its end with {} samples, and then, with --allow-plan-change, on with more, as long "
              "as it is the last stage trained; or train into another folder with --run-dir",
              grouped(before));
    }
  }

  // `is_known`: the folder had a run before this process.
  void announce(const Place& place, const plan::Stage& stage, bool is_known) const {
    if (!opened_.differences.empty()) log_warning("resumes with another plan:\n{}", opened_.differences);
    if (!place.checkpoint.empty())
      log_info("resumes at stage {}, step {} ({})", place.state.stage, place.state.step, place.checkpoint.string());
    else if (is_known && place.state.stage.empty())
      log_warning("{}: the run has no checkpoint to resume from; stage {} starts from its first step",
                  request_.folder.string(), stage.name);
  }

  // `is_complete`: the run has nothing to train, unless its last stage is extended.
  void announce_unused(const fs::path& from, bool is_complete) const {
    if (is_complete && opened_.differences.empty())
      log_warning(
          "{}: every stage is already complete, so that nothing starts from {} (--from)\n  --run-dir trains into "
          "another folder",
          request_.folder.string(), from.string());
    else
      log_info("the run has begun already, so that nothing starts from {} (--from)", from.string());
  }

  static std::string length_of(const plan::Stage& stage) {
    return stage.samples > 0 ? fvlm::counted(stage.samples, "sample")
                             : fvlm::counted(stage.epochs.value_or(0), "epoch");
  }

  void refuse_other_samples(const plan::Stage& trained) const {
    for (const plan::Stage& before : opened_.before->stages)
      if (before.name == trained.name && before.samples != trained.samples)
        throw Error(ErrorKind::usage,
                    "stages.{} had {} and has {}, and the stage is done: only the last stage that was trained "
                    "can be extended, where it read all its samples and the mix's weights are constant",
                    trained.name, length_of(before), length_of(trained))
            .at(request_.folder.string())
            .advise("--run-dir trains into another folder; this one is as it was");
  }

  // In metrics, behind the checkpoint: whoever resumes there once more writes the same lines again.
  void record_changes(const Place& place, report::MetricsLog& metrics) const {
    if (place.checkpoint.empty()) return;
    for (const std::string& change : opened_.record.changes_since(place.state.plan_hash))
      metrics.write({"event", place.state.stage, place.state.step, {{"what", "plan_change"}, {"text", change}}, {}});
  }

  // `before`: the step at which this process took the stage up.
  static void take_state(TrainReport& report, const RunState& state, int64_t before) {
    report.stage = state.stage;
    report.step = state.step;
    report.samples = state.samples;
    report.text_tokens = state.text_tokens;
    report.steps += state.step - before;
  }

  static RunState stage_begins(const RunState& before) {
    RunState state;
    state.metrics_bytes = before.metrics_bytes;
    state.events_bytes = before.events_bytes;
    state.split = before.split;
    state.replicas = before.replicas;
    return state;
  }

  std::unique_ptr<model::Model> make(const ModelDescription& description, const std::string& from,
                                     const model::ArenaOptions& options) {
    if (from == "model") return make_model(description, static_cast<uint64_t>(plan_.seed), options);
    const auto directory = ModelDirectory::open(resolve_model(folder_of(from)));
    sources_->add(directory);
    return make_from(directory, description, static_cast<uint64_t>(plan_.seed), options);
  }

  // A stage of this run by its name: what it left; or else a path.
  fs::path folder_of(const std::string& from) const {
    return plan::names_stage(plan_, from) ? checkpoints_.finished(from) : fs::path(from);
  }

  std::optional<RunFolder> folder_; // of the first rank
  std::optional<LogFile> log_;
  std::optional<CrashLog> crashes_;
  const dist::Ranks alone_;
  const recipe::Resolved& resolved_;
  const plan::Plan& plan_;
  const TrainRequest& request_;
  Registry& registry_;
  const dist::Ranks& ranks_;
  OpenedRun opened_;
  std::optional<WeightSources> sources_;
  // Whether a checkpoint is of one of the run's plans the first rank has found out for all.
  RunCheckpoints checkpoints_{plan_, request_.folder, opened_.record, request_.allow_plan_change || !leads()};
  std::string previous_;
  std::shared_ptr<model::Model> previous_model_;
};

} // namespace

TrainReport train(const recipe::Resolved& resolved, const TrainRequest& request, Registry& registry) {
  const c10::InferenceMode without_autograd; // the tape is ours
  ops::keep_freed_memory();
  Run run(resolved, request, registry);
  try {
    return run.train();
  } catch (const Error& error) {
    run.log_failure(error.text());
    throw;
  } catch (const std::exception& error) {
    run.log_failure(error.what());
    throw;
  }
}

std::string planned_start(const recipe::Resolved& resolved, const TrainRequest& request, Registry& registry) {
  return Run(resolved, request, registry).start();
}

void rehearse(const recipe::Resolved& resolved, const TrainRequest& request, Registry& registry) {
  const c10::InferenceMode without_autograd;
  ModelDescription description = describe(resolved.plan);
  description.seal_bases();
  require_positions(resolved, description);
  const dist::Ranks alone;
  const MemoryPacking memory(resolved.plan, description, registry, alone,
                             {request.device, request.memory, 0, choose_replicas(description, request.device).parts});
  auto packs = RunRecord::read(request.folder).packs;
  std::optional<fs::path> first_from = request.from;
  for (const plan::Stage& planned : resolved.plan.stages) {
    if (request.stage && planned.name != *request.stage) continue;
    const plan::Stage stage = with_length(resolved.plan, planned);
    memory.with_pack(stage, packs, true);
    const StageData data(resolved.plan, stage, registry, {.device = request.device});
    data.check_vocabulary_sizes(resolved.plan.model, description.decoders());
    rehearse_data(resolved.plan, data, registry);
    const evaluation::Evaluator sets(resolved.plan, stage, registry);
    try_rewards({&stage}, resolved.lua);
    const auto bare = make_bare(description, {});
    model::Model& model = *bare;
    auto from = std::exchange(first_from, std::nullopt);
    if (!from && stage.from.find('/') != std::string::npos) from = stage.from;
    if (from) {
      const auto directory = ModelDirectory::open(resolve_model(*from));
      require_same_base(directory, description);
      if (!description.has_adapters()) model::load_weights(directory, model);
    }
    for (const plan::Term& term : stage.objective)
      if (const std::string* teacher = term->teacher(); teacher && !plan::names_stage(resolved.plan, *teacher)) {
        const fs::path folder = resolve_model(*teacher);
        check_teacher(resolved.plan, stage, *term, folder, model::config_of(ModelDirectory::open(folder).description()),
                      model.config());
      }
    require_optimizer(resolved.plan, stage, registry, model.parameters(),
                      groups_of(resolved.plan.model, stage, model.parameters()), request.device);
    if (stage.quantization_aware)
      const QuantizedWeights chosen(resolved.plan, registry, model.parameters(), request.device);
  }
}

} // namespace fvlm::train
