// A data set of shapes on disk: shards by part, a tokenizer, and a manifest that says what it was made with.
#pragma once
#include "make-shapes/picture.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

namespace fvlm::shapes {

struct Options {
  std::filesystem::path out;
  uint64_t seed = 1;
  std::map<std::string, int64_t> samples; // by part; parts not named are not made
  int64_t frames = 4, width = 32, height = 32;
  std::string format = "png"; // or "jpeg", "mp4"
  int quality = 90;           // of JPEG
  // Of a clip as mp4, a second a frame; none: this program was built without FFmpeg.
  std::function<std::string(std::span<const Image>)> write_clip;
  Ground ground = Ground::plain;
  int64_t shard_size = 2000; // samples
  int threads = 1;           // changes nothing in the data
};

struct Made {
  int64_t samples = 0, shards = 0;
  uint64_t bytes = 0;
};

// Whether `out` holds just this already, all its files there.
bool is_made(const Options& options);

// Makes it beside `out`, then moves it there, in place of an older data set of shapes. Throws Error(data) when there is
// something else at `out`. `progress`: samples done and to do, from the calling thread.
Made make(const Options& options, const std::function<void(int64_t done, int64_t total)>& progress);

} // namespace fvlm::shapes
