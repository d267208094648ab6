#include "base/base64.h"

#include <gtest/gtest.h>

#include <string>

namespace fvlm {
namespace {

TEST(Base64, AgreesWithTheExamplesOfItsRfc) {
  const std::pair<const char*, const char*> examples[] = {{"", ""},
                                                          {"f", "Zg=="},
                                                          {"fo", "Zm8="},
                                                          {"foo", "Zm9v"},
                                                          {"foob", "Zm9vYg=="},
                                                          {"fooba", "Zm9vYmE="},
                                                          {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : examples) {
    EXPECT_EQ(encode_base64(bytes), text);
    EXPECT_EQ(decode_base64(text), bytes);
  }
  EXPECT_EQ(decode_base64("Zm9vYg"), "foob") << "the padding may be missing";
  EXPECT_EQ(decode_base64("/+8="), "\xff\xef");
}

TEST(Base64, RefusesOtherLettersAndLoneOnes) {
  for (const char* text : {"Z", "Zm9vY", "Zm9v!", "Zm 9v", "Zm9v\n", "Zg===", "Z=g=", "Zm-_"})
    EXPECT_EQ(decode_base64(text), std::nullopt) << text;
}

} // namespace
} // namespace fvlm
