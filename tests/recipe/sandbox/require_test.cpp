#include "author.h"

#include <sys/stat.h>

namespace fvlm::recipe {
namespace {

TEST(SandboxRequire, ReadsFilesBelowTheFolderOnce) {
  Author author;
  author.write("parts/data.lua", "count = (count or 0) + 1\nreturn { name = ..., count = count }");
  author.write("nothing.lua", "local x = 1");
  Value result = author.run(R"lua(local a = require "parts.data"
local b = require("parts.data")
return { same = rawequal(a, b), name = a.name, count = count, nothing = require "nothing" })lua");
  EXPECT_EQ(std::get<bool>(field(result, "same").data), true);
  EXPECT_EQ(text(field(result, "name")), "parts.data");
  EXPECT_EQ(integer(field(result, "count")), 1);
  EXPECT_EQ(std::get<bool>(field(result, "nothing").data), true);
  const auto& files = author.sandbox().files();
  ASSERT_EQ(files.size(), 3u);
  EXPECT_THAT(files.at(author.folder() / "parts/data.lua"), testing::StartsWith("count ="));
  EXPECT_THAT(files.at(author.folder() / "recipe.lua"), testing::StartsWith("local a"));
}

TEST(SandboxRequire, FieldsFromAnotherFileHaveItsLines) {
  Author author;
  author.write("stages.lua",
               "local fvlm = require 'fvlm'\nreturn {\n  align = fvlm.stage 'align' {\n    batch = 1,\n  },\n}");
  Value recipe = author.run(
      "local fvlm = require 'fvlm'\nlocal stages = require 'stages'\nreturn fvlm.recipe {\n\n  stages.align }");
  EXPECT_EQ(line(item(recipe, 1)), 5);
  EXPECT_EQ(where(field(item(recipe, 1), "batch").origin), (author.folder() / "stages.lua").string() + ":4");
}

TEST(SandboxRequire, NamesACycle) {
  Author author;
  author.write("a.lua", "return require 'b'");
  author.write("b.lua", "\nreturn require 'a'");
  Error error = author.failure("return require 'a'");
  EXPECT_EQ(error.where(), "b.lua:2");
  EXPECT_THAT(author.without_folder(error.what()), testing::StartsWith("circular require: a.lua -> b.lua -> a.lua"));
}

TEST(SandboxRequire, FailedModuleCanBeRequiredAgain) {
  Author author;
  author.write("a.lua", "error('no')");
  Value result =
      author.run("local _, one = pcall(require, 'a')\nlocal _, two = pcall(require, 'a')\nreturn { one == two }");
  EXPECT_EQ(std::get<bool>(item(result, 1).data), true);
}

TEST(SandboxRequire, BundledLibraryErrorsBlameTheAuthor) {
  Author author;
  SandboxConfig config = test_config();
  config.library = author.folder() / "library";
  author.write("library/helper.lua",
               "local M = {}\nfunction M.check(x)\n  if not x then error('x is missing') end\n  return x\nend\n"
               "function M.make() return require('fvlm').adamw { lr = 1 } end\nreturn M");
  Value result = author.run("local h = require 'fvlm.helper'\n\nreturn { h.make() }", config);
  EXPECT_EQ(line(item(result, 1)), 3);
  EXPECT_EQ(table(item(result, 1)).origin.line, 3);
  Error error = author.failure("local h = require 'fvlm.helper'\n\n\nlocal x = h.check()", config);
  EXPECT_EQ(error.where(), "recipe.lua:4");
  EXPECT_STREQ(error.what(), "x is missing");
  error = author.failure("local h = require 'fvlm.helper'\nreturn h.check()", config); // a tail call leaves no line
  EXPECT_EQ(error.where(), "recipe.lua");
}

TEST(SandboxRequire, BundledMergeDerivesOneRecipeFromAnother) {
  Author author;
  Value result = author.run(R"lua(local merge = require "fvlm.merge"
local base = { lr = { vision = 1, decoder = 2 }, list = { 1, 2, 3 }, name = "a" }
local big = merge(base, { lr = { decoder = 5 }, list = { 9 }, name = "b" })
return { big = big, base = base })lua");
  const Value& big = field(result, "big");
  EXPECT_EQ(integer(field(field(big, "lr"), "vision")), 1);
  EXPECT_EQ(integer(field(field(big, "lr"), "decoder")), 5);
  EXPECT_EQ(table(field(big, "list")).items.size(), 1u);
  EXPECT_EQ(text(field(big, "name")), "b");
  EXPECT_EQ(integer(field(field(field(result, "base"), "lr"), "decoder")), 2);
}

TEST(SandboxRequire, ReadsNoPipesOrFolders) {
  Author author;
  ASSERT_EQ(mkfifo((author.folder() / "pipe.lua").c_str(), 0600), 0);
  std::filesystem::create_directory(author.folder() / "folder.lua");
  for (const char* name : {"pipe", "folder"}) {
    Error error = author.failure(std::string("return require '") + name + "'");
    EXPECT_THAT(error.what(), testing::HasSubstr("found no module"));
  }
}

TEST(SandboxRequire, RecipeThatIsAPipeDoesNotHang) {
  Author author;
  ASSERT_EQ(mkfifo((author.folder() / "pipe.lua").c_str(), 0600), 0);
  Sandbox sandbox(test_config());
  EXPECT_THROW(sandbox.run(author.folder() / "pipe.lua"), Error);
}

TEST(SandboxRequire, TooMuchSourceIsAnError) {
  Author author;
  SandboxConfig config = test_config();
  config.limits.source_bytes = 5000;
  author.write("a.lua", "--" + std::string(3000, 'x'));
  author.write("b.lua", "--" + std::string(3000, 'x'));
  Error error = author.failure("require 'a'\npcall(require, 'b')\nreturn 1", config);
  EXPECT_EQ(error.where(), "recipe.lua:2");
  EXPECT_THAT(error.what(), testing::HasSubstr("more than 5000 bytes of Lua files"));
}

} // namespace
} // namespace fvlm::recipe
