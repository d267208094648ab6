// Scenes: the frames of a clip, with a caption and questions about them.
#pragma once
#include "make-shapes/draw.h"
#include "make-shapes/picture.h"

#include <string>
#include <vector>

namespace fvlm::shapes {

struct Fact {
  std::string kind; // the kind of question, such as "colour"; becomes the `source` of samples
  std::string question, answer;
  std::vector<std::string> wrong; // other answers, the most tempting first
};

struct Scene {
  std::string caption; // contains the answers of all facts
  std::vector<Fact> facts;
  std::vector<Picture> frames;
};

// One of four kinds:
//   mover     a ball crosses the picture
//   sequence  one shape, and from some frame on another one: no single frame tells which came first
//   count     one to four balls
//   cue       a ring in the first frame marks the place to look at in the frames behind it, which hold four balls
Scene make_scene(Draw& draw, int64_t frames);

// A single picture: one figure somewhere, or one to four balls.
Scene make_still(Draw& draw);

// Selects one scene in eight by a hash of its content. Training data contain none of these, held-out data only these.
bool is_held_out(const Scene& scene);

// A question without frames: small sums, and facts about shapes and colors.
Fact make_text(Draw& draw);

// A document: some such questions with their answers, and pictures that are told of and asked about.
std::string make_document(Draw& draw);

} // namespace fvlm::shapes
