#include "base/error.h"

#include <gtest/gtest.h>

using namespace fvlm;

TEST(Error, TextHasPlaceCauseAndAdvice) {
  Error error(ErrorKind::recipe, "unknown key 'lrr'");
  error.at("a.lua:12").advise("did you mean 'lr'?");
  EXPECT_EQ(error.text(), "a.lua:12: unknown key 'lrr'\n  did you mean 'lr'?");
  EXPECT_EQ(error.exit_code(), 3);
}
