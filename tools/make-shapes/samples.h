// What becomes of a scene in a shard: its frames' files and its JSON, by the part of the data set it is for.
#pragma once
#include "make-shapes/scene.h"

#include <string>
#include <string_view>
#include <vector>

namespace fvlm::shapes {

struct Part {
  std::string_view name; // its folder: "heldout/questions"
  int64_t samples;       // for the quickstart
  enum class Says { caption, answer, text, pair, choices } says;
  bool held_out;
};

// The parts as recipes/quickstart.lua reads them.
const std::vector<Part>& parts();

struct Sample {
  std::vector<Picture> frames;
  std::string json;
};

// A pure function of its arguments.
Sample make_sample(const Part& part, uint64_t seed, uint64_t number, int64_t frames);

// tokenizer.json for all that samples of any seed say.
std::string make_tokenizer();

} // namespace fvlm::shapes
