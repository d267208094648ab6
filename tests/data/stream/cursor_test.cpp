#include "base/error.h"
#include "data/stream/cursor.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>

namespace fvlm {
namespace {

using testing::HasSubstr;

Cursor some() {
  return {.steps = 3,
          .samples = 96,
          .read = 101,
          .broken = 2,
          .skipped = {2},
          .order = {98, {70, 28}},
          .done = {false, true, true, false},
          .fingerprint = 0xfedcba9876543210};
}

TEST(Cursor, RoundTrips) {
  EXPECT_EQ(Cursor::parse(some().text(), "cursor"), some());
  EXPECT_EQ(Cursor::parse(Cursor().text(), "cursor"), Cursor());
  EXPECT_LT(some().text().size(), 200u);
}

TEST(Cursor, KeepsSkippedSamplesByReason) {
  Cursor cursor = some();
  cursor.skipped = {1, 1, 0, 0, 0};
  cursor.cut = 7;
  EXPECT_EQ(Cursor::parse(cursor.text(), "cursor"), cursor);
  // From an older checkpoint without reasons.
  const std::string text =
      R"({"steps":3,"samples":96,"read":101,"broken":2,"left_out":3,"position":98,"drawn":[70,28],)"
      R"("done":"0110","of":"fedcba9876543210"})";
  const Cursor before = Cursor::parse(text, "cursor");
  EXPECT_EQ(before.skipped, (std::array<int64_t, skip_reasons>{2, 0, 3, 0, 0}));
  for (const char* bad : {R"("skipped":[1,-1])", R"("skipped":7)", R"("skipped":[1,1,1,1,1,1,1])", R"("cut":-1)"})
    EXPECT_THROW(Cursor::parse(text.substr(0, text.size() - 1) + "," + bad + "}", "cursor"), Error) << bad;
}

TEST(Cursor, RefusesInvalidText) {
  const std::string good = some().text();
  const auto with = [&](const std::string& from, const std::string& to) {
    const size_t at = good.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return good.substr(0, at) + to + good.substr(at + from.size());
  };
  for (const std::string& text :
       {std::string("[]"), with("\"steps\":3", "\"steps\":-3"), with("\"steps\":3", "\"steps\":\"x\""),
        with("\"read\":101,", ""), with("[70,28]", "70"), with("[70,28]", "[70,\"x\"]"), with("\"0110\"", "\"0120\""),
        with("\"0110\"", "7"), with("fedcba98", "xyz"), with("\"of\"", "\"off\"")}) {
    try {
      Cursor::parse(text, "state.json");
      ADD_FAILURE() << "taken: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_THAT(error.text(), HasSubstr("state.json: not a data cursor: ")) << text;
    }
  }
  EXPECT_THROW(Cursor::parse("{", "state.json"), Error);
}

} // namespace
} // namespace fvlm
