#include "evaluation/evaluator.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/glob.h"
#include "base/log.h"
#include "base/text.h"
#include "data/preprocess.h"
#include "feed/packer.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fvlm::evaluation {
namespace {

namespace fs = std::filesystem;

// In the order in which they are read.
std::vector<fs::path> shards_of(const plan::Source& source) {
  std::vector<fs::path> shards;
  std::set<std::string> seen;
  for (const std::string& pattern : source.patterns())
    for (const std::string& file : match_files(pattern).files)
      if (seen.insert(file).second) shards.push_back(fs::weakly_canonical(file));
  return shards;
}

// The shards of an evaluation set's source that a stage learns from. Where both name the same shards in the same order,
// they may read different samples of them.
std::set<fs::path> learnt_shards(const plan::Source& source, const plan::Mix& learnt) {
  const auto shards = shards_of(source);
  const std::set<fs::path> all(shards.begin(), shards.end());
  std::set<fs::path> both;
  for (const plan::Source& other : learnt.sources) {
    const auto others = shards_of(other);
    if (others == shards && !source.portion().shares_samples_with(other.portion())) continue;
    std::ranges::copy_if(others, std::inserter(both, both.end()),
                         [&](const auto& shard) { return all.contains(shard); });
  }
  return both;
}

// A metric on shards that the model was trained on is not one of held-out data.
void warn_of_learnt_shards(const plan::Plan& plan, const plan::Stage& last, const plan::EvaluationSet& set) {
  std::set<fs::path> all;
  for (const plan::Source& source : set.data.sources)
    for (const fs::path& shard : shards_of(source)) all.insert(shard);
  for (const plan::Stage& stage : plan.stages) {
    std::set<fs::path> both;
    for (const plan::Source& source : set.data.sources) both.merge(learnt_shards(source, stage.data));
    if (!both.empty())
      log_warning(
          "evaluation set {}: {} of its {} shards are trained on in the stage {}, {} the first; its figures are not "
          "those of held-out samples",
          set.name, both.size(), all.size(), stage.name, both.begin()->string());
    if (stage.name == last.name) return;
  }
}

std::unique_ptr<SampleSet> open(const plan::Plan& plan, const plan::EvaluationSet& set, const PackSize& limit,
                                Registry& registry, const feed::MixDataOptions& options) {
  const auto data = std::make_shared<const feed::MixData>(plan, set.data, registry, options);
  OpenedSource source;
  source.samples = {data, &data->samples()};
  source.tokenizer = {data, &data->tokenizer()};
  const auto tokenizers = data->tokenizers();
  for (size_t i = 1; i < tokenizers.size(); ++i) source.further.emplace_back(data, tokenizers[i]);
  source.image_size = plan.model.image_size;
  source.processor = image_processor(plan.model);
  source.mix = set.data;
  source.source_names = data->source_names();
  source.loader = data->loader_options();
  source.packer = [&](const PackSize& capacity) {
    return feed::choose_packer(registry, plan.kernels["packer"], capacity);
  };
  return std::make_unique<SampleSet>(set, std::move(source), limit);
}

plan::PreferenceRewards rewards_of(const plan::Stage& stage) {
  for (const plan::Term& term : stage.objective)
    if (const auto rewards = term->rewards()) return *rewards;
  return {};
}

} // namespace

Evaluator::Evaluator(const plan::Plan& plan, const plan::Stage& stage, Registry& registry,
                     const feed::MixDataOptions& options, const dist::Ranks* ranks)
    : rewards_(rewards_of(stage)), ranks_(ranks && ranks->are_several() ? ranks : nullptr) {
  const PackSize limit{stage.packing.frames.value_or(default_pack.frames),
                       stage.packing.tokens.count.value_or(default_pack.rows)};
  for (const plan::EvaluationSet& set : stage.evaluation.sets) {
    sets_.push_back(open(plan, set, limit, registry, options));
    warn_of_learnt_shards(plan, stage, set);
  }
}

Evaluator::Evaluator(std::vector<std::unique_ptr<SampleSet>> sets, plan::PreferenceRewards rewards,
                     const dist::Ranks* ranks)
    : sets_(std::move(sets)), rewards_(rewards), ranks_(ranks) {}

