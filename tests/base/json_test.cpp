#include "base/error.h"
#include "base/exact_json.h"
#include "base/json.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using testing::HasSubstr;

namespace {

std::string mistake(std::string_view text) {
  try {
    parse_json(text, "a.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_EQ(error.where(), "a.json");
    return error.what();
  }
  return "no mistake";
}

} // namespace

TEST(Json, ReadsWellFormedText) {
  auto parsed = parse_json(R"({"a": {"b": [1, 2.5, null]}, "b": {"b": "é"}})", "a.json");
  EXPECT_EQ(parsed["a"]["b"][1], 2.5);
  EXPECT_EQ(parsed["b"]["b"], "é");
}

TEST(Json, RefusesDuplicateKeysAtEveryLevel) {
  EXPECT_THAT(mistake(R"({"a": 1, "a": 2})"), HasSubstr("duplicate key \"a\""));
  EXPECT_THAT(mistake(R"([{"x": {"b": 1, "c": [], "b": 1}}])"), HasSubstr("duplicate key \"b\""));
  EXPECT_EQ(mistake(R"([{"a": 1}, {"a": 1}])"), "no mistake");
}

TEST(Json, LimitsDepth) {
  const auto nested = [](size_t levels) { return std::string(levels, '[') + "0" + std::string(levels, ']'); };
  EXPECT_EQ(mistake(nested(64)), "no mistake");
  EXPECT_THAT(mistake(nested(65)), HasSubstr("more than 64 levels"));
  EXPECT_THAT(mistake(std::string(1 << 20, '[')), HasSubstr("more than 64 levels"));
}

TEST(Json, NamesPlaceOfMalformedText) {
  EXPECT_THAT(mistake("{\"a\":\n 1,,}"), HasSubstr("line 2, column 4"));
  EXPECT_THAT(mistake(""), HasSubstr("invalid JSON"));
  EXPECT_THAT(mistake("{\"a\": NaN}"), HasSubstr("invalid JSON"));
  EXPECT_THAT(mistake("{\"a\": 1e999}"), HasSubstr("invalid JSON"));
  EXPECT_THAT(mistake("{\"a\": \"\xff\"}"), HasSubstr("UTF-8"));
  EXPECT_THAT(mistake(std::string_view("{}\0{}", 5)), HasSubstr("byte 2 is 0"));
  EXPECT_THAT(mistake("{} {}"), HasSubstr("invalid JSON"));
}

TEST(ExactJson, KeepsKeysAndDigits) {
  for (const char* text : {R"({"b":[1,2.50,-0.0,1E+5],"a":{"c":null,"b":"é\\\n"}})", "18446744073709551616",
                           "-12345678901234567890123", "[]", "{}", "[[],{}]", "true", "\"\""})
    EXPECT_EQ(exact_text(exact_json(text)), text);
  EXPECT_EQ(exact_text(exact_json(" { \"a\" : [ 1 , 2 ] , \"a\" : 3 } ")), R"({"a":3})");
  EXPECT_TRUE(is_exact_number(exact_json("1.5")) && is_exact_number(exact_json("1")));
  EXPECT_FALSE(is_exact_number(exact_json("\"1\"")));
}

TEST(ExactJson, IsDiscardedWhereItIsNoneOrLarge) {
  std::string keys = "{\"0\":0";
  for (int i = 1; i < 1024; ++i) keys += ",\"" + std::to_string(i) + "\":0";
  EXPECT_FALSE(exact_json(keys + "}").is_discarded());
  EXPECT_TRUE(exact_json(keys + ",\"more\":0}").is_discarded());
  EXPECT_FALSE(exact_json(std::string(256, '[') + std::string(256, ']')).is_discarded());
  EXPECT_TRUE(exact_json(std::string(257, '[') + std::string(257, ']')).is_discarded());
  for (const char* text : {"", "{", "[1,]", "{\"a\"}", "1 2", "nul", "\"\xff\"", "1e999"})
    EXPECT_TRUE(exact_json(text).is_discarded()) << text;
}
