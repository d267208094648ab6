#include "train/stage_teachers.h"

#include "base/error.h"
#include "train/stage_reading.h"

namespace fvlm::train {
namespace {

constexpr std::string_view decoder = "decoder"; // or decoder2: all that a teacher without frames reads of the model

// Of all teachers, in the order of their terms.
std::string identity_of(const RunContext& context, const plan::Stage& stage, const StageModel& model) {
  std::string identity = context.plan_hash;
  for (size_t term = 0; term < stage.objective.size(); ++term) {
    if (!stage.objective[term]->caches_teacher()) continue;
    const auto& parameters = model.frozen.models.teacher(term, *model.model).parameters();
    identity += "-" + (stage.objective[term]->teacher() ? fingerprint(parameters) : fingerprint(parameters, decoder));
  }
  return identity;
}

// Cut where the texts of teachers need more rows than a pack of the stage has.
std::vector<HostPack> packs_of_teachers(const HostPack& pack, int64_t most_rows) {
  std::vector<HostPack> packs;
  int64_t rows = 0;
  for (const PackedSample& packed : pack.samples) {
    const int64_t own = packed.sample->teacher_rows();
    if (packs.empty() || rows + own > most_rows) {
      packs.push_back(pack);
      packs.back().samples.clear();
      rows = 0;
    }
    packs.back().samples.push_back(packed);
    rows += own;
  }
  return packs;
}

} // namespace

void check_cached_teachers(const plan::Stage& stage, const model::Parameters& policy) {
  for (size_t term = 0; term < stage.objective.size(); ++term) {
    if (!stage.objective[term]->caches_teacher() || stage.objective[term]->teacher()) continue;
    for (const ops::Parameter& parameter : policy.all())
      if (parameter.gradient.defined() && parameter.name.starts_with(decoder))
        throw Error(ErrorKind::recipe,
                    "the model is its own teacher, whose hidden states are cached, and this stage trains {}",
                    parameter.name)
            .at("stages.{}.objective[{}].cache_teacher", stage.name, term + 1)
            .advise("freeze every group of the decoder, or leave out cache_teacher");
  }
}

void cache_teachers(RunContext& context, const plan::Stage& stage, const StageModel& model, const StageData& data,
                    ThreadReplicas& replicas, const std::function<void(const HostPack& pack)>& cache_pack) {
  TeacherRowCache& cache = *model.frozen.teacher_cache;
  cache.open(identity_of(context, stage, model));
  if (cache.complete()) return;
  const int64_t most_rows = data.batches().capacity.rows;
  const bool complete = read_stage(
      context, stage, data, "teacher", [&](const PackedSample& packed) { return cache.contains(packed); },
      [&](const HostPack& pack) {
        for (const HostPack& part : packs_of_teachers(pack, most_rows)) cache_pack(part);
      });
  replicas.finish_caching();
  if (!context.ranks.is_first()) return; // every rank has all of it
  cache.write(complete);
  log_info("stage {}: the teacher's hidden states of {} samples are in {}{}", stage.name, cache.samples(),
           (context.folder / stage.name).string(), complete ? "" : ", and more are to come");
}

} // namespace fvlm::train
