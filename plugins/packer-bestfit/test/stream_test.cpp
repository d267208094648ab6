// stream_test.cpp: how full the packs of a ragged stream are: 47 % images that are repeated to 8 frames, 39 % videos,
// 14 % text only.
#include "packing.h"

#include <cstdio>

namespace fvlm::testing {
namespace {

struct Sample {
  std::int64_t frames, tokens; // text tokens plus one visual token per frame
};

class RaggedStream {
 public:
  explicit RaggedStream(std::uint64_t seed) : random_(seed) {}

  Sample next() {
    const double kind = uniform();
    if (kind < 0.47) return with_text(8, 150, 0.8);
    if (kind < 0.86) return with_text(lognormal(12, 0.8, 1, 64), 110, 0.6);
    return with_text(0, 400, 0.6);
  }

 private:
  Sample with_text(std::int64_t frames, double median, double sigma) {
    return {frames, frames + lognormal(median, sigma, 24, 1024)};
  }
  double uniform() { return (static_cast<double>(random_()) + 1) / 2; } // 24 bits
  std::int64_t lognormal(double median, double sigma, std::int64_t least, std::int64_t most) {
    const double normal = std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform());
    return std::clamp<std::int64_t>(std::llround(median * std::exp(sigma * normal)), least, most);
  }
  Random random_;
};

struct Fill {
  double frames = 0, tokens = 0;
  int packs = 0;
};

class StreamTest : public PackerTest {
 protected:
  // As the engine does it: keep a window full, consume bin 0, pack again. Stops at the end of the stream without
  // draining the window.
  Fill run(std::uint64_t seed, std::size_t window, const std::vector<std::int64_t>& capacity, int samples) {
    RaggedStream stream(seed);
    std::vector<Sample> waiting;
    Fill fill;
    for (int read = 0;;) {
      for (; waiting.size() < window && read < samples; ++read) waiting.push_back(stream.next());
      if (waiting.size() < window) break;
      std::vector<std::int64_t> sizes;
      for (const Sample& sample : waiting) {
        if (capacity.size() == 2) sizes.push_back(sample.frames);
        sizes.push_back(sample.tokens);
      }
      const Packed packed = pack(sizes, capacity);
      std::vector<Sample> left;
      for (std::size_t i = 0; i < waiting.size(); ++i) {
        if (packed.bin[i] == 0) {
          fill.frames += static_cast<double>(waiting[i].frames);
          fill.tokens += static_cast<double>(waiting[i].tokens);
        } else {
          left.push_back(waiting[i]);
        }
      }
      ++fill.packs;
      if (left.size() == waiting.size()) throw std::runtime_error("bin 0 is empty: the engine would never end");
      waiting = std::move(left);
    }
    fill.tokens /= static_cast<double>(fill.packs) * static_cast<double>(capacity.back());
    fill.frames /= static_cast<double>(fill.packs) * (capacity.size() == 2 ? static_cast<double>(capacity[0]) : 1);
    return fill;
  }
};

TEST_F(StreamTest, packs_of_4096_tokens_are_97_percent_full) {
  for (const std::size_t window : {64, 256, 1024}) {
    for (const std::uint64_t seed : {1, 2, 3}) {
      const Fill fill = run(seed, window, {4096}, 20000);
      std::printf("4096 tokens, window %4zu, seed %d: %.2f %% full, %d packs\n", window, static_cast<int>(seed),
                  100 * fill.tokens, fill.packs);
      EXPECT_GE(fill.tokens, 0.97);
    }
  }
}

TEST_F(StreamTest, packs_of_512_frames_and_8192_tokens_are_97_percent_full_of_tokens) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const Fill fill = run(seed, 1024, {512, 8192}, 20000);
    std::printf(
        "512 frames x 8192 tokens, window 1024, seed %d: %.2f %% of the tokens, %.2f %% of the frames, %d packs\n",
        static_cast<int>(seed), 100 * fill.tokens, 100 * fill.frames, fill.packs);
    EXPECT_GE(fill.tokens, 0.97);
  }
}

// As `data stats` recommends: frames in the proportion of the stream, 9.94 of 225.6 rows.
TEST_F(StreamTest, packs_in_the_proportion_of_the_stream_are_90_percent_full_of_both) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const Fill fill = run(seed, 256, {368, 8192}, 20000);
    std::printf("368 frames x 8192 tokens, window 256, seed %d: %.2f %% of the tokens, %.2f %% of the frames\n",
                static_cast<int>(seed), 100 * fill.tokens, 100 * fill.frames);
    EXPECT_GE(fill.tokens, 0.9);
    EXPECT_GE(fill.frames, 0.9);
  }
}

} // namespace
} // namespace fvlm::testing
