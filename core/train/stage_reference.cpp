#include "train/stage_reference.h"

#include "base/error.h"
#include "train/stage_reading.h"

#include <fmt/format.h>

namespace fvlm::train {

StageReference::StageReference(RunContext& context, const plan::Stage& stage, RunState& state)
    : context_(context), stage_(stage), state_(state), weights_(context.folder, stage) {}

std::unique_ptr<model::Model> StageReference::make(const MakeModel& begin, const MakeModel& bare,
                                                   const model::ArenaOptions& options) const {
  if (state_.reference.empty()) return begin(options);
  if (auto kept = bare(options); weights_.restore(*kept, state_.reference)) return kept;
  try {
    return begin(options);
  } catch (const Error& error) {
    throw Error(ErrorKind::data,
                "the weights that the stage '{}' is held against are damaged or missing, and cannot be had from where "
                "it started: {}",
                stage_.name, error.what())
        .at(weights_.file().string())
        .advise(weights_.advice());
  }
}

void StageReference::provide(const Needs& needs, const StageData& data, ThreadReplicas& replicas,
                             const CachePack& cache_pack) {
  auto reference = needs.frozen.models.reference ? needs.frozen.models.reference : needs.policy;
  const auto made = [&]() -> const model::Model& {
    if (!reference) reference = make_frozen(context_.plan, context_.device, needs.make);
    return *reference;
  };
  const auto has_changed = [&] {
    const auto found = fingerprint(made().parameters());
    if (found == state_.reference) return false;
    state_.reference = found;
    log_warning("stage {}: the weights that it starts from are not those that it was begun with", stage_.name);
    return true;
  };
  ReferenceLogProbCache* cache = needs.frozen.cache.get();
  const bool evaluates = needs.evaluator && needs.evaluator->has_preferences();
  if (needs.policy) {
    state_.reference = fingerprint(needs.policy->parameters());
    // Where all that is needed of the reference is cached, it is never made again.
    if ((!cache || evaluates) && context_.ranks.is_first()) weights_.keep(needs.policy->parameters());
  }
  if (cache) {
    const auto open = [&] { cache->open(fmt::format("{}-{}", context_.plan_hash, state_.reference)); };
    open();
    if (!cache->complete() && context_.steps_left != 0) {
      if (has_changed()) open();
      fill(*cache, made(), data, replicas, cache_pack);
    }
  } else if (!state_.reference.empty()) { // checkpoints of earlier versions do not say
    has_changed();
  }
  if (evaluates) needs.evaluator->cache_reference(made(), needs.operations);
}

void StageReference::fill(ReferenceLogProbCache& cache, const model::Model& reference, const StageData& data,
                          ThreadReplicas& replicas, const CachePack& cache_pack) {
  const bool complete = read_stage(
      context_, stage_, data, "reference", [&](const PackedSample& packed) { return cache.contains(packed); },
      [&](const HostPack& pack) { cache_pack(pack, reference); });
  replicas.finish_caching();
  if (!context_.ranks.is_first()) return; // every rank has all of it
  cache.write(complete);
  log_info("stage {}: the reference's log-probabilities of {} pairs are in {}{}", stage_.name, cache.pairs(),
           (context_.folder / stage_.name).string(), complete ? "" : ", and more are to come");
}

} // namespace fvlm::train
