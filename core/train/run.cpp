#include "train/run.h"

#include "base/error.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/text.h"
#include "model/loading.h"
#include "ops/host_memory.h"
#include "plugin/call_mark.h"
#include "recipe/positions.h"
#include "train/data_rehearsal.h"
#include "train/initial_model.h"
#include "train/optimization.h"
#include "train/run_folder.h"
#include "train/stage_length.h"
#include "train/stop_signals.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace fvlm::train {
namespace {

namespace fs = std::filesystem;

// Where a run goes on: a stage of the Plan, and the checkpoint of it that is loaded; none: the stage begins.
struct Place {
  size_t stage = 0;
  fs::path checkpoint;
  RunState state;
};

class Run {
 public:
  Run(const recipe::Resolved& resolved, const TrainRequest& request, Registry& registry)
      : resolved_(resolved), plan_(resolved.plan), request_(request), registry_(registry) {}

  TrainReport train() {
    const auto started = std::chrono::steady_clock::now();
    const auto stages = wanted_stages();
    const RunFolder folder(request_.folder);
    const bool is_new_plan = folder.open(resolved_, request_.allow_plan_change);
    log_.emplace(request_.folder / "log.txt");
    const CrashLog crashes(request_.folder / "log.txt");
    const Place place = find_place(stages);
    report::MetricsLog metrics(request_.folder, {place.state.metrics_bytes, place.state.events_bytes});
    if (request_.resume) set_aside_behind(place.state);
    report::ProgressLine line;
    CheckpointWriter writer(plan_.checkpoint);
    const auto description = describe(plan_);
    recipe::require_positions(resolved_, description.decoder.max_position_embeddings);
    const Crew::Size crew = request_.crew.value_or(crew_for(description, request_.device));
    RunContext context{plan_,        resolved_.hash,    request_.folder, registry_, request_.device,
                       description,  resolved_.lua,     metrics,         line,      writer,
                       crew.threads, request_.max_steps};
    const StopSignals signals;
    TrainReport report;
    RunState state = place.state;
    if (state.crew == 0) state.crew = crew.parts;
    for (size_t i = place.stage; i < stages.size(); ++i) {
      const plan::Stage stage = with_length(plan_, *stages[i]);
      const fs::path checkpoint = i == place.stage ? place.checkpoint : fs::path();
      const bool begins = i == 0 && request_.from;
      const MakeModel begin = [&](const model::ArenaOptions& options) {
        return make(context.description, begins ? request_.from->string() : stage.from, options);
      };
      if (checkpoint.empty()) state = stage_begins(state);
      StageRun run(context, stage, begin, state, checkpoint, request_.faults);
      if (is_new_plan && i == place.stage) folder.write_plan(resolved_);
      previous_model_.reset(); // begun from, and no longer needed
      folder.write_parameters(stage.name, budget::group_lines(plan_.model, stage, description));
      const int64_t before = run.state().step;
      const StageEnd end = run.run();
      line.clear();
      state = run.state();
      report.stage = stage.name;
      report.step = state.step;
      report.steps += state.step - before;
      const fs::path written = writer.last_good();
      report.checkpoint = written.empty() ? checkpoint : written;
      previous_ = stage.name;
      previous_model_ = run.model();
      if (end == StageEnd::stopped) {
        report.stopped = true;
        break;
      }
      metrics.flush();
      folder.write_report();
    }
    metrics.flush();
    make_sure_of(writer, report);
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    return report;
  }

  // To the log alone: who started the run says it on the terminal. Nothing before the folder was opened.
  void log_failure(const std::string& text) {
    if (log_) log_->write(LogLevel::error, text);
  }

 private:
  std::vector<const plan::Stage*> wanted_stages() const {
    std::vector<const plan::Stage*> stages;
    for (const plan::Stage& stage : plan_.stages)
      if (!request_.stage || stage.name == *request_.stage) stages.push_back(&stage);
    return stages;
  }

  // The newest checkpoint of the last stage that has one. Where none of them has, a stage before them may: its lines of
  // metrics stay.
  Place find_place(const std::vector<const plan::Stage*>& stages) const {
    if (request_.resume) {
      Place place = place_of(*request_.resume, stages);
      return place;
    }
    refuse_stages_behind(stages);
    for (size_t i = stages.size(); i-- > 0;) {
      const StageFolder folder(request_.folder / stages[i]->name);
      folder.tidy();
      if (const auto step = folder.newest()) return place_of(folder.of(*step), stages);
    }
    for (auto stage = plan_.stages.rbegin(); stage != plan_.stages.rend(); ++stage) {
      const StageFolder folder(request_.folder / stage->name);
      if (const auto step = folder.newest()) return {.state = read_state(folder.of(*step))};
    }
    return {};
  }

  Place place_of(const fs::path& checkpoint, const std::vector<const plan::Stage*>& stages) const {
    verify_checkpoint(checkpoint);
    Place place{0, checkpoint, read_state(checkpoint)};
    const auto stage = std::find_if(stages.begin(), stages.end(),
                                    [&](const plan::Stage* one) { return one->name == place.state.stage; });
    if (stage == stages.end())
      throw Error(ErrorKind::usage,
                  fmt::format("this is a checkpoint of the stage '{}', which is not to be run", place.state.stage))
          .at(checkpoint.string());
    place.stage = static_cast<size_t>(stage - stages.begin());
    log_info("goes on at stage {}, step {} ({})", place.state.stage, place.state.step, checkpoint.string());
    return place;
  }

