// Turns scenes into samples of a shard: frames and JSON, depending on the part of the data set.
#pragma once
#include "make-shapes/scene.h"

#include <string>
#include <string_view>
#include <vector>

namespace fvlm::shapes {

struct Part {
  std::string_view name; // its folder: "heldout/questions"
  int64_t samples;       // without --samples; 0: it is made only where --samples names it
  enum class Says { caption, answer, text, pair, choices, document } says;
  bool held_out;
  bool still = false; // a single picture in place of a clip
};

// The parts that recipes/quickstart.lua reads, and those of recipes/tiny/, which are made where they are named.
const std::vector<Part>& parts();

struct Sample {
  std::vector<Picture> frames;
  std::string json;
};

// Deterministic in its arguments.
Sample make_sample(const Part& part, uint64_t seed, uint64_t number, int64_t frames);

// Trains a tokenizer.json on the texts that samples of any seed can have.
std::string make_tokenizer();

} // namespace fvlm::shapes
