#include "author.h"

#include <fmt/format.h>

namespace fvlm::recipe {
namespace {

TEST(SandboxValue, RecipeBecomesATreeWithLinesOfEveryField) {
  Author author;
  Value recipe = author.run(R"lua(local fvlm = require "fvlm"
local lr = { connector = 1e-3,
             vision = 1e-5 }
return fvlm.recipe {
  name = "tiny", seed = 42,
  model = fvlm.model { vision = "weights/v",
                       connector = {
                         query_dim = 384,
                         visual_scale = 0.14 } },
  kernels = { attention = { "cudnn", "reference" } }, -- [[ not a comment of many lines

  fvlm.stage "align" {
    data = fvlm.mix { { "a.tar", weight = 0.86 },
                      { text = "b.tar", weight = 0.14 } },
    optimizer = fvlm.adamw { lr = lr, on = function() if true then return { x = 1, } end end,
                             weight_decay = 0.01 },
    samples = 1e6, batch = 32, fast = true,
  },
  fvlm.stage("instruct", {
    objective = fvlm.next_token { on = "answer" },
  }),
})lua");
  EXPECT_EQ(table(recipe).constructor, "recipe");
  EXPECT_EQ(line(recipe), 4);
  EXPECT_EQ(recipe.origin.file, (author.folder() / "recipe.lua").string());
  EXPECT_EQ(text(field(recipe, "name")), "tiny");
  EXPECT_EQ(integer(field(recipe, "seed")), 42);
  EXPECT_EQ(line(field(recipe, "seed")), 5);
  const Value& connector = field(field(recipe, "model"), "connector");
  EXPECT_EQ(line(connector), 7);
  EXPECT_EQ(line(field(connector, "query_dim")), 8);
  EXPECT_EQ(number(field(connector, "visual_scale")), 0.14);
  EXPECT_EQ(line(field(connector, "visual_scale")), 9);
  EXPECT_EQ(text(item(field(field(recipe, "kernels"), "attention"), 2)), "reference");

  ASSERT_EQ(table(recipe).items.size(), 2u);
  const Value& align = item(recipe, 1);
  EXPECT_EQ(table(align).constructor, "stage");
  EXPECT_EQ(text(table(align).arguments.at(0)), "align");
  EXPECT_EQ(line(align), 12);
  const Value& second_source = item(field(align, "data"), 2);
  EXPECT_EQ(line(second_source), 14);
  EXPECT_EQ(line(field(second_source, "weight")), 14);
  const Value& optimizer = field(align, "optimizer");
  EXPECT_EQ(line(optimizer), 15);
  EXPECT_EQ(line(field(optimizer, "weight_decay")), 16);
  EXPECT_EQ(line(field(optimizer, "lr")), 15);
  // the table of a variable has the lines where it is written
  EXPECT_EQ(line(field(field(optimizer, "lr"), "vision")), 3);
  EXPECT_TRUE(std::holds_alternative<FunctionId>(field(optimizer, "on").data));
  EXPECT_EQ(number(field(align, "samples")), 1e6);
  EXPECT_EQ(std::get<bool>(field(align, "fast").data), true);

  const Value& instruct = item(recipe, 2);
  EXPECT_EQ(text(table(instruct).arguments.at(0)), "instruct");
  EXPECT_EQ(line(instruct), 19);
  EXPECT_EQ(line(field(instruct, "objective")), 20);
}

TEST(SandboxValue, DistinguishesCallsOnOneLineByTheirKeys) {
  Author author;
  Value recipe = author.run(R"lua(local fvlm = require "fvlm"
return fvlm.recipe { a = fvlm.adamw { lr = 1 }, b = fvlm.adamw { beta = 2,
  eps = 3 }, c = fvlm.adamw { lr = 4,
  decay = 5 } })lua");
  EXPECT_EQ(line(field(field(recipe, "a"), "lr")), 2);
  EXPECT_EQ(line(field(field(recipe, "b"), "eps")), 3);
  EXPECT_EQ(line(field(field(recipe, "c"), "decay")), 4);
}

TEST(SandboxValue, CallsOverSeveralLinesAndInLocalsKeepTheirLines) {
  Author author;
  Value recipe = author.run(R"lua(local fvlm = require "fvlm"
local stage, adamw = fvlm.stage, fvlm.adamw
return fvlm.recipe {
  stage
    "align"
    {
      batch = 1,
    },
  optimizer =
    adamw {
      lr = 1,
    },
})lua");
  EXPECT_EQ(line(field(item(recipe, 1), "batch")), 7);
  EXPECT_EQ(line(field(recipe, "optimizer")), 9);
  EXPECT_EQ(line(field(field(recipe, "optimizer"), "lr")), 11);
}

TEST(SandboxValue, StringsCommentsAndFunctionsDoNotMisleadLines) {
  Author author;
  Value recipe =
      author.run("local fvlm = require 'fvlm'\r\n"
                 "return fvlm.recipe { -- }\r\n"
                 "  a = [==[ } ]] \r\n ]==], --[[ b = 9,\r\n ]] b = '}\\'',\r\n"
                 "  c = function(x) local t = { y = 1, } while x do if y then break end end return t, x end,\r\n"
                 "  ['d'] = 4, [\"e e\"] = #\"}\" }");
  EXPECT_EQ(line(field(recipe, "a")), 3);
  EXPECT_EQ(line(field(recipe, "b")), 5);
  EXPECT_EQ(line(field(recipe, "c")), 6);
  EXPECT_EQ(line(field(recipe, "d")), 7);
  EXPECT_EQ(line(field(recipe, "e e")), 7);
  EXPECT_EQ(text(field(recipe, "b")), "}'");
}

TEST(SandboxValue, FieldSetLaterHasTheLineOfItsTable) {
  Author author;
  Value recipe = author.run(R"lua(local fvlm = require "fvlm"
local stage = fvlm.stage "align" {
  batch = 1,
}
stage.samples = 10
return fvlm.recipe { stage })lua");
  EXPECT_EQ(integer(field(item(recipe, 1), "samples")), 10);
  EXPECT_EQ(line(field(item(recipe, 1), "samples")), 2);
  EXPECT_EQ(line(item(recipe, 1)), 6);
  EXPECT_EQ(table(item(recipe, 1)).origin.line, 2);
}

TEST(SandboxValue, ConstructorCopiesItsTable) {
  Author author;
  Value recipe = author.run(R"lua(local fvlm = require "fvlm"
local base = { lr = 1 }
local first = fvlm.adamw(base)
base.lr = 2
return fvlm.recipe { first = first, second = fvlm.adamw(base), third = fvlm.cosine() })lua");
  EXPECT_EQ(integer(field(field(recipe, "first"), "lr")), 1);
  EXPECT_EQ(integer(field(field(recipe, "second"), "lr")), 2);
  EXPECT_EQ(table(field(recipe, "third")).constructor, "cosine");
}

TEST(SandboxValue, PlainTableMayBeReturned) {
  Author author;
  Value result = author.run("local x = { a = 0 }\nreturn {\n  a = 1,\n  b = { c = 2 },\n}");
  EXPECT_EQ(line(result), 2);
  EXPECT_EQ(line(field(result, "a")), 3);
  EXPECT_EQ(line(field(field(result, "b"), "c")), 4);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(Author().run("local x = 1").data));
}

TEST(SandboxValue, FileOfOneLongLineIsReadQuickly) {
  std::string recipe = "local fvlm = require 'fvlm' return { fvlm.adamw { lr = 1 }";
  for (int i = 0; i < 20'000; i++) recipe += fmt::format(", fvlm.adamw {{ lr = {} }}", i);
  SandboxConfig config = test_config();
  config.limits.memory_bytes = 256 << 20;
  Author author;
  Value result = author.run(recipe + " }", config);
  EXPECT_EQ(table(result).items.size(), 20'001u);
  EXPECT_EQ(line(field(item(result, 20'001), "lr")), 1);
}

TEST(SandboxValue, TooManyValuesAndLongKeysAreRefusedAtTheirTable) {
  Author author;
  SandboxConfig config = test_config();
  config.limits.values = 1000;
  const std::string text = "local t = {}\nfor i = 1, 998 do t[i] = i end\nreturn {\n  list = t }";
  EXPECT_NO_THROW(author.run(text, config)) << "998 numbers in a table in a table";
  config.limits.values = 999;
  EXPECT_STREQ(author.failure(text, config).what(), "more than 999 values");
  const Error error = author.failure("return {\n  [('k'):rep(201)] = 1 }");
  EXPECT_STREQ(error.what(), "a key of this table has 201 bytes");
  EXPECT_EQ(error.where(), "recipe.lua:1");
}

TEST(SandboxValue, FieldsAreSortedByLineThenName) {
  Author author;
  Value result = author.run("return {\n z = 1,\n c = 2, a = 3, b = 4,\n}");
  std::string order;
  for (const auto& [name, value] : table(result).fields) order += name;
  EXPECT_EQ(order, "zabc");
}

TEST(SandboxValue, ReportsAFieldWhoseVariableIsNil) {
  Author author;
  Value recipe = author.run(R"lua(local fvlm = require "fvlm"
local rates = { vision = 1 }
return fvlm.recipe {
  lr = rates.visoin,
  decay = undefined,
  off = nil,
  maybe = rates.x and 1 or nil,
  computed = tonumber("x"),
  fvlm.stage "a" { },
  stage_b,
})lua");
  std::vector<std::string> nils;
  for (const auto& [name, origin] : table(recipe).nils) nils.push_back(name + "@" + std::to_string(origin.line));
  EXPECT_THAT(nils, testing::UnorderedElementsAre("lr@4", "decay@5", "[2]@10"));
}

TEST(SandboxValue, RefusesUnsupportedValuesAtTheirLine) {
  struct Case {
    const char* text;
    int line;
    const char* what;
  };
  const Case cases[] = {
      {"local t = {}\nt.me = t\nreturn {\n  a = t }", 4, "contains itself"},
      {"return {\n  co = coroutine.create(print) }", 2, "a thread cannot be part of a recipe"},
      {"return {\n  f = print }", 2, "a built-in function of Lua"},
      {"return {\n  f = require('fvlm').stage 'x' }", 2, "fvlm.stage still waits for its table"},
      {"return {\n  f = require('fvlm').adamw }", 2, "fvlm.adamw still waits"},
      {"return {\n  [true] = 1 }", 1, "a key of this table is a boolean"},
      {"return {\n  t = { [1.5] = 1 } }", 2, "a key of this table is a number"},
      {"return {\n  t = { 1,\n  nil, 3 } }", 3, "item 2 is nil"},
      {"return {\n  t = { [0] = 1 } }", 2, "item 1 is nil"},
      {"return {\n  t = setmetatable({}, { __index = { a = 1 } }) }", 2, "a table with a metatable"},
      {"return {\n  t = string }", 2, "a table with a metatable"},
  };
  for (const Case& c : cases) {
    Author author;
    Error error = author.failure(c.text);
    EXPECT_EQ(error.kind(), ErrorKind::recipe);
    EXPECT_EQ(error.where(), "recipe.lua:" + std::to_string(c.line)) << c.text;
    EXPECT_THAT(error.what(), testing::HasSubstr(c.what));
  }
}

TEST(SandboxValue, WrongConstructorCallSaysHowToCallIt) {
  struct Case {
    const char* call;
    const char *what, *advice;
  };
  const Case cases[] = {
      {"fvlm.adamw(nil)", "fvlm.adamw got nil; is a variable not defined here", "write fvlm.adamw { ... }"},
      {"fvlm.adamw 'x'", "fvlm.adamw got a string", "write fvlm.adamw { ... }"},
      {"fvlm.adamw({}, 1)", "another argument after its table", "write fvlm.adamw { ... }"},
      {"fvlm:adamw {}", "call it with a dot", "write fvlm.adamw { ... }"},
      {"fvlm.stage {}", "fvlm.stage got a table", "write fvlm.stage \"name\" { ... }"},
      {"fvlm.stage()", "0 of 1 values", "write fvlm.stage"},
      {"fvlm.adamw(fvlm.cosine {})", "fvlm.adamw got fvlm.cosine { }", "write fvlm.adamw"},
      {"fvlm.adamw(setmetatable({}, {}))", "a table with a metatable", "write fvlm.adamw"},
      {"fvlm.scale_lr()", "0 of 1 values", "write fvlm.scale_lr(value)"},
      {"fvlm.scale_lr {}", "fvlm.scale_lr got a table", "write fvlm.scale_lr(value)"},
      {"fvlm.stop_stage(1)", "fvlm.stop_stage got a number", "write fvlm.stop_stage()"},
      {"fvlm.adamv {}", "fvlm has no 'adamv'", "did you mean 'adamw'?"},
  };
  for (const Case& c : cases) {
    Author author;
    Error error = author.failure(std::string("local fvlm = require 'fvlm'\nlocal x = ") + c.call);
    EXPECT_EQ(error.where(), "recipe.lua:2") << c.call;
    EXPECT_THAT(error.what(), testing::HasSubstr(c.what)) << c.call;
    EXPECT_THAT(error.advice(), testing::HasSubstr(c.advice)) << c.call;
  }
}

TEST(SandboxValue, ArgReadsTheCommandLineWithItsDefaultsType) {
  Author author;
  SandboxConfig config = test_config();
  config.args = {{"batch", "64"}, {"lr", "1e-4"}, {"fast", "true"}, {"name", "x=y"}, {"free", "7"}};
  Value result = author.run(R"lua(local fvlm = require "fvlm"
return { batch = fvlm.arg("batch", 32), lr = fvlm.arg("lr", 1), fast = fvlm.arg("fast", false),
         name = fvlm.arg("name", "none"), free = fvlm.arg("free"), other = fvlm.arg("other", 5) })lua",
                            config);
  EXPECT_EQ(integer(field(result, "batch")), 64);
  EXPECT_EQ(number(field(result, "lr")), 1e-4);
  EXPECT_EQ(std::get<bool>(field(result, "fast").data), true);
  EXPECT_EQ(text(field(result, "name")), "x=y");
  EXPECT_EQ(text(field(result, "free")), "7");
  EXPECT_EQ(integer(field(result, "other")), 5);
  const auto& read = author.sandbox().args_read();
  EXPECT_EQ(read.size(), 6u);
  EXPECT_EQ(integer(read.at("batch")), 32);
  EXPECT_EQ(line(read.at("batch")), 2);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(read.at("free").data));
}

TEST(SandboxValue, ArgThatDoesNotFitItsDefaultIsAnErrorAtItsLine) {
  for (auto [value, what] : {std::pair{"many", "expected a number"},
                             {"", "expected a number"},
                             {"1x", "expected a number"},
                             {"nan", "expected a number"}}) {
    Author author;
    SandboxConfig config = test_config();
    config.args = {{"n", value}};
    Error error = author.failure("local fvlm = require 'fvlm'\nreturn { fvlm.arg('n', 1) }", config);
    EXPECT_EQ(error.where(), "recipe.lua:2");
    EXPECT_THAT(error.what(), testing::HasSubstr(what));
  }
  Author author;
  SandboxConfig config = test_config();
  config.args = {{"n", "yes"}};
  EXPECT_THAT(author.failure("return require('fvlm').arg('n', true)", config).what(),
              testing::HasSubstr("expected true or false"));
  EXPECT_THAT(author.failure("return require('fvlm').arg('n', {})").what(), testing::HasSubstr("is a table"));
}

} // namespace
} // namespace fvlm::recipe