  // Metrics are one row of lines: a stage cannot be run again with later ones behind it.
  void refuse_stages_behind(const std::vector<const plan::Stage*>& stages) const {
    bool behind = false;
    for (const plan::Stage& stage : plan_.stages) {
      if (behind && !StageFolder(request_.folder / stage.name).steps().empty())
        throw Error(ErrorKind::usage, fmt::format("the run has trained '{}' already, which comes after it", stage.name))
            .at(request_.folder.string())
            .advise("train into another folder: --run-dir");
      behind = behind || &stage == stages.back();
    }
  }

  // Somebody went back to an earlier checkpoint: what was trained behind it has no lines of metrics any more, and
  // nobody is to go on from it.
  void set_aside_behind(const RunState& state) const {
    for (auto stage = plan_.stages.rbegin(); stage != plan_.stages.rend(); ++stage) {
      const bool here = stage->name == state.stage;
      StageFolder(request_.folder / stage->name).set_aside(here ? state.step : -1);
      if (here) return;
    }
  }

  static RunState stage_begins(const RunState& before) {
    RunState state;
    state.metrics_bytes = before.metrics_bytes;
    state.events_bytes = before.events_bytes;
    state.split = before.split;
    state.crew = before.crew;
    return state;
  }

  std::unique_ptr<model::Vlm> make(const ModelDescription& description, const std::string& from,
                                   const model::ArenaOptions& options) const {
    if (from == "model") return make_model(description, static_cast<uint64_t>(plan_.seed), options);
    auto vlm = std::make_unique<model::Vlm>(
        model::VlmConfig{description.vision, description.decoder, description.connector}, options);
    if (from == previous_) {
      for (ops::Parameter& parameter : vlm->parameters().all())
        parameter.value.copy_(previous_model_->parameters().at(parameter.name).value);
      return vlm;
    }
    load_weights(ModelDirectory::open(folder_of(from)), *vlm);
    return vlm;
  }

  // A stage of this run by its name: what it left; or else a path.
  fs::path folder_of(const std::string& from) const {
    const bool is_stage = std::any_of(plan_.stages.begin(), plan_.stages.end(),
                                      [&](const plan::Stage& stage) { return stage.name == from; });
    if (!is_stage) return from;
    const StageFolder folder(request_.folder / from);
    const auto step = folder.newest();
    if (!step || !read_state(folder.of(*step)).stage_done)
      throw Error(ErrorKind::usage, fmt::format("the stage '{}', which this one begins from, is not done", from))
          .at(request_.folder.string())
          .advise(fmt::format("train it first, or name what to begin from: --from PATH"));
    return folder.of(*step);
  }

  // What was learnt last must not be lost with the process.
  static void make_sure_of(CheckpointWriter& writer, const TrainReport& report) {
    if (writer.wait()) return;
    throw Error(ErrorKind::data,
                fmt::format("the checkpoint of stage {}, step {} is not on disk", report.stage, report.step))
        .advise("make room, and start the same command again: it goes on from the checkpoint before");
  }

  std::optional<LogFile> log_;
  const recipe::Resolved& resolved_;
  const plan::Plan& plan_;
  const TrainRequest& request_;
  Registry& registry_;
  std::string previous_;
  std::shared_ptr<model::Vlm> previous_model_;
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

void rehearse(const recipe::Resolved& resolved, const TrainRequest& request, Registry& registry) {
  const c10::InferenceMode without_autograd;
  const ModelDescription description = describe(resolved.plan);
  recipe::require_positions(resolved, description.decoder.max_position_embeddings);
  std::optional<fs::path> first_from = request.from;
  for (const plan::Stage& planned : resolved.plan.stages) {
    if (request.stage && planned.name != *request.stage) continue;
    const plan::Stage stage = with_length(resolved.plan, planned);
    const StageData data(resolved.plan, stage, registry, {.device = request.device});
    data.tokenizer().require_fit(description.decoder.vocab_size, resolved.plan.model.tokenizer_folder());
    rehearse_data(resolved.plan, data, registry);
    const evaluation::Evaluator sets(resolved.plan, stage, registry);
    model::Vlm vlm({description.vision, description.decoder, description.connector}, {});
    auto from = std::exchange(first_from, std::nullopt);
    if (!from && stage.from.find('/') != std::string::npos) from = stage.from;
    if (from) load_weights(ModelDirectory::open(*from), vlm);
    for (const plan::Term& term : stage.objective)
      if (const auto* kl = std::get_if<plan::Kl>(&term))
        check_teacher(*kl, ModelDirectory::open(kl->teacher).description().decoder, description.decoder);
    groups_of(resolved.plan.model, stage, vlm.parameters());
    require_optimizer(resolved.plan, stage, registry, request.device);
    if (stage.quantization_aware)
      const QuantizedWeights chosen(resolved.plan, registry, vlm.parameters(), request.device);
  }
}

} // namespace fvlm::train
