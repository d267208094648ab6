// StageReference: the model that a stage starts from, for the objectives and evaluations that compare with it. Its
// weights are kept in the stage's folder, so that resuming needs no checkpoint of another stage; where
// log-probabilities are enough they are computed once, and the model is let go.
#pragma once
#include "data/stream/loader.h"
#include "evaluation/evaluator.h"
#include "train/reference_weights.h"
#include "train/run_context.h"
#include "train/stage_data.h"
#include "train/stage_model.h"
#include "train/state.h"
#include "train/thread_replicas.h"

#include <functional>
#include <memory>

namespace fvlm::train {

class StageReference {
 public:
  StageReference(RunContext& context, const plan::Stage& stage, RunState& state);

  // The weights that the stage starts from, for a stage that resumes: its own copy, or else what `begin` makes. `bare`:
  // a model for weights to be loaded into.
  std::unique_ptr<model::Model> make(const MakeModel& begin, const MakeModel& bare,
                                     const model::ArenaOptions& options) const;

  // What computes the reference's log-probabilities of a pack.
  using CachePack = std::function<void(const HostPack& pack, const model::Model& reference)>;
  struct Needs {
    const Frozen& frozen;
    std::shared_ptr<model::Model> policy; // that just began, and is its own reference; null: the stage resumes
    MakeModel make;                       // the reference, where it is not there
    evaluation::Evaluator* evaluator;     // null: none
    ops::Operations& operations;
  };
  // Provides all that the stage's objective and evaluations read of the reference.
  void provide(const Needs& needs, const StageData& data, ThreadReplicas& replicas, const CachePack& cache);

 private:
  void fill(ReferenceLogProbCache& cache, const model::Model& reference, const StageData& data,
            ThreadReplicas& replicas, const CachePack& cache_pack);

  RunContext& context_;
  const plan::Stage& stage_;
  RunState& state_;
  ReferenceWeights weights_;
};

} // namespace fvlm::train