// Other connectors would encode in the only way they know, whatever it is called.
void Evaluator::require_modes(const model::Model& model) const {
  const plan::ConnectorSettings& connector = *model.config().connector;
  const auto known = connector.mode_names();
  for (const auto& set : sets_)
    for (const std::string& mode : set->settings().modes)
      if (std::ranges::find(known, mode) == known.end())
        throw Error(ErrorKind::data,
                    "frames are to be encoded in the mode {}, which the model's connector, {}, does not have", mode,
                    connector.name())
            .at("evaluation set " + set->settings().name)
            .advise("evaluate with the recipe that the model was trained by, or in another mode: {}", join_or(known));
}

Scores Evaluator::score(const SetAndMode& key, const model::Model& model, ops::Operations& ops,
                        const EvaluationProgress& progress, size_t decoder) const {
  const auto& [set, mode] = key;
  if (set->decoders() != model.decoders())
    throw Error(ErrorKind::data, "the set is read by {}, and the model has {}",
                counted(static_cast<int64_t>(set->decoders()), "decoder"), model.decoders())
        .at("evaluation set " + set->settings().name)
        .advise("evaluate with the recipe that the model was trained by");
  set->tokenizer(decoder).check_vocabulary_size(model.with_decoder(decoder).config().decoder.vocab_size,
                                                "evaluation set " + set->settings().name);
  const auto report = [&, mode = mode, set = set](int64_t done, int64_t all) {
    if (progress) progress({set->settings(), mode, done, all});
  };
  Scores scores = evaluation::score(*set, model, ops, mode, report, decoder, ranks_);
  if (scores.samples.empty())
    throw Error(ErrorKind::data, "none of its {} can be used",
                counted(set->samples() + std::ssize(set->skipped()), "sample"))
        .at("evaluation set " + set->settings().name)
        .advise("`fvlm-engine data check RECIPE` says what is wrong with each");
  return scores;
}

std::vector<Result> Evaluator::evaluate(const model::Model& model, ops::Operations& ops,
                                        const EvaluationProgress& progress, const ScoreSink& take) const {
  require_modes(model);
  std::vector<Result> results;
  for (const auto& set : sets_)
    for (const std::string& mode : set->settings().modes) {
      double begin = steady_seconds();
      const auto add = [&](Result result) {
        const double now = steady_seconds();
        result.seconds = now - std::exchange(begin, now);
        results.push_back(std::move(result));
      };
      const SetAndMode key{set.get(), mode};
      const auto reference = references_.find(key);
      std::vector<Scores> all;
      for (size_t decoder = 0; decoder < set->decoders(); ++decoder) {
        const Scores& scores = all.emplace_back(score(key, model, ops, progress, decoder));
        add(result_of(*set, mode, scores, reference == references_.end() ? nullptr : &reference->second));
        if (take) take(*set, mode, scores);
      }
      if (all.size() == 1 || set->settings().measure != plan::Measure::answer) continue;
      const auto joint = joint_answers(*set, model, ops, mode, all, ranks_);
      if (!joint.empty()) add(result_of(*set, mode, joint));
    }
  return results;
}

void Evaluator::show(const model::Model& model, ops::Operations& ops, const ShowRequest& request) const {
  for (const auto& set : sets_) evaluation::show(*set, model, ops, request);
}

bool Evaluator::has_preferences() const {
  return std::ranges::any_of(sets_,
                             [](const auto& set) { return set->settings().measure == plan::Measure::preference; });
}

void Evaluator::cache_reference(const model::Model& model, ops::Operations& ops, const EvaluationProgress& progress) {
  require_modes(model);
  for (const auto& set : sets_) {
    if (set->settings().measure != plan::Measure::preference) continue;
    for (const std::string& mode : set->settings().modes) {
      Reference& reference = references_[{set.get(), mode}];
      reference = {rewards_, {}};
      for (const SampleScore& pair : score({set.get(), mode}, model, ops, progress).samples)
        reference.margins[pair.position] = reward_margin_of(pair, rewards_);
    }
  }
}

} // namespace fvlm::evaluation
