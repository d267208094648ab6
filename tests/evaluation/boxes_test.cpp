// Boxes of generated answers beside the expected ones. boxes_test.py has random ones beside a reference.
#include "evaluation/boxes.h"

#include <gmock/gmock.h>

using testing::ElementsAre;
using testing::IsEmpty;

namespace fvlm::evaluation {
namespace {

TEST(Boxes, AreFoundInEveryForm) {
  const Region box{10, 20, 30, 40}, point{10, 20, 10, 20, true};
  for (const char* text :
       {"[10, 20, 30, 40]", "[[10,20,30,40]]", "(10,20),(30,40)", "( 10, 20 ) , (30,40)", "[10 20 30 40]",
        "<loc0010><loc0020><loc0030><loc0040> cat", "<box>[[10, 20, 30, 40]]</box>",
        R"([{"bbox_2d": [10, 20, 30.0, 40], "label": "(a) dog"}])", "<|box_start|>(10,20),(30,40)<|box_end|>"})
    EXPECT_THAT(regions_in(text), ElementsAre(box)) << text;
  for (const char* text :
       {"click([10, 20])", "(10,20)", "<loc0010><loc0020>", R"({"point_2d": [10, 20]})", "[[10, 20]]"})
    EXPECT_THAT(regions_in(text), ElementsAre(point)) << text;
  for (const char* text : {"", "none", "[10, 20, 30]", "[10, 20, 30, 40", "[10, 20, x, 40]", "10, 20, 30, 40", "()",
                           "[]", "<loc0010>", "[nan, 1, inf, 2]", "[1e999, 1]", "<loc"})
    EXPECT_THAT(regions_in(text), IsEmpty()) << text;
  EXPECT_THAT(regions_in("(10,20),(30,40)(10,20),(30,40) and (10,20)"), ElementsAre(box, box, point));
  EXPECT_THAT(regions_in("<loc0010><loc0020><loc0030><loc0040><loc0010><loc0020><loc0030><loc0040>"),
              ElementsAre(box, box));
  EXPECT_THAT(regions_in("[0.125, -1, .5, 1e1]"), ElementsAre(Region{0.125, -1, 0.5, 10}));
}

TEST(Boxes, OverlapAsTheirIntersectionOverTheirUnion) {
  EXPECT_EQ(iou("[0, 0, 10, 10]", {"[0, 0, 10, 10]"}), 1);
  EXPECT_DOUBLE_EQ(iou("[0, 0, 10, 10]", {"[5, 0, 15, 10]"}), 1.0 / 3);
  EXPECT_DOUBLE_EQ(iou("It is at (0,0),(10,10).", {"[20, 20, 30, 30]", "[5, 0, 15, 10]"}), 1.0 / 3)
      << "the best of two";
  EXPECT_EQ(iou("[10, 0, 20, 10]", {"[0, 0, 10, 10]"}), 0) << "they touch";
  EXPECT_EQ(iou("[10, 10, 0, 0]", {"[0, 0, 10, 10]"}), 0) << "it ends before it begins";
  EXPECT_EQ(iou("[3, 3, 3, 3]", {"[3, 3, 3, 3]"}), 0) << "no area";
  EXPECT_EQ(iou("", {"[0, 0, 10, 10]"}), 0);
  EXPECT_EQ(iou("[0, 0, 10, 10]", {"a dog"}), 0);
  EXPECT_EQ(iou("[5, 5]", {"[0, 0, 10, 10]"}), 0) << "a point is no box";
}

// [0, 0, 10, 10] fits both of the expected ones best, and is paired with the one that leaves more to the other.
TEST(Boxes, ArePairedSoThatTheirSumIsTheLargest) {
  const Answers expected{"[0, 0, 10, 8] [0, 0, 10, 6]"};
  EXPECT_DOUBLE_EQ(iou("[0, 0, 10, 10] [0, 0, 10, 8]", expected), (0.6 + 1) / 2);
  EXPECT_DOUBLE_EQ(iou("[0, 0, 10, 8] [0, 0, 10, 10]", expected), (0.6 + 1) / 2);
  EXPECT_DOUBLE_EQ(iou("[0, 0, 10, 8]", expected), 1.0 / 2) << "one is missing";
  EXPECT_DOUBLE_EQ(iou("[0, 0, 10, 8] [0, 0, 10, 6] [0, 0, 10, 6]", expected), 2.0 / 3) << "one too many";
}

TEST(Boxes, AreRightFromAHalfOnAsInRefCoco) {
  EXPECT_EQ(box_accuracy("[0, 0, 10, 5]", {"[0, 0, 10, 10]"}), 1) << "0.5 itself";
  EXPECT_EQ(box_accuracy("[0, 0, 10, 4.9]", {"[0, 0, 10, 10]"}), 0);
  EXPECT_DOUBLE_EQ(box_accuracy("[0, 0, 10, 9] [0, 0, 1, 1]", {"[0, 0, 10, 10] [20, 20, 30, 30]"}), 0.5);
}

TEST(Boxes, HoldPointsAsInScreenSpot) {
  const Answers expected{"[10, 20, 30, 40]"};
  for (const char* inside : {"[20, 30]", "(10,20)", "click([30, 40])"})
    EXPECT_EQ(box_accuracy(inside, expected), 1) << inside;
  for (const char* outside : {"[9, 30]", "(20,41)", "no", "[30, 20, 40]"})
    EXPECT_EQ(box_accuracy(outside, expected), 0) << outside;
  EXPECT_EQ(box_accuracy("[20, 30] [21, 31]", expected), 0.5) << "one too many";
  EXPECT_EQ(box_accuracy("[20, 30] [0, 0, 1, 1]", expected), 0) << "of an answer with a box its points do not count";
}

} // namespace
} // namespace fvlm::evaluation
