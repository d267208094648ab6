// From a file to a Plan: Lua recipes and plan files, --arg, where values came from.
#include "base/error.h"
#include "base/file.h"
#include "recipe/freeze.h"
#include "recipe/resolve.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <gmock/gmock.h>
#include <unistd.h>

using namespace fvlm;
using namespace fvlm::recipe;
using testing::HasSubstr;
namespace fs = std::filesystem;

class ResolveTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / fmt::format("fvlm-resolve-test-{}", getpid());
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }

  // A recipe with this text in its stage; the stage's lines are 3 (name) to 12 as written here.
  fs::path recipe(const std::string& stage, const std::string& before = "") {
    fs::path file = folder / "r.lua";
    write_file_atomic(file, before + R"(
local fvlm = require "fvlm"
return fvlm.recipe {
  name = "small",
  model = fvlm.model { vision = "v", decoder = "d" },
  fvlm.stage "align" {
    data = fvlm.mix { "a.tar" },
    objective = fvlm.next_token { on = "all" },
    batch = 32, samples = 1000,
)" + stage + "\n  },\n}\n");
    return file;
  }
  Resolved resolved(const fs::path& file, std::map<std::string, std::string> args = {},
                    std::vector<std::string> sets = {}) {
    return resolve({.file = file, .sets = std::move(sets), .args = std::move(args), .library = folder});
  }
  std::string error_of(const fs::path& file, std::map<std::string, std::string> args = {},
                       std::vector<std::string> sets = {}) {
    try {
      resolved(file, std::move(args), std::move(sets));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::recipe);
      return error.text();
    }
    ADD_FAILURE() << "no error";
    return "";
  }
  std::string at(int line) const { return fmt::format("{}:{}", (folder / "r.lua").string(), line); }
  fs::path folder;
};

static const char* adamw = "    optimizer = fvlm.adamw { lr = 1e-3 },";

TEST_F(ResolveTest, LuaRecipeHasTheLineOfEachValue) {
  auto made = resolved(recipe(adamw));
  EXPECT_EQ(made.plan.stages[0].steps, 32);
  EXPECT_EQ(made.sources.at("name"), at(4));
  EXPECT_EQ(made.sources.at("stages.align.samples"), at(9));
  EXPECT_EQ(made.sources.at("stages.align.optimizer.lr.vision"), at(10));
  EXPECT_FALSE(made.sources.contains("seed"));
  EXPECT_EQ(made.files.size(), 1u);
}

TEST_F(ResolveTest, CollectsMistakesOnSeveralLines) {
  auto text = error_of(
      recipe("    optimizer = fvlm.adamw {\n      lr = 0,\n      betas = { 0.9 },\n    },\n    warmup = 0.1,"));
  EXPECT_THAT(text, HasSubstr(at(11) + ": stages.align.optimizer.lr: expected"));
  EXPECT_THAT(text, HasSubstr(at(12) + ": stages.align.optimizer.betas: expected a list of 2"));
  EXPECT_THAT(
      text, HasSubstr(at(14) + ": stages.align.warmup: unknown key 'warmup'\n  it belongs in 'schedule', as 'warmup'"));
  EXPECT_THAT(text, HasSubstr("3 mistakes"));
}

TEST_F(ResolveTest, RecipeThatReturnsAnotherType) {
  write_file_atomic(folder / "r.lua", "return 5");
  EXPECT_THAT(error_of(folder / "r.lua"), HasSubstr("expected fvlm.recipe { }, got the number 5"));
}

TEST_F(ResolveTest, RecipeThatReturnsNothing) {
  write_file_atomic(folder / "r.lua", "local x = 1");
  EXPECT_THAT(error_of(folder / "r.lua"),
              HasSubstr("r.lua: the recipe returns nothing\n  write 'return' before fvlm.recipe { ... }"));
}

TEST_F(ResolveTest, OtherJsonIsNotAdvisedAsAPlan) {
  const std::string where = folder.string() + ": this is a folder\n  ";
  write_file_atomic(folder / "manifest.json", R"({"format": "shards", "shards": []})");
  EXPECT_EQ(error_of(folder), where + "name a recipe (.lua)");
  EXPECT_THAT(error_of(folder / "manifests.json"), testing::EndsWith("manifests.json: there is no such file"));
  write_file_atomic(folder / "plan.json", plan_document(resolve({.file = recipe(adamw)})).dump(1));
  std::filesystem::remove(folder / "r.lua");
  EXPECT_EQ(error_of(folder), where + "name a recipe in it: " + (folder / "plan.json").string());
}

