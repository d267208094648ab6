// Synthetic samples, determined by their index, for tests of the stream: any of them may be broken or slow.
#pragma once
#include "base/error.h"
#include "base/random.h"
#include "data/samples/error_context.h"
#include "data/stream/composer.h"
#include "data/stream/sample_source.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

namespace fvlm {

inline plan::Mix mix_of(const std::vector<double>& weights, int64_t epochs = 0) {
  plan::Mix mix;
  for (double weight : weights) {
    plan::Source source;
    source.shards = {"made"};
    source.weight.points = {weight};
    source.epochs = epochs;
    mix.sources.push_back(source);
  }
  return mix;
}

class SyntheticSource : public SampleSource {
 public:
  using Where = std::function<bool(const DrawnSample&)>;

  explicit SyntheticSource(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {}
  std::vector<int64_t> sizes() const override { return sizes_; }
  int64_t frame_elements() const override { return 6; }
  std::string place(const DrawnSample& drawn) const override { return fmt::format("source {}", drawn.source); }

  Sample measure(const DrawnSample& drawn) const override {
    dawdle(drawn, 0);
    if (fails(drawn)) throw ReadError("made", 0, 5, "the disk failed");
    if (leaves_out(drawn)) {
      Sample sample;
      sample.key = key(drawn);
      sample.dropped = "too long";
      return sample;
    }
    if (has_broken_head(drawn)) throw MediaError(Error(ErrorKind::data, "no picture").at(key(drawn)));
    if (broken(drawn)) throw Error(ErrorKind::data, "no text").at(key(drawn));
    const RandomStream random(7, key(drawn));
    Sample sample;
    sample.key = key(drawn);
    sample.frames = drawn.source == 0 ? 1 + random.bits(0) % 12 : 0;
    SampleText text;
    for (uint64_t i = 0; i < 2 + random.bits(1) % 60; ++i) {
      text.ids.push_back(static_cast<TokenId>(random.bits(2 + i) % 1000));
      text.answer_mask.push_back(i > 3);
    }
    sample.texts.push_back(text);
    return sample;
  }

  void decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const override {
    dawdle(drawn, 1);
    ASSERT_EQ(frames.size(), static_cast<size_t>(sample.frames * frame_elements()));
    if (undecodable(drawn)) throw Error(ErrorKind::data, "half a picture");
    for (size_t i = 0; i < frames.size(); ++i) frames[i] = pixel(drawn, i);
  }

  std::string key(const DrawnSample& drawn) const override { return fmt::format("{}-{}", drawn.source, drawn.sample); }
  static float pixel(const DrawnSample& drawn, size_t i) {
    return static_cast<float>(drawn.sample) + 1000.0f * static_cast<float>(i);
  }

  Where broken = [](const DrawnSample&) { return false; }, undecodable = broken, fails = broken, leaves_out = broken,
        has_broken_head = broken; // of a picture
  bool dawdles = false;

 private:
  void dawdle(const DrawnSample& drawn, uint64_t what) const {
    if (!dawdles) return;
    const uint32_t time =
        RandomStream(static_cast<uint64_t>(std::hash<std::thread::id>()(std::this_thread::get_id())), key(drawn))
            .bits(what) %
        200;
    std::this_thread::sleep_for(std::chrono::microseconds(time));
  }
  std::vector<int64_t> sizes_;
};

// First fit, the largest first after the oldest.
inline std::vector<int32_t> first_fit(const std::vector<int64_t>& sizes, const PackSize& capacity, int64_t most_items,
                                      uint64_t) {
  const size_t items = sizes.size() / 2;
  std::vector<size_t> order(items);
  for (size_t i = 0; i < items; ++i) order[i] = i;
  if (items > 1)
    std::stable_sort(order.begin() + 1, order.end(),
                     [&](size_t a, size_t b) { return sizes[2 * a + 1] > sizes[2 * b + 1]; });
  struct Bin {
    PackSize rest;
    int64_t items;
  };
  std::vector<Bin> bins;
  std::vector<int32_t> bin_of(items, -1);
  for (size_t item : order) {
    const int64_t frames = sizes[2 * item], rows = sizes[2 * item + 1];
    if (frames > capacity.frames || rows > capacity.rows) continue;
    size_t bin = 0;
    while (bin < bins.size() && (bins[bin].rest.frames < frames || bins[bin].rest.rows < rows ||
                                 (most_items > 0 && bins[bin].items == most_items)))
      ++bin;
    if (bin == bins.size()) bins.push_back({capacity, 0});
    bins[bin].rest.frames -= frames;
    bins[bin].rest.rows -= rows;
    ++bins[bin].items;
    bin_of[item] = static_cast<int32_t>(bin);
  }
  return bin_of;
}

} // namespace fvlm
