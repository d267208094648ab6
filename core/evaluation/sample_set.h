// SampleSet: held-out samples, opened once; each pass over them reads every sample once.
#pragma once
#include "data/media/frame_preparation.h"
#include "data/stream/loader.h"
#include "data/tokenizer.h"
#include "evaluation/answerer.h"
#include "recipe/plan.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fvlm::evaluation {

// Pack size if the stage sets none: enough for a forward pass, whose memory is mostly the tower's keys and values.
inline constexpr PackSize default_pack{128, 8192};

// Where samples come from, and what goes with them.
struct OpenedSource {
  std::shared_ptr<const SampleSource> samples;
  std::shared_ptr<const Tokenizer> tokenizer;            // of the texts
  std::vector<std::shared_ptr<const Tokenizer>> further; // of decoders after the first
  int64_t image_size = 0;
  std::optional<ImageProcessor> processor; // of the encoder
  plan::Mix mix;                           // its sources define the order
  std::vector<std::string> source_names;   // for samples that name no source
  DataLoaderOptions loader;
  std::function<PackFunction(const PackSize&)> packer;
  std::string headline = "accuracy"; // the measure of generated answers by which sources are compared
};

class SampleSet {
 public:
  // Measures every sample of the set, without decoding its pixels. `limit` is the pack size, unless a sample is larger.
  // Throws Error(data) if samples do not fit the measure, or none can be used.
  SampleSet(plan::EvaluationSet settings, OpenedSource source, const PackSize& limit);

  const plan::EvaluationSet& settings() const { return settings_; }
  // How many decoders read the samples; the tokenizer of one; and the set's name in what is said of that one:
  // "heldout", "heldout.decoder2".
  size_t decoders() const { return 1 + source_.further.size(); }
  const Tokenizer& tokenizer(size_t decoder = 0) const {
    return decoder == 0 ? *source_.tokenizer : *source_.further[decoder - 1];
  }
  const AnswerReader& answers(size_t decoder = 0) const { return answers_[decoder]; } // of its texts
  std::string name(size_t decoder = 0) const;
  const std::string& headline() const { return source_.headline; }
  int64_t image_size() const { return source_.image_size; }
  FramePreparation preparation() const { return {source_.image_size, source_.processor}; }
  int64_t samples() const { return samples_; }                           // that can be used
  const std::vector<SkippedSample>& skipped() const { return skipped_; } // that cannot

  // Maxima over all samples.
  struct Longest {
    int64_t sequence = 0, video = 0; // rows, frames
  };
  const Longest& longest() const { return longest_; }
  const PackSize& capacity() const { return batches_.capacity; }

  // Loads all samples, or those among the first `limit` positions.
  std::unique_ptr<DataLoader> loader(int64_t limit = 0) const;
  // Loads the packs of one of several ranks, which together are those of loader().
  std::unique_ptr<DataLoader> loader_of(int64_t rank, int64_t ranks) const;
  // The name of the sample's own source, else that of its shards.
  const std::string& source_of(const PackedSample& packed) const;

 private:
  void measure_all(PackSize& largest, PackSize& all);
  void check(const MeasuredSample& measured, size_t decoder) const;
  std::unique_ptr<DataLoader> open(const BatchPlan& plan, int64_t rank) const;

  plan::EvaluationSet settings_;
  OpenedSource source_;
  std::vector<AnswerReader> answers_; // of each decoder
  Order order_;
  BatchPlan batches_;
  PackFunction pack_;
  int64_t samples_ = 0;
  std::vector<SkippedSample> skipped_;
  std::vector<size_t> source_at_; // by position: of the mix
  Longest longest_;
};

} // namespace fvlm::evaluation