TEST_F(ResolveTest, MissingFileOrFolder) {
  auto file = recipe(adamw);
  EXPECT_EQ(error_of(folder / "rr.lua"), fmt::format("{}: there is no such file\n  did you mean '{}'?",
                                                     (folder / "rr.lua").string(), file.string()));
  EXPECT_EQ(error_of(folder),
            fmt::format("{}: this is a folder\n  name a recipe in it: {}", folder.string(), file.string()));
  EXPECT_THAT(error_of(folder / "none" / "r.lua"), testing::EndsWith("r.lua: there is no such file"));
}

TEST_F(ResolveTest, InvalidPlanFile) {
  auto error = [&](const std::string& text) {
    write_file_atomic(folder / "p.json", text);
    return error_of(folder / "p.json");
  };
  EXPECT_THAT(error("{\"format\": \"fvlm.plan/1\", \"plan\": {"),
              HasSubstr("p.json: invalid JSON: parse error at line 1"));
  EXPECT_THAT(error(""), HasSubstr("a plan file is what `fvlm-engine plan RECIPE --json` prints"));
  EXPECT_THAT(error("[1]"), HasSubstr("not a plan file"));
  EXPECT_THAT(error("{\"format\": 1, \"plan\": {}}"), HasSubstr("not a plan file"));
  EXPECT_THAT(error("{\"format\": \"fvlm.plan/9\", \"plan\": {}}"),
              HasSubstr("unsupported plan format fvlm.plan/9, expected fvlm.plan/1"));
}

TEST_F(ResolveTest, APlanFileWithARemovedKeyIsReadWhateverItsHash) {
  Json document = plan_document(resolved(recipe(adamw)));
  document["plan"]["speed"]["overlap_vision"] = false;
  document["hash"] = std::string(64, '0');
  write_file_atomic(folder / "p.json", document.dump());
  EXPECT_NO_THROW(resolved(folder / "p.json"));
  document["plan"]["speed"].erase("overlap_vision");
  write_file_atomic(folder / "p.json", document.dump());
  EXPECT_THAT(error_of(folder / "p.json"), HasSubstr("the plan does not match its hash"));
}

TEST_F(ResolveTest, PreferenceOrListAppliesToEveryKind) {
  plan::BackendPreferences both{"cudnn", "reference"};
  EXPECT_EQ(resolved(recipe(adamw), {}, {"kernels=cudnn,reference"}).plan.kernels["loss"], both);
  EXPECT_EQ(resolved(recipe(adamw), {}, {"kernels=[\"cudnn\",\"reference\"]"}).plan.kernels["rope"], both);
  EXPECT_EQ(resolved(recipe(adamw), {}, {"kernels=reference"}).plan.kernels["rope"],
            plan::BackendPreferences{"reference"});
  EXPECT_THAT(error_of(recipe(adamw), {}, {"stages=x"}), testing::Not(HasSubstr("mistakes")));
}

TEST_F(ResolveTest, SamplesFunctionsOfScheduleAndWeight) {
  auto made = resolved(recipe(std::string(adamw) + "\n    schedule = function(x) return 1 - x * x end,"));
  const auto& curve = std::get<plan::Curve>(made.plan.stages[0].schedule);
  ASSERT_EQ(curve.points.size(), 257u);
  EXPECT_EQ(curve.points[128], 0.75);
  EXPECT_EQ(made.sources.at("stages.align.schedule"), at(11));
  EXPECT_THAT(error_of(recipe(std::string(adamw) + "\n    schedule = function(x) return x.y end,")),
              HasSubstr(at(11) + ": stages.align.schedule: the function failed at 0: "));
}

TEST_F(ResolveTest, TracesArgumentsToTheValuesTheyChange) {
  auto file = recipe(std::string(adamw) + "\n    packing = { window = window },",
                     "local window = require 'fvlm'.arg('window', 8)");
  auto made = resolved(file, {{"window", "16"}});
  EXPECT_EQ(made.plan.stages[0].packing.window, 16);
  EXPECT_EQ(made.sources.at("stages.align.packing.window"), "--arg window=16 (" + at(11) + ")");
  EXPECT_EQ(made.sources.at("stages.align.samples"), at(9));
  EXPECT_EQ(resolved(file).plan.stages[0].packing.window, 8);
}

TEST_F(ResolveTest, UnusedArgumentIsAMistake) {
  auto file = recipe(adamw, "local size = require 'fvlm'.arg('size', 1)");
  EXPECT_EQ(error_of(file, {{"sise", "2"}}),
            "--arg sise=2: the recipe reads no argument 'sise'\n  did you mean 'size'?");
}

TEST_F(ResolveTest, SetOverridesTheRecipeAndIsNamed) {
  auto made = resolved(recipe(adamw), {}, {"stages.align.samples=64"});
  EXPECT_EQ(made.plan.stages[0].steps, 2);
  EXPECT_EQ(made.sources.at("stages.align.samples"), "--set stages.align.samples=64");
}

