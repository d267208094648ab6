#include "author.h"

#include <fmt/format.h>

namespace fvlm::recipe {
namespace {

struct Failure {
  const char* text;
  const char *where, *what, *advice;
};
void PrintTo(const Failure& failure, std::ostream* out) {
  *out << failure.what;
}

class SandboxError : public testing::TestWithParam<Failure> {};

TEST_P(SandboxError, NamesTheAuthorsLine) {
  Author author;
  author.write("helper.lua", "local M = {}\nfunction M.fail() error('broken') end\nfunction M.deep()\n  M.fail()\nend\n"
                             "return M");
  author.write("wrong.lua", "local x = 1\n\nreturn x end");
  Error error = author.failure(GetParam().text);
  EXPECT_EQ(error.kind(), ErrorKind::recipe);
  EXPECT_EQ(error.where(), GetParam().where) << error.text();
  EXPECT_EQ(std::string(error.what()), GetParam().what) << error.text();
  EXPECT_THAT(error.advice(), testing::HasSubstr(GetParam().advice)) << error.text();
}

INSTANTIATE_TEST_SUITE_P(
    , SandboxError,
    testing::Values(
        Failure{"local x\nx.y = 1", "recipe.lua:2", "attempt to index a nil value (local 'x')", ""},
        Failure{"return 1 +", "recipe.lua:1", "unexpected symbol near <eof>", ""},
        Failure{"local t = {\n  a = 1\n  b = 2\n}", "recipe.lua:3", "'}' expected (to close '{' at line 1) near 'b'",
                ""},
        Failure{"error('mine')", "recipe.lua:1", "mine", ""}, Failure{"error('mine', 0)", "recipe.lua:1", "mine", ""},
        Failure{"local function f() error('mine', 2) end\n\nf()", "recipe.lua:3", "mine", ""},
        Failure{"\nassert(false, 'mine')", "recipe.lua:2", "mine", ""},
        Failure{"\nassert(nil)", "recipe.lua:2", "assertion failed!", ""},
        Failure{"\nerror({})", "recipe.lua:2", "the error object is a table", ""},
        Failure{"\nerror(setmetatable({}, { __tostring = function() return 'as text' end }))", "recipe.lua:2",
                "as text", ""},
        Failure{"\nerror(setmetatable({}, { __tostring = error }))", "recipe.lua:2", "an error whose __tostring fails",
                ""},
        Failure{"\nerror()", "recipe.lua:2", "nil", ""},
        Failure{"local h = require 'helper'\n\nh.deep()", "helper.lua:2",
                "broken\n  called from helper.lua:4\n  called from recipe.lua:3", ""},
        Failure{"\n\nrequire 'wrong'", "wrong.lua:3", "<eof> expected near 'end'\n  called from recipe.lua:3", ""},
        Failure{"\nstring.rep()", "recipe.lua:2", "bad argument #1 to 'rep' (string expected, got no value)", ""},
        Failure{"\nlocal x = ('x'):bad()", "recipe.lua:2", "attempt to call a nil value (method 'bad')", ""},
        Failure{"local co = coroutine.wrap(function()\n error('inside')\nend)\nco()", "recipe.lua:2",
                "inside\n  called from recipe.lua:4", ""},
        Failure{"local ok, e = pcall(error, 'first')\n\nerror(e, 0)", "recipe.lua:3", "first", ""},
        Failure{"local ok, e = pcall(function() error('first') end)\n\nerror(e)", "recipe.lua:1",
                "first\n  called from recipe.lua:3", ""},
        Failure{"\nos.exit()", "recipe.lua:2", "attempt to index a nil value (global 'os')", "the sandbox has no 'os'"},
        Failure{"\nload('x')", "recipe.lua:2", "attempt to call a nil value (global 'load')",
                "the sandbox has no 'load'"},
        Failure{"\nlocal n = math.random()", "recipe.lua:2", "attempt to call a nil value (field 'random')",
                "no random numbers"},
        Failure{"\nreturn fvml.recipe {}", "recipe.lua:2", "attempt to index a nil value (global 'fvml')",
                "did you mean 'fvlm'?"},
        Failure{"\nreturn fvlm.recipe {}", "recipe.lua:2", "attempt to index a nil value (global 'fvlm')",
                "begin the file with: local fvlm = require \"fvlm\""},
        Failure{"\nreturn stage 'align' {}", "recipe.lua:2", "attempt to call a nil value (global 'stage')",
                "write fvlm.stage, where"},
        Failure{"return learning_rate * 2", "recipe.lua:1",
                "attempt to perform arithmetic on a nil value (global "
                "'learning_rate')",
                "'learning_rate' is not defined here"},
        Failure{"return {\n a = 1\n b = 2 }", "recipe.lua:3", "'}' expected (to close '{' at line 1) near 'b'",
                "is a comma missing before it?"},
        Failure{"local f = require 'flvm'", "recipe.lua:1", "require found no module 'flvm': no file flvm.lua",
                "did you mean 'fvlm'?"},
        Failure{"local _ENV = {}", "recipe.lua:1", "_ENV is not allowed in a recipe", "plain names"}),
    [](const auto& info) { return fmt::format("mistake_{}", info.index + 1); });

TEST(SandboxErrors, NameALongPathWhole) {
  Author author;
  std::string name = "a_folder_with_a_name_of_some_length/another_folder_with_a_name_of_some_length/module";
  author.write(name + ".lua", "\nerror('here')");
  author.write("a_folder_with_a_name_of_some_length/b/another_folder_with_a_name_of_some_length/module.lua",
               "\n\nerror('there')");
  Error error =
      author.failure("require 'a_folder_with_a_name_of_some_length.another_folder_with_a_name_of_some_length.module'");
  EXPECT_EQ(error.where(), name + ".lua:2");
  EXPECT_THAT(error.what(), testing::StartsWith("here"));
  error = author.failure(
      "pcall(require, 'a_folder_with_a_name_of_some_length.another_folder_with_a_name_of_some_length.module')"
      "require 'a_folder_with_a_name_of_some_length.b.another_folder_with_a_name_of_some_length.module'");
  EXPECT_THAT(error.where(), testing::EndsWith("/module.lua:3"));
}

TEST(SandboxErrors, RecipeMustBeAReadableTextFile) {
  Author author;
  author.run("return 1");
  for (const char* name : {"missing.lua", "."}) {
    Sandbox sandbox(test_config());
    try {
      sandbox.run(author.folder() / name);
      ADD_FAILURE() << name << " was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::recipe);
      EXPECT_THAT(error.text(), testing::HasSubstr("cannot read"));
    }
  }
  EXPECT_THAT(author.failure("\x1bLua").what(), testing::HasSubstr("compiled Lua"));
}

TEST(SandboxErrors, SkipShebangAndByteOrderMark) {
  Author author;
  EXPECT_EQ(integer(author.run("#!/usr/bin/env \"fvlm-engine\n\nreturn 1")), 1);
  EXPECT_EQ(integer(author.run("\xef\xbb\xbfreturn 2")), 2);
  EXPECT_EQ(author.failure("#!/bin/sh\nerror('x')").where(), "recipe.lua:2");
}

TEST(SandboxErrors, SandboxRunsOnce) {
  Author author;
  author.run("return 1");
  EXPECT_THROW(author.sandbox().run(author.folder() / "recipe.lua"), Error);
}

} // namespace
} // namespace fvlm::recipe
