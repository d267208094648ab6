// The interface of a data set to the stream: a sample is measured first and decoded when its pack is known.
#pragma once
#include "data/media/normalise.h"
#include "data/samples/sample.h"
#include "data/stream/order.h"
#include "data/stream/quarantine.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fvlm {

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // The number of samples of each source of the mix.
  virtual std::vector<int64_t> sizes() const = 0;
  virtual int64_t frame_elements() const = 0; // floats of one frame; 0: frames are texts, which samples have

  // Throws ReadError for a failing disk, MediaError for a sample with a broken image or video, another Error for one
  // that is broken otherwise. [any thread]
  virtual Sample measure(const DrawnSample& drawn) const = 0;
  virtual void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const = 0;
  // Frames before normalization, bytes [frames, H, W, 3], of a source whose frames are such, and the values of these
  // bytes for the model, which live as long as the source. Null: decode() alone is there.
  virtual const NormalizationTable* normalization() const { return nullptr; }
  virtual void decode_pixels(const DrawnSample&, const Sample&, std::span<uint8_t>) const {}

  // For messages: the shard, and the key of the sample if it can be read. [any thread]
  virtual std::string place(const DrawnSample& drawn) const = 0;
  virtual std::string key(const DrawnSample& drawn) const = 0;
  // The damage that was found when the shards were opened.
  virtual std::vector<SkippedSample> damage() const { return {}; }
};

// The samples of another source, which outlives it, with other texts.
class ChangedSamples : public SampleSource {
 public:
  explicit ChangedSamples(const SampleSource& source) : source_(source) {}

  std::vector<int64_t> sizes() const override { return source_.sizes(); }
  int64_t frame_elements() const override { return source_.frame_elements(); }
  void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const override {
    source_.decode(drawn, sample, frames);
  }
  const NormalizationTable* normalization() const override { return source_.normalization(); }
  void decode_pixels(const DrawnSample& drawn, const Sample& sample, std::span<uint8_t> frames) const override {
    source_.decode_pixels(drawn, sample, frames);
  }
  std::string place(const DrawnSample& drawn) const override { return source_.place(drawn); }
  std::string key(const DrawnSample& drawn) const override { return source_.key(drawn); }
  std::vector<SkippedSample> damage() const override { return source_.damage(); }

 protected:
  const SampleSource& source_;
};

} // namespace fvlm
