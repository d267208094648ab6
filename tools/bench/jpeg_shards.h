// Pictures to train on from end to end: tar shards of JPEGs with captions, and a tokenizer for these.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace fvlm::bench {

struct JpegShards {
  int64_t samples = 1024;
  int64_t pictures = 1;              // JPEGs of each sample
  int64_t text = 128;                // tokens of a caption, at least
  int64_t vocabulary = 0;            // of the tokenizer
  int64_t width = 640, height = 480; // pixels of each JPEG
  uint64_t seed = 1;

  static constexpr int64_t per_shard = 64, min_vocabulary = 300;
};

struct MadeShards {
  std::vector<std::string> shards; // a pattern
  std::filesystem::path tokenizer; // a folder
  int64_t jpeg_bytes = 0;          // of all
};

// Random smooth pictures with fine detail, in the folder, which is made; one that was made with the same settings stays
// as it is. Throws Error(usage) where the folder holds something else. `progress`: samples done and in total. [any
// thread, one at a time]
MadeShards make_jpeg_shards(const JpegShards& settings, const std::filesystem::path& folder,
                            const std::function<void(int64_t done, int64_t total)>& progress);

} // namespace fvlm::bench
