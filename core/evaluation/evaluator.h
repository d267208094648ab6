// Evaluator: opens the evaluation sets of a stage once, and evaluates models on them any number of times.
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

// How far an evaluation has come.
struct EvaluationState {
  const plan::EvaluationSet& set;
  const std::string& mode;
  int64_t done, all; // samples
};
using EvaluationProgress = std::function<void(const EvaluationState&)>;
// Receives the scores of all samples, once for each set and mode.
using ScoreSink = std::function<void(const SampleSet& set, const std::string& mode, const Scores& scores)>;

class Evaluator {
 public:
  // Opens the stage's sets, in packs no larger than the stage's. The plan must outlive the Evaluator. Throws Error for
  // data that is missing or does not fit its measure. No thread runs between evaluations. `ranks`, if any, divide the
  // packs of each set among them, and all come to the same results: every rank evaluates the same model.
  Evaluator(const plan::Plan& plan, const plan::Stage& stage, Registry& registry,
            const feed::MixDataOptions& options = {}, const dist::Ranks* ranks = nullptr);
  explicit Evaluator(std::vector<std::unique_ptr<SampleSet>> sets, plan::PreferenceRewards rewards = {},
                     const dist::Ranks* ranks = nullptr);

  const std::vector<std::unique_ptr<SampleSet>>& sets() const { return sets_; }

  // Evaluates every set in each of its modes, in the order of the recipe, without gradients. The model does not change.
  // Of several decoders, each one's results, and those of their joint answers where the set measures answers.
  std::vector<Result> evaluate(const model::Model& model, ops::Operations& ops, const EvaluationProgress& progress = {},
                               const ScoreSink& take = {}) const;

  // Writes the samples that each set's `show` asks for, see show.h.
  void show(const model::Model& model, ops::Operations& ops, const ShowRequest& request) const;

  // Computes the log-probabilities of a reference model for sets that measure preferences, if has_preferences().
  // Results have rewards against it from then on.
  bool has_preferences() const;
  void cache_reference(const model::Model& model, ops::Operations& ops, const EvaluationProgress& progress = {});

 private:
  void require_modes(const model::Model& model) const;
  using SetAndMode = std::pair<const SampleSet*, std::string>;
  Scores score(const SetAndMode& key, const model::Model& model, ops::Operations& ops,
               const EvaluationProgress& progress, size_t decoder = 0) const;
  std::vector<std::unique_ptr<SampleSet>> sets_;
  plan::PreferenceRewards rewards_;
  const dist::Ranks* ranks_ = nullptr; // null: alone
  std::map<SetAndMode, Reference> references_;
};

} // namespace fvlm::evaluation
