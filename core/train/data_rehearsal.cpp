#include "train/data_rehearsal.h"

#include "base/error.h"
#include "base/log.h"
#include "data/stream/quarantine.h"

#include <fmt/format.h>

namespace fvlm::train {
namespace {

constexpr size_t most_told = 10;

} // namespace

CheckedSamples rehearse_samples(const SampleSource& source, const Order& order, const plan::Loader& loader,
                                const std::string& where) {
  CheckedSamples checked =
      check_samples(source, order, rehearsed_samples, static_cast<int>(loader.workers.value_or(0)));
  const int64_t broken = checked.broken();
  const std::string what = fmt::format("{} of the first {} samples are broken:\n  {}", broken, checked.counts.read,
                                       checked.broken_text(most_told));
  if (checked.counts.used == 0 && checked.counts.read > 0) {
    const SkippedSample& first = checked.skipped.front();
    throw Error(ErrorKind::data, "none of the first {} samples can be used:\n  {}", checked.counts.read,
                broken > 0 ? checked.broken_text(most_told) : place_of(first) + ": " + first.reason)
        .at(where)
        .advise("fvlm-engine data check RECIPE lists what is wrong with each");
  }
  if (loader.quarantine.exceeded_by(broken, checked.counts.read))
    throw Error(ErrorKind::data, what)
        .at(where)
        .advise("training would stop there: repair or remove them (fvlm-engine data check RECIPE lists every one), or "
                "raise loader.quarantine.share");
  if (broken > 0) log_warning("{}: {}", where, what);
  return checked;
}

void rehearse_data(const plan::Plan& plan, const StageData& data, Registry& registry) {
  const plan::Stage& stage = data.stage();
  rehearse_samples(data.samples(), data.order(), plan.loader, "stage " + stage.name);
  for (const plan::EvaluationSet& set : stage.evaluation.sets) {
    const feed::MixData mix(plan, set.data, registry, {});
    rehearse_samples(mix.samples(), Order::once(mix.samples().sizes()), plan.loader,
                     fmt::format("stage {}, evaluation set {}", stage.name, set.name));
  }
}

} // namespace fvlm::train
