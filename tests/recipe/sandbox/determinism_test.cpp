#include "author.h"

#include <cstdlib>
#include <set>

namespace fvlm::recipe {
namespace {

constexpr const char* recipe_that_walks = R"lua(local fvlm = require "fvlm"
local rates = {}
for i = 1, 60 do rates["name" .. (i * 7919) % 97] = i end
for i = 1, 30 do rates["name" .. i] = nil end
local walked = {}
for key, value in pairs(rates) do walked[#walked + 1] = key .. "=" .. value end
for key in next, { c = 1, [3] = 2, [1.5] = 3, [true] = 4, b = 5, [false] = 6 } do walked[#walked + 1] = tostring(key) end
local strange = { tostring({}), tostring(print), tostring(coroutine.create(print)), ("%s %s"):format({}, fvlm.adamw {}) }
local values = {}
for i = 1, 300 do values[i] = { key = (i * 31) % 7, i = i } end
table.sort(values, function(a, b) return a.key < b.key end)
local order = {}
for i, v in ipairs(values) do order[i] = v.i end
return fvlm.recipe { rates = rates, walked = walked, strange = strange, order = order, missing = pcall(error) }
)lua";

std::string output_of(const std::string& command) {
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot run " + command);
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  if (pclose(pipe) != 0) throw std::runtime_error("failed: " + command);
  return out;
}

TEST(SandboxDeterminism, FiftyProcessesWithOwnHashSeedsAgree) {
  Author author;
  author.write("recipe.lua", recipe_that_walks);
  const char* program = std::getenv("SANDBOX_PRINT");
  ASSERT_NE(program, nullptr) << "run by CTest, which says where sandbox_print is";
  std::set<std::string> trees, seeds;
  for (int i = 0; i < 50; i++) {
    std::string out = output_of(std::string(program) + " " + (author.folder() / "recipe.lua").string());
    size_t cut = out.find("seed: ");
    ASSERT_NE(cut, std::string::npos) << out;
    trees.insert(out.substr(0, cut));
    seeds.insert(out.substr(cut));
  }
  EXPECT_EQ(trees.size(), 1u) << *trees.begin() << "\nand\n" << *trees.rbegin();
  EXPECT_THAT(*trees.begin(), testing::HasSubstr("'table'"));
  if (seeds.size() < 2) GTEST_SKIP() << "every process has the same hash seed here (no address randomisation)";
}

TEST(SandboxDeterminism, TraversalOrderDoesNotDependOnHistory) {
  Author author;
  Value result = author.run(R"lua(
local function walk(t) local out = {} for k, v in pairs(t) do out[#out + 1] = tostring(k) end return table.concat(out, " ") end
local one, two = {}, {}
for i = 1, 50 do one["k" .. i] = i end
for i = 200, 1, -1 do two["k" .. i] = i end
for i = 51, 200 do two["k" .. i] = nil end
local cleared = {}
for i = 1, 20 do cleared[i] = i end
local seen = 0
for k in pairs(cleared) do cleared[k] = nil seen = seen + 1 end
return { same = walk(one) == walk(two), mixed = walk({ 10, 20, x = 1, [2.5] = 1, [-1] = 1, a = 1, [false] = 1, [2^53] = 1 }),
         seen = seen, empty = next(cleared) == nil, one = next({}, nil) == nil, object = walk({ a = 1, [{}] = 2 }) })lua");
  EXPECT_EQ(std::get<bool>(field(result, "same").data), true);
  EXPECT_EQ(text(field(result, "mixed")), "-1 1 2 2.5 9007199254740992 a x false");
  EXPECT_EQ(integer(field(result, "seen")), 20);
  EXPECT_EQ(std::get<bool>(field(result, "empty").data), true);
  EXPECT_EQ(text(field(result, "object")), "a table");
}

TEST(SandboxDeterminism, RefusesKeysWithoutAnOrder) {
  Author author;
  Error error = author.failure("local t = { [{}] = 1, [{}] = 2 }\nfor k in pairs(t) do end");
  EXPECT_EQ(error.where(), "recipe.lua:2");
  EXPECT_THAT(error.what(), testing::HasSubstr("no fixed order"));
}

} // namespace
} // namespace fvlm::recipe
