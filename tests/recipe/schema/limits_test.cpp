// Limits on the cost of a recipe, from its file to its Plan. Nothing here measures time: work is counted, or refused.
#include "base/error.h"
#include "base/file.h"
#include "base/scratch_folder.h"
#include "recipe/allowance.h"
#include "recipe/resolve.h"
#include "small_recipe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::recipe;
using namespace fvlm::recipe::build;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

namespace {

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::recipe);
    return error.text();
  }
  return "no error";
}

// The error of resolve() for a recipe with so many stages, each with `more` in its table.
std::string of_stages(int count, const std::string& before, const std::string& more) {
  const ScratchFolder folder;
  write_file_atomic(folder / "r.lua", "local fvlm = require \"fvlm\"\n" + before + R"(
local all = { name = "r", model = fvlm.model { vision = "v", decoder = "d" } }
for i = 1, )" + std::to_string(count) + R"( do
  all[i] = fvlm.stage("s" .. i, {
    data = fvlm.mix { "a.tar" }, objective = fvlm.next_token {}, optimizer = fvlm.adamw { lr = 1e-3 },
    samples = 100, batch = 10, )" + more + R"(
  })
end
return fvlm.recipe(all)
)");
  const Limits hours{.seconds = 36'000};
  return message_of(
      [&] { resolve({.file = folder / "r.lua", .sets = {}, .args = {}, .library = folder.path(), .limits = hours}); });
}

} // namespace

TEST(RecipeAllowance, RefusesWhatGoesBeyondIt) {
  Allowance allowance({.instructions = 1000, .memory_bytes = 1 << 20});
  const Origin place{"r.lua", 7, {}};
  allowance.charge(place, 600, 1 << 19);
  EXPECT_EQ(allowance.remaining({.instructions = 300}).instructions, 300u);
  EXPECT_EQ(allowance.remaining({}).instructions, 400u);
  EXPECT_EQ(allowance.remaining({}).memory_bytes, 1u << 19);
  EXPECT_FALSE(allowance.exhausted());
  EXPECT_THAT(message_of([&] { allowance.charge(place, 0, (1 << 19) + 1); }),
              HasSubstr("r.lua:7: the recipe and its functions need more than 1.0 MiB of memory"));
  EXPECT_TRUE(allowance.exhausted());

  Allowance other({.instructions = 1000});
  EXPECT_THAT(message_of([&] { other.charge(place, 1001); }), HasSubstr("more than 1,000 instructions"));
  EXPECT_THAT(message_of([&] { other.charge(place, 0); }), HasSubstr("more than 1,000 instructions")) << "still";
  Allowance late({.seconds = -1});
  EXPECT_THAT(message_of([&] { late.charge(place, 0); }), HasSubstr("seconds"));
}

TEST(RecipeAllowance, MessagesNameTheSecondsOfTheLimit) {
  const Allowance five({.seconds = 5});
  EXPECT_EQ(five.remaining({.seconds = 2}).seconds, 2);
  EXPECT_EQ(five.remaining({.seconds = 60}).seconds, 5);
  const ScratchFolder folder;
  write_file_atomic(folder / "r.lua", "while true do end");
  const Limits limits{.instructions = uint64_t{1} << 60, .seconds = 0.25};
  EXPECT_THAT(message_of([&] {
                resolve({.file = folder / "r.lua", .sets = {}, .args = {}, .library = folder.path(), .limits = limits});
              }),
              HasSubstr("r.lua:1: longer than 0.25 seconds"));
}

TEST(RecipeAllowance, IsSharedByAllFunctionsOfARecipe) {
  const std::string slow = "local function slow(x) local s = 0 for i = 1, 100000 do s = s + i end return 1 end";
  EXPECT_THAT(of_stages(300, slow, "schedule = slow"),
              HasSubstr("r.lua:2: the recipe and its functions need more than 50,000,000 instructions"));
  EXPECT_EQ(of_stages(3, "local function quick(x) return 1 - x / 2 end", "schedule = quick"), "no error");
}

TEST(RecipeLimits, StagesAreAtMostAThousand) {
  EXPECT_EQ(of_stages(1000, "", ""), "no error");
  EXPECT_THAT(of_stages(1001, "", ""), HasSubstr("stages: expected at most 1,000, got 1,001"));
  EXPECT_THAT(of_stages(20'000, "", ""), HasSubstr("more than 100,000 values"));
}

TEST(RecipeLimits, GroupsOfParametersAreAtMostAHundred) {
  std::vector<Key> groups;
  for (int i = 0; i < 101; ++i) groups.push_back(key(fmt::format("g{}", i), 5, fmt::format("decoder.{}.*", i)));
  const Value model =
      table(3, "model", {key("vision", 3, "v"), key("decoder", 3, "d"), key("groups", 5, table(5, "", groups))});
  EXPECT_THAT(mistakes_of(small_recipe({small_stage()}, {key("model", 3, model)})),
              ElementsAre("r.lua:5: model.groups: 101 parameter groups exceed the limit of 100"));
}

TEST(RecipeLimits, ValuesOfAPlanFileAreCounted) {
  Reader reader({}, std::make_shared<Allowance>(Limits{.values = 20}));
  reader.reads_plan_file = true;
  const Value list = from_json(Json::parse(R"({"name": "x", "stages": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]})"),
                               {"plan.json", 0});
  EXPECT_EQ(message_of([&] { freeze(list, {}, reader); }), "no error") << "the table, a name, a list of 17";
  const Value longer =
      from_json(Json::parse(R"({"stages": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19]})"), {"plan.json", 0});
  EXPECT_THAT(message_of([&] { freeze(longer, {}, reader); }), HasSubstr("plan.json: more than 20 values"));
}

TEST(RecipeLimits, TheFirstHundredMistakesAreListedAndTheOthersCounted) {
  std::vector<Key> keys;
  for (int i = 0; i < 1000; ++i) keys.push_back(key(fmt::format("zz{:04}", i), 10 + i, 1));
  Reader reader;
  freeze(small_recipe({small_stage()}, keys), {}, reader);
  EXPECT_THAT(reader.mistakes.list(), SizeIs(100));
  EXPECT_EQ(reader.mistakes.count(), 1000u);
  const std::string text = message_of([&] { reader.mistakes.raise(); });
  EXPECT_THAT(text, HasSubstr("zz0099: unknown key"));
  EXPECT_THAT(text, testing::Not(HasSubstr("zz0100")));
  EXPECT_THAT(text, testing::EndsWith("100 mistakes, and 900 more that are not listed"));
}

TEST(RecipeLimits, MistakesOfAnyLengthAreCut) {
  Mistakes mistakes;
  std::string long_text = "ab";
  for (int i = 0; i < 5000; ++i) long_text += "\u00fc"; // of two bytes, so that a cut at 2,000 falls between
  mistakes.add({{"r.lua", 1, {}}, "a", long_text.substr(1), long_text});
  EXPECT_EQ(mistakes.list()[0].what.size(), 1999u + 3) << "no half character";
  EXPECT_EQ(mistakes.list()[0].advice.size(), 2000u + 3);
}
