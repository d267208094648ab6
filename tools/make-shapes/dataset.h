// Writes a data set of shapes: shards for each part, a tokenizer, and a manifest with the options.
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
  std::map<std::string, int64_t> samples; // number of samples by part; other parts are not written
  int64_t frames = 4, width = 32, height = 32;
  std::string format = "png"; // or "jpeg", "mp4"
  int quality = 90;           // of JPEG
  // Encodes a clip as mp4 with one frame per second; empty in a build without FFmpeg.
  std::function<std::string(std::span<const Image>)> write_clip;
  Ground ground = Ground::plain;
  int64_t shard_size = 2000; // samples
  int threads = 1;           // does not affect the data
};

struct Made {
  int64_t samples = 0, shards = 0;
  uint64_t bytes = 0;
};

// Whether `out` already holds the complete data set for these options.
bool is_made(const Options& options);

// Writes the data set next to `out` and then renames it, replacing an older data set of shapes. Throws Error(data) when
// something else is at `out`. `progress` is called on the calling thread with samples done and in total.
Made make(const Options& options, const std::function<void(int64_t done, int64_t total)>& progress);

} // namespace fvlm::shapes
