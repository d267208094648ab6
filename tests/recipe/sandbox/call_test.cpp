#include "author.h"

namespace fvlm::recipe {
namespace {

FunctionId function(const Value& value) {
  return std::get<FunctionId>(value.data);
}

TEST(SandboxCall, CallsAFunctionOfTheRecipe) {
  Author author;
  Value recipe = author.run("return { schedule = function(t, m) return t * 2 + m.loss end }");
  Value arguments[] = {{0.5, {}}, plain({{"loss", {int64_t{3}, {}}}})};
  Value result = author.sandbox().call(function(field(recipe, "schedule")), arguments);
  EXPECT_EQ(number(result), 4.0);
}

TEST(SandboxCall, ReturnsArgumentsAsTheFunctionLeftThem) {
  Author author;
  Value recipe = author.run(R"lua(local fvlm = require "fvlm"
return { run = function(m, memory)
  memory.best = math.min(memory.best or m.loss, m.loss)
  memory.seen[#memory.seen + 1] = m.loss
  if m.loss > memory.best then return fvlm.scale_lr(0.5) end
end })lua");
  auto seen = std::make_shared<Table>();
  Value memory = plain({{"seen", {std::shared_ptr<const Table>(seen), {}}}});
  std::vector<Value> after;
  for (double loss : {2.0, 1.0, 3.0}) {
    Value arguments[] = {plain({{"loss", {loss, {}}}}), memory};
    Value answer = author.sandbox().call(function(field(recipe, "run")), arguments, &after);
    memory = after.at(1);
    if (loss == 3.0) {
      EXPECT_EQ(table(answer).constructor, "scale_lr");
      EXPECT_EQ(number(table(answer).arguments.at(0)), 0.5);
      EXPECT_EQ(line(answer), 2);
    } else {
      EXPECT_TRUE(std::holds_alternative<std::monostate>(answer.data));
    }
  }
  EXPECT_EQ(number(field(memory, "best")), 1.0);
  EXPECT_EQ(table(field(memory, "seen")).items.size(), 3u);
}

// Which of the lazy fields of its argument a function computes, in their order.
std::string computed_by(const std::string& body) {
  Author author;
  const Value recipe = author.run("return { work = function(t) " + body + " end }");
  std::string computed;
  const auto made = std::make_shared<Table>();
  made->fields = {{"a", {int64_t{1}, {}}}};
  for (const char* name : {"long", "wide"})
    made->lazy.emplace_back(name, [&computed, name] {
      computed += name[0];
      return 0.5;
    });
  Value argument{std::shared_ptr<const Table>(made), {}};
  EXPECT_EQ(number(author.sandbox().call(function(field(recipe, "work")), {&argument, 1})), 0.5) << body;
  return computed;
}

TEST(SandboxCall, ComputesFieldsThatAreRead) {
  EXPECT_EQ(computed_by("return 0.5 * t.a"), "");
  EXPECT_EQ(computed_by("return t.wide + t.wide - t['wi' .. 'de'] + (t.other or t[1] or 0)"), "w");
  EXPECT_EQ(computed_by("t.wide = 2 return t.long + t.wide - 2"), "l");
  EXPECT_EQ(computed_by("local x = t.long t.long = nil return t.long == nil and x"), "l");
}

TEST(SandboxCall, ComputesFieldsOfATableThatWasKept) {
  Author author;
  const Value recipe =
      author.run("local kept\nreturn { work = function(t) kept = t or kept return t and 1 or kept.long end }");
  {
    const auto made = std::make_shared<Table>();
    made->lazy.emplace_back("long", [] { return 0.5; });
    const Value argument{std::shared_ptr<const Table>(made), {}};
    EXPECT_EQ(integer(author.sandbox().call(function(field(recipe, "work")), {&argument, 1})), 1);
  }
  EXPECT_EQ(number(author.sandbox().call(function(field(recipe, "work")), {})), 0.5);
}

TEST(SandboxCall, TablesWithFieldsThatWereNotReadAreLikeOthers) {
  EXPECT_EQ(
      computed_by("local s = '' for k, v in pairs(t) do s = s .. k .. v end return s == 'a1long0.5wide0.5' and 0.5"),
      "lw");
  EXPECT_EQ(computed_by("return next(t, 'a') == 'long' and next(t, 'long') == 'wide' and t.wide"), "lw");
  EXPECT_EQ(computed_by("return rawget(t, 'wide')"), "lw");
  EXPECT_EQ(computed_by("return getmetatable(t) == nil and 0.5"), "lw");
  EXPECT_EQ(computed_by("setmetatable(t, { __index = function() return 7 end }) return t.other - 6.5"), "lw");
}

TEST(SandboxCall, LimitsAreFreshForEachCall) {
  Author author;
  SandboxConfig config = test_config();
  config.call_limits.instructions = 200'000;
  Value recipe =
      author.run("return { work = function(n) local s = 0 for i = 1, n do s = s + i end return s end }", config);
  FunctionId work = function(field(recipe, "work"));
  for (int i = 0; i < 20; i++) {
    Value small[] = {{int64_t{20'000}, {}}}, large[] = {{int64_t{1'000'000}, {}}};
    EXPECT_EQ(integer(author.sandbox().call(work, small)), 200'010'000);
    if (i % 5 != 0) continue;
    try {
      author.sandbox().call(work, large);
      ADD_FAILURE() << "a call of a million steps was not stopped";
    } catch (const Error& error) {
      EXPECT_EQ(author.inside(error).where(), "recipe.lua:1");
      EXPECT_STREQ(error.what(), "more than 200000 instructions");
    }
  }
}

TEST(SandboxCall, GarbageOfEarlierCallsDoesNotCount) {
  Author author;
  SandboxConfig config = test_config();
  config.call_limits.memory_bytes = 4 << 20;
  config.call_limits.instructions = 2'000'000;
  Value recipe = author.run("local kept = ('k'):rep(3000000)\n"
                            "return { work = function(n) return #(('x'):rep(n)) + #kept end }",
                            config);
  for (int i = 0; i < 20; i++) {
    Value arguments[] = {{int64_t{1'500'000}, {}}};
    EXPECT_EQ(integer(author.sandbox().call(function(field(recipe, "work")), arguments)), 4'500'000);
  }
}

TEST(SandboxCall, ErrorNamesTheLineAndLeavesTheSandboxUsable) {
  Author author;
  Value recipe = author.run("return {\n  f = function(x)\n    return x.y.z\n  end }");
  FunctionId f = function(field(recipe, "f"));
  for (int i = 0; i < 3; i++) {
    Value arguments[] = {plain({})};
    try {
      author.sandbox().call(f, arguments);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(author.inside(error).where(), "recipe.lua:3");
    }
  }
}

TEST(SandboxCall, LaterCallsReadNoNewFiles) {
  Author author;
  author.write("early.lua", "return 1");
  author.write("late.lua", "return 2");
  Value recipe = author.run("require 'early'\nreturn { f = function(name) return require(name) end }");
  Value early[] = {{std::string("early"), {}}}, late[] = {{std::string("late"), {}}};
  EXPECT_EQ(integer(author.sandbox().call(function(field(recipe, "f")), early)), 1);
  try {
    author.sandbox().call(function(field(recipe, "f")), late);
    ADD_FAILURE() << "a file was read during training";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("is too late"));
  }
}

TEST(SandboxCall, InvalidResultIsAnErrorAtTheFunction) {
  Author author;
  Value recipe = author.run("return {\n  f = function() return coroutine.create(print) end }");
  try {
    author.sandbox().call(function(field(recipe, "f")), {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(author.inside(error).where(), "recipe.lua:2");
  }
}

TEST(SandboxCall, UnknownFunctionIsAnInternalError) {
  Author author;
  author.run("return {}");
  try {
    author.sandbox().call(FunctionId{3}, {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
  }
}

} // namespace
} // namespace fvlm::recipe
