// How near the boxes of a generated answer are to the expected ones, as evaluations of grounding measure it. A text has
// a box where it has four numbers between brackets, [x1, y1, x2, y2], or two times two of them, (x1,y1),(x2,y2), or
// four <loc0000>; and a point where it has two numbers between brackets, or two <loc0000>. What the numbers count makes
// no difference as long as it is the same in both texts, and y may stand before x.
#pragma once
#include "evaluation/answers.h"

#include <string>
#include <string_view>
#include <vector>

namespace fvlm::evaluation {

struct Region {
  double left = 0, top = 0, right = 0, bottom = 0;
  bool is_point = false; // left and right are the same, and top and bottom
  bool operator==(const Region&) const = default;
};
std::vector<Region> regions_in(std::string_view text);

// Against the best of the expected answers, of which only the boxes count; 0 where those have none. Boxes of both are
// paired, each with one at most, and the sum of the best pairing is divided by the larger number of boxes: one that is
// missing, and one too many, count as 0.
// iou: of the intersections over the unions of the pairs. With a single box on both sides it is theirs.
double iou(const std::string& answer, const Answers& expected);
// 1 for a pair whose intersection over union is at least 0.5, as RefCOCO has it. An answer without boxes has its points
// in their place, and 1 for one inside its box, as ScreenSpot has it.
double box_accuracy(const std::string& answer, const Answers& expected);

} // namespace fvlm::evaluation
