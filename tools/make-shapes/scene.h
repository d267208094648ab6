// Scenes: what is seen over the frames of a clip, and what can be said and asked about it.
#pragma once
#include "make-shapes/draw.h"
#include "make-shapes/picture.h"

#include <string>
#include <vector>

namespace fvlm::shapes {

struct Fact {
  std::string kind; // "colour": what kind of question it is; the samples' `source`
  std::string question, answer;
  std::vector<std::string> wrong; // other answers, the most tempting first
};

struct Scene {
  std::string caption; // everything that is asked for
  std::vector<Fact> facts;
  std::vector<Picture> frames;
};

// One of four kinds:
//   mover     a ball crosses the picture
//   sequence  one shape, and from some frame on another one: no single frame tells which came first
//   count     one to four balls
//   cue       a ring in the first frame marks the place to look at in the frames behind it, which hold four balls
Scene make_scene(Draw& draw, int64_t frames);

// One scene in eight, by what it shows: training data have none of these and held-out data no others.
bool is_held_out(const Scene& scene);

// Questions without pictures: small sums, facts about shapes and colours.
Fact make_text(Draw& draw);

} // namespace fvlm::shapes
