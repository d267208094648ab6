// MixSamples: the sample source for the mix of a recipe, read from its shards.
#pragma once
#include "data/samples/content_hash.h"
#include "data/samples/sample_reader.h"
#include "data/shards/shard_set.h"
#include "data/stream/sample_source.h"

#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace fvlm {

// How a decoder reads the samples of a mix: the mix as it is for that decoder alone, and its tokenizer.
struct DecoderReads {
  const plan::Mix* mix;
  const Tokenizer* tokenizer;
};

class MixSamples : public SampleSource {
 public:
  // Told while the sources are opened: which, and how many of its shards are.
  using Progress = std::function<void(const std::string& source, int64_t done, int64_t all)>;

  // All but the options and the progress must outlive it. No decoder: mp4s are refused, each as a broken sample.
  // `visual_rows`: of the model that learns from them. `texts`: what an objective learns from, one of a sample or the
  // two of a pair, or Stage::inputs_in_data; others are broken. 0: any number. A document is whole where there is one
  // text, for the Composer to make rows of; else it comes cut. `teacher_is_cached`: see Sample. `further`: what
  // decoders after the first read.
  MixSamples(const plan::Mix& mix, const Tokenizer& tokenizer, const FramePreparation& frames,
             const VideoDecoder* video, const plan::VisualRows& visual_rows, const ShardOptions& options = {},
             const Progress& progress = {}, int64_t texts = 0, bool teacher_is_cached = false,
             const std::vector<DecoderReads>& further = {});

  std::vector<int64_t> sizes() const override;
  int64_t frame_elements() const override { return frame_elements_; }
  Sample measure(const DrawnSample& drawn) const override;
  void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const override;
  const NormalizationTable* normalization() const override { return &reader_.normalization(); }
  void decode_pixels(const DrawnSample& drawn, const Sample& sample, std::span<uint8_t> frames) const override;
  MarkedImages marked_images(const DrawnSample& drawn) const; // of a sample that measure() accepts
  std::string place(const DrawnSample& drawn) const override;
  std::string key(const DrawnSample& drawn) const override;
  std::vector<SkippedSample> damage() const override;
  uint64_t content_hash(size_t source) const {
    return fvlm::content_hash(sources_.at(source), mix_.sources.at(source));
  }

 private:
  void require_samples() const;
  SampleLocation locate(const DrawnSample& drawn) const;
  void check_texts(const Sample& sample) const;
  void add_further(const Shard& shard, const ShardSample& members, const plan::Source& source, Sample& sample) const;

  const plan::Mix& mix_;
  int64_t frame_elements_, texts_;
  bool teacher_is_cached_;
  SampleReader reader_;
  std::vector<SampleReader> further_; // of decoders after the first
  std::deque<ShardSet> sources_;      // a deque, as ShardSet cannot be moved
};

// The name for messages: its own, or its first pattern.
std::string name_of(const plan::Source& source);

} // namespace fvlm
