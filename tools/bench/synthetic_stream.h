// A synthetic stream with the lengths of real training data: images, videos of many lengths, text alone.
#pragma once
#include "base/random.h"
#include "data/stream/sample_source.h"

#include <vector>

namespace fvlm::bench {

class SyntheticStream : public SampleSource {
 public:
  static constexpr int64_t max_frames = 64, max_text = 1024;

  // `size`: pixels per side. Sample n is determined by the seed and n.
  SyntheticStream(int64_t samples, int64_t size, int64_t vocabulary, uint64_t seed);

  std::vector<int64_t> sizes() const override { return {samples_}; }
  int64_t frame_elements() const override { return 3 * size_ * size_; }
  Sample measure(const DrawnSample& drawn) const override;
  void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const override;
  const NormalizationTable* normalization() const override { return &imagenet_normalization(); }
  void decode_pixels(const DrawnSample& drawn, const Sample& sample, std::span<uint8_t> frames) const override;
  std::string place(const DrawnSample& drawn) const override;
  std::string key(const DrawnSample& drawn) const override;

  // A frame, [H, W, 3], is a slice of noise(), which starts at shift(). Normalized.
  std::vector<float> noise() const;
  static int64_t shift(int64_t sample, int64_t frame);

 private:
  int64_t samples_, size_, vocabulary_;
  RandomStream kinds_, frames_, lengths_, tokens_;
  std::vector<uint8_t> noise_;
};

} // namespace fvlm::bench
