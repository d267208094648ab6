#include "train/stage_reading.h"

#include "base/part_times.h"
#include "train/stop_signals.h"

#include <algorithm>

namespace fvlm::train {

bool read_stage(RunContext& context, const plan::Stage& stage, const StageData& data, const std::string& what,
                const std::function<bool(const PackedSample&)>& known,
                const std::function<void(const HostPack&)>& take) {
  const auto loader = data.loader_of_all_ranks();
  report::TrainingProgress moment;
  moment.stage = stage.name + ": " + what;
  moment.steps = stage.steps;
  moment.all_samples = stage.samples;
  PartTimes times;
  context.line.show(moment);
  auto loaded = loader->next();
  for (; loaded && !StopSignals::stop_requested(); loaded = loader->next()) {
    const auto& samples = loaded->pack.samples;
    if (!std::ranges::all_of(samples, known)) take(loaded->pack);
    moment.step = loaded->step + loaded->last;
    moment.samples += std::ssize(samples);
    times.add_elapsed(what.c_str());
    moment.seconds = times.seconds();
    context.line.show(moment);
    loaded.reset();
  }
  context.line.clear();
  return !loaded;
}

} // namespace fvlm::train
