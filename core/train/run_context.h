// What a run and its stages share.
#pragma once
#include "base/log.h"
#include "data/stream/host_pack.h"
#include "dist/ranks.h"
#include "model/parameters.h"
#include "model/weights/model_directory.h"
#include "plugin/registry.h"
#include "recipe/plan.h"
#include "recipe/sandbox.h"
#include "report/metrics_log.h"
#include "report/progress_line.h"
#include "train/checkpoint_writer.h"
#include "train/step_trace.h"
#include "train/weight_sources.h"

#include <c10/core/Device.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace fvlm::model {
class Model;
}

namespace fvlm::train {

struct RunContext {
  const plan::Plan& plan;
  std::string plan_hash;
  std::filesystem::path folder;
  Registry& registry;
  at::Device device;
  const dist::Ranks& ranks; // the first writes what the run records, the others nothing
  int64_t zero;             // of Sharing
  ModelDescription description;
  std::shared_ptr<recipe::Sandbox> lua;
  report::MetricsLog& metrics;
  report::ProgressLine& line;
  CheckpointWriter& writer;
  const WeightSources& sources;
  int64_t threads = 1;    // that replicas may use
  int64_t steps_left = 0; // that this process may take; negative: any number
  std::chrono::milliseconds write_patience = std::chrono::minutes(10); // of the last checkpoint of a stage
  std::string run_id;
  bool allow_plan_change = false; // and changed data
  // Makes the model that an earlier stage of the run left.
  std::function<std::unique_ptr<model::Model>(const std::string& stage, const model::ArenaOptions& options)> left_by;
  StepTrace* trace = nullptr;              // null: none is recorded
  int64_t samples_before = 0, samples = 0; // planned: of the stages before this one, of all that are to run

  // Into the metrics and, as a warning, into the log.
  void event(const std::string& stage, int64_t step, const std::string& what, const std::string& text) {
    if (!ranks.is_first()) return;
    log_warning("{}, step {}: {}", stage, step, text);
    metrics.write({"event", stage, step, {{"what", what}, {"text", text}}, {}});
  }
};

// What a test does to a run at places that no input reaches. Each may throw.
struct Faults {
  std::function<void()> before_data; // before the trainer waits for a pack
  std::function<void(const std::string& stage, int64_t step, HostPack& pack)> before_pack;
  std::function<void(const std::string& stage, int64_t step, model::Parameters& parameters)> before_step;
  std::function<void(const std::string& stage, const HostPack& pack)>
      before_reference; // or a cached teacher reads the pack
  std::function<void(const std::string&stage, int64_t step)> before_evaluation, before_checkpoint;
  std::function<void(int64_t step)> before_part; // of a checkpoint that several ranks write. [writer thread]
};

} // namespace fvlm::train
