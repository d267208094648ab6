#include "recipe/lua_source.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>

namespace fvlm::recipe {
namespace {

TEST(SourceMap, FindsTheTableOfACall) {
  SourceMap map("a {\n x = 1,\n 'item', [\"y\"] = { z = 2 }; w = v }\nb('s', { q = 1 })\nb.c 's' { r = 1 }");
  const TableSource* a = map.call("a", 1, {"x"});
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->line, 1);
  EXPECT_EQ(a->fields.at("x").line, 2);
  EXPECT_EQ(a->items.at(0).line, 3);
  ASSERT_NE(a->fields.at("y").table, nullptr);
  EXPECT_EQ(a->fields.at("y").table->fields.at("z").line, 3);
  EXPECT_EQ(a->fields.at("w").variable, "v");
  ASSERT_NE(map.call("b", 4, {}), nullptr);
  EXPECT_TRUE(map.call("b", 4, {})->fields.contains("q"));
  ASSERT_NE(map.call("c", 5, {}), nullptr);
  EXPECT_TRUE(map.call("c", 5, {})->fields.contains("r"));
  EXPECT_EQ(map.call("d", 5, {}), nullptr);
  EXPECT_EQ(map.call("a", 9, {}), nullptr);
}

TEST(SourceMap, GivesUpOnACrowdedLine) {
  std::string text = "x {}";
  for (int i = 0; i < 5000; i++) text += " x {}";
  EXPECT_EQ(SourceMap(text).call("x", 1, {}), nullptr);
}

TEST(SourceMap, ReadsALineOnceHoweverOftenItIsSearched) {
  std::string text = "local t = f";
  for (int i = 0; i < 1000; i++) text += "(1)";
  text += " .x { y = 1 }";
  const SourceMap map(text);
  ASSERT_NE(map.call("x", 1, {"y"}), nullptr);
  const uint64_t first = map.tokens_read();
  EXPECT_LT(first, 20 * 3000u) << "a few times each of its tokens";
  for (int i = 0; i < 20'000; i++) map.call("x", 1, {"y"});
  EXPECT_LT(map.tokens_read() - first, 20'000 * 10u) << "the calls that were found there, and no token";
}

TEST(SourceMap, ReadsTablesWithinOneAnotherOnce) {
  constexpr int depth = 140;
  std::string text;
  for (int i = 0; i < depth; i++) text += "f { a = \n";
  for (int i = 0; i < 1000; i++) text += i == 0 ? "{ 1" : ", 1";
  text += " }";
  for (int i = 0; i < depth; i++) text += " }";
  const SourceMap map(text);
  for (int line = 1; line <= depth; line++) ASSERT_NE(map.call("f", line, {"a"}), nullptr) << line;
  EXPECT_LT(map.tokens_read(), 40'000u) << "of about 3,000 tokens, once at each table that holds them would be 420,000";
}

TEST(SourceMap, TakesNoCallWhereALineHasMoreThanAHundred) {
  std::string text;
  for (int i = 0; i < 100; i++) text += "x {} ";
  EXPECT_NE(SourceMap(text).call("x", 1, {}), nullptr);
  EXPECT_EQ(SourceMap(text + "x {}").call("x", 1, {}), nullptr);
}

TEST(SourceMap, SurvivesTextsCutAnywhere) {
  const std::string text = "local a = f 'x' { b = [==[ ] ]==] , [ 'c' ] = function() if x then return { 1, } end end, "
                           "\"\\\"\" } -- [[ e\n--[=[ ]=] g(h{})";
  for (size_t n = 0; n <= text.size(); n++) {
    SourceMap map(text.substr(0, n));
    map.call("f", 1, {"b"});
    map.call("g", 2, {});
    map.assigned("a", {});
    map.refused();
  }
}

TEST(SourceMap, RefusesSourceThatBreaksThePackagedLua) {
  auto refused = [](const std::string& text) {
    auto found = SourceMap(text).refused();
    return found ? std::to_string(found->line) + ": " + found->what : "";
  };
  EXPECT_EQ(refused("local x = 1\nlocal _ENV <const> = {}"), "2: _ENV is not allowed in a recipe");
  EXPECT_EQ(refused("return t[a < b]"), "1: a comparison inside [ ] is not allowed");
  EXPECT_EQ(refused("return t[(a == b)]"), "1: a comparison inside [ ] is not allowed");
  EXPECT_EQ(refused("return f()[\n1 ~= 2]"), "2: a comparison inside [ ] is not allowed");
  EXPECT_EQ(refused("return 1 | (2 or 3)"), "1: 'and' or 'or' after the operator '|' is not allowed");
  EXPECT_EQ(refused("return t" + std::string(201 * 2, 'b')), "");
  std::string chain = "return t";
  for (int i = 0; i < 201; i++) chain += ".b";
  EXPECT_THAT(refused(chain), testing::HasSubstr("more than 200 nested field"));
  std::string nested;
  for (int i = 0; i < 100; i++) nested.insert(0, "(").append("x.y.z).w");
  std::string indices = "return t";
  for (int i = 0; i < 201; i++) indices += "[i]";
  EXPECT_THAT(refused(indices), testing::HasSubstr("more than 200 nested field"));
  for (const char* fine :
       {"-- _ENV\nreturn '_ENV', [[_ENV]]", "return a < b, t[1], { [1] = 2 } == x", "return (1 | 2) or 3",
        "return t[x] < 3 and 1 << 2", "local s <const> = 1", "--[==[ _ENV ]==] return 1"})
    EXPECT_EQ(refused(fine), "") << fine;
}

TEST(SourceMap, TokenizesLikeLua) {
  auto refused = [](const std::string& text) { return SourceMap(text).refused().has_value(); };
  EXPECT_TRUE(refused("-- comment\r_ENV = 1")) << "a carriage return ends a comment";
  EXPECT_TRUE(refused("--[==\n_ENV = 1")) << "not a long comment";
  EXPECT_TRUE(refused("local s = 'a\\\\' _ENV = '1'"));
  EXPECT_TRUE(refused("local s = [[a]] _ENV = [[b]]"));
  EXPECT_TRUE(refused("local s = [=[ ]] ]=] _ENV = 1"));
  EXPECT_FALSE(refused("local s = [=[ ]] _ENV ]=]"));
  EXPECT_FALSE(refused("local s = 'a\\' _ENV = 1'"));
  EXPECT_FALSE(refused("local s = 'a\\z  \n \\\n _ENV'"));
  EXPECT_FALSE(refused("--[[ ]=] \n_ENV ]]"));
}

} // namespace
} // namespace fvlm::recipe