TEST_F(ResolveTest, PlanFileGivesTheSamePlan) {
  auto first = resolved(
      recipe(std::string(adamw) +
             "\n    schedule = function(x) return x end,\n    control = { every = 5, run = function() end },"));
  std::string text = plan_document(first).dump(2);
  write_file_atomic(folder / "p.json", text);
  auto again = resolved(folder / "p.json");
  EXPECT_EQ(again.hash, first.hash);
  EXPECT_EQ(again.sources, first.sources);
  EXPECT_TRUE(differences(first.plan, again.plan).empty());
  again.recipe = first.recipe;
  EXPECT_EQ(plan_document(again).dump(2), text);
  EXPECT_EQ(again.plan.stages[0].control->run.code.size(), 64u);
}

TEST_F(ResolveTest, PlanFileAcceptsSet) {
  write_file_atomic(folder / "p.json", plan_document(resolved(recipe(adamw))).dump());
  auto changed = resolved(folder / "p.json", {}, {"seed=7", "stages.align.samples=64"});
  EXPECT_EQ(changed.plan.seed, 7);
  EXPECT_EQ(changed.plan.stages[0].steps, 2);
  EXPECT_EQ(changed.sources.at("seed"), "--set seed=7");
  EXPECT_EQ(changed.sources.at("name"), at(4));
  EXPECT_EQ(changed.hash, resolved(recipe(adamw), {}, {"seed=7", "stages.align.samples=64"}).hash);
}

TEST_F(ResolveTest, RefusesAChangedOrInvalidPlanFile) {
  auto document = plan_document(resolved(recipe(adamw)));
  auto refused = [&](const std::string& text) {
    write_file_atomic(folder / "p.json", text);
    return error_of(folder / "p.json");
  };
  document["plan"]["seed"] = 1;
  EXPECT_THAT(refused(document.dump()), HasSubstr("the plan does not match its hash"));
  document["plan"]["sede"] = 1;
  EXPECT_THAT(refused(document.dump()), HasSubstr("sede: unknown key 'sede'\n  did you mean 'seed'?"));
  EXPECT_THAT(refused("{\"format\": \"fvlm.plan/9\"}"), HasSubstr("not a plan file"));
  EXPECT_THAT(refused("{"), HasSubstr("invalid JSON"));
  EXPECT_THAT(refused("[1]"), HasSubstr("not a plan file"));
}

TEST_F(ResolveTest, CodeOfAControlFunctionIsPartOfTheHash) {
  std::string control = "\n    control = { every = 5, run = function() return nil end },";
  auto first = resolved(recipe(adamw + control)).hash;
  EXPECT_EQ(resolved(recipe(adamw + control)).hash, first);
  EXPECT_NE(resolved(recipe(adamw + control, "-- another text")).hash, first);
  EXPECT_EQ(resolved(recipe(adamw)).hash, resolved(recipe(adamw, "-- another text")).hash); // no function, no matter
}

TEST_F(ResolveTest, ControlFunctionsCanBeCalled) {
  auto made = resolved(
      recipe(std::string(adamw) +
             "\n    control = { every = 5, run = function(m) if m.loss > 1 then return fvlm.scale_lr(0.5) end end },"));
  auto metrics = std::make_shared<Table>();
  metrics->fields = {{"loss", {2.0, {}}}};
  std::vector<Value> arguments = {{std::shared_ptr<const Table>(metrics), {}}};
  FunctionId function{static_cast<int>(made.plan.stages[0].control->run.index)};
  auto actions = read_actions(made.lua->call(function, arguments));
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<plan::ScaleRate>(actions[0]).factor, 0.5);
}

TEST_F(ResolveTest, ImageSizeIsThatOfTheModelsFoldersWhereTheRecipeNamesNone) {
  const fs::path file = recipe("optimizer = fvlm.adamw { lr = 1e-3 },");
  const auto of = [&](const fs::path& from, std::vector<std::string> sets, std::optional<int64_t> said) {
    return resolve({.file = from,
                    .sets = std::move(sets),
                    .library = folder,
                    .image_size =
                        [said](const plan::Model& model) {
                          EXPECT_EQ(std::get<std::string>(model.vision), "v");
                          return said;
                        }})
        .plan.model.image_size;
  };
  EXPECT_EQ(of(file, {}, 384), 384);
  EXPECT_EQ(of(file, {}, {}), 224);
  EXPECT_EQ(of(file, {"model.image_size=96"}, 384), 96);
  write_file_atomic(folder / "plan.json", plan_document(resolve({.file = file, .library = folder})).dump());
  EXPECT_EQ(of(folder / "plan.json", {}, 384), 224) << "a plan file says everything";
}
