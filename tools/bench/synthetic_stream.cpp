#include "bench/synthetic_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::bench {
namespace {

constexpr int64_t least_text = 24, frames_of_image = 8, different_frames = 61, channels = 3;

struct Lognormal {
  double median, sigma;
  int64_t at(double normal, int64_t least, int64_t most) const {
    return std::clamp(static_cast<int64_t>(std::lround(median * std::exp(sigma * normal))), least, most);
  }
};

// A stage of instruction tuning: shares of the samples, frames and text of each.
constexpr double images = 0.47, videos = 0.39; // the rest is text alone
constexpr Lognormal frames_of_video{12, 0.8}, text_of_image{150, 0.8}, text_of_video{110, 0.6}, text_alone{400, 0.6};

} // namespace

SyntheticStream::SyntheticStream(int64_t samples, int64_t size, int64_t vocabulary, uint64_t seed)
    : samples_(samples), size_(size), vocabulary_(vocabulary), kinds_(seed, "kinds"), frames_(seed, "frames"),
      lengths_(seed, "lengths"), tokens_(seed, "tokens"),
      noise_(static_cast<size_t>(frame_elements() + channels * different_frames)) {
  const RandomStream pixels(seed, "pixels");
  for (size_t i = 0; i < noise_.size(); ++i) noise_[i] = static_cast<uint8_t>(pixels.bits(i));
}

Sample SyntheticStream::measure(const DrawnSample& drawn) const {
  const auto number = static_cast<uint64_t>(drawn.sample);
  const double kind = kinds_.uniform(number), length = lengths_.normal(number);
  Sample sample;
  sample.key = key(drawn);
  int64_t tokens = text_alone.at(length, least_text, max_text);
  if (kind < images) {
    sample.frames = sample.copies = frames_of_image;
    tokens = text_of_image.at(length, least_text, max_text);
  } else if (kind < images + videos) {
    sample.frames = frames_of_video.at(frames_.normal(number), 1, max_frames);
    tokens = text_of_video.at(length, least_text, max_text);
  }
  SampleText& text = sample.texts.emplace_back();
  for (int64_t i = 0; i < tokens; ++i)
    text.ids.push_back(static_cast<TokenId>(tokens_.bits(number * max_text + static_cast<uint64_t>(i)) %
                                            static_cast<uint64_t>(vocabulary_)));
  text.answer_mask.assign(text.ids.size(), 1);
  return sample;
}

void SyntheticStream::decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const {
  const auto elements = static_cast<size_t>(frame_elements());
  for (int64_t frame = 0; frame < sample.distinct_frames(); ++frame)
    normalise(std::span(noise_).subspan(static_cast<size_t>(shift(drawn.sample, frame)), elements),
              frames.subspan(static_cast<size_t>(frame) * elements, elements));
}

void SyntheticStream::decode_pixels(const DrawnSample& drawn, const Sample& sample, std::span<uint8_t> frames) const {
  const int64_t elements = frame_elements();
  for (int64_t frame = 0; frame < sample.distinct_frames(); ++frame)
    std::copy_n(noise_.begin() + shift(drawn.sample, frame), elements, frames.begin() + frame * elements);
}

std::vector<float> SyntheticStream::noise() const {
  std::vector<float> values(noise_.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = imagenet_normalization()[i % channels][noise_[i]];
  return values;
}

int64_t SyntheticStream::shift(int64_t sample, int64_t frame) {
  return channels * ((sample * 7 + frame) % different_frames);
}

std::string SyntheticStream::place(const DrawnSample&) const {
  return "made";
}

std::string SyntheticStream::key(const DrawnSample& drawn) const {
  return fmt::format("{}", drawn.sample);
}

} // namespace fvlm::bench
