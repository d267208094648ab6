// SampleSet: held-out samples, opened once and gone through again and again, each sample once.
#pragma once
#include "data/media/frame_preparation.h"
#include "data/stream/loader.h"
#include "data/tokenizer.h"
#include "recipe/plan.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fvlm::evaluation {

// Of a pack where nobody says: a forward pass alone, whose memory is mostly the tower's keys and values.
inline constexpr PackSize usual_pack{128, 8192};

// Where samples come from, and what goes with them.
struct OpenedSource {
  std::shared_ptr<const SampleSource> samples;
  std::shared_ptr<const Tokenizer> tokenizer; // that their texts went through
  int64_t image_size = 0;
  std::optional<ImageProcessor> processor; // of the encoder
  plan::Mix mix;                           // an Order goes by its sources
  std::vector<std::string> source_names;   // of samples that name none
  DataLoaderOptions loader;
  std::function<PackFunction(const PackSize&)> packer;
};

class SampleSet {
 public:
  // Looks at every sample of the set, without its pixels. `most`: of a pack, unless a sample is larger. Throws
  // Error(data) where samples are not of the kind that the measure wants, or none is left.
  SampleSet(plan::EvaluationSet wanted, OpenedSource source, const PackSize& most);

  const plan::EvaluationSet& wanted() const { return wanted_; }
  const Tokenizer& tokenizer() const { return *source_.tokenizer; }
  int64_t image_size() const { return source_.image_size; }
  FramePreparation preparation() const { return {source_.image_size, source_.processor}; }
  int64_t samples() const { return samples_; }                       // that can be used
  const std::vector<SkippedSample>& aside() const { return aside_; } // that cannot

  // Of any pack.
  struct Longest {
    int64_t sequence = 0, video = 0; // rows, frames
  };
  const Longest& longest() const { return longest_; }
  const PackSize& capacity() const { return batches_.capacity; }

  // All of them, or as many as are there of the first `most` positions.
  std::unique_ptr<DataLoader> loader(int64_t most = 0) const;
  // The name of the sample's own source, else that of its shards.
  const std::string& source_of(const PackedSample& packed) const;

 private:
  void look_at_all(PackSize& largest, PackSize& all);
  void check(const MeasuredSample& measured) const;

  plan::EvaluationSet wanted_;
  OpenedSource source_;
  Order order_;
  BatchPlan batches_;
  PackFunction pack_;
  int64_t samples_ = 0;
  std::vector<SkippedSample> aside_;
  std::vector<size_t> source_at_; // by position: of the mix
  Longest longest_;
};

} // namespace fvlm::evaluation
