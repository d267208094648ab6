// Evaluator: the evaluation sets of a stage, opened once, and what a model makes of them as often as wanted.
#pragma once
#include "evaluation/result.h"
#include "evaluation/sample_set.h"
#include "evaluation/show.h"
#include "feed/mix_data.h"

#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace fvlm::evaluation {

// How far an evaluation has got.
struct Moment {
  const plan::EvaluationSet& set;
  const std::string& mode;
  int64_t done, all; // samples
};
using EvaluationProgress = std::function<void(const Moment&)>;
// Told of what each sample came to, a set and mode at a time.
using TakeScores = std::function<void(const SampleSet& set, const std::string& mode, const Scores& scores)>;

class Evaluator {
 public:
  // The stage's sets, in packs no larger than its own. The plan outlives it. Throws Error for data that are missing or
  // do not fit their measure. No thread runs between evaluations.
  Evaluator(const plan::Plan& plan, const plan::Stage& stage, Registry& registry,
            const feed::MixDataOptions& options = {});
  // `beta`: of rewards.
  explicit Evaluator(std::vector<std::unique_ptr<SampleSet>> sets, double beta = 0.1);

  const std::vector<std::unique_ptr<SampleSet>>& sets() const { return sets_; }

  // Every set in each of its modes, in the order of the recipe. Without gradients; the model is left as it is.
  std::vector<Result> evaluate(const model::Model& vlm, ops::Operations& ops, const EvaluationProgress& progress = {},
                               const TakeScores& take = {}) const;

  // The samples that each set wants shown.
  void show(const model::Model& vlm, ops::Operations& ops, const ShowRequest& request) const;

  // Where a set measures preferences: from now on results have rewards against this model.
  bool has_preferences() const;
  void cache_reference(const model::Model& vlm, ops::Operations& ops, const EvaluationProgress& progress = {});

 private:
  using Judged = std::pair<const SampleSet*, std::string>;
  static Scores score(const Judged& judged, const model::Model& vlm, ops::Operations& ops,
                      const EvaluationProgress& progress);
  std::vector<std::unique_ptr<SampleSet>> sets_;
  double beta_ = 0.1;
  std::map<Judged, Reference> references_;
};

} // namespace fvlm::evaluation
