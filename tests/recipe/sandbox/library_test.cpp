#include "author.h"
#include "plain_lua.h"

namespace fvlm::recipe {
namespace {

// A program whose result in the sandbox must be that of plain Lua.
struct Program {
  const char *name, *text;
};
void PrintTo(const Program& program, std::ostream* out) {
  *out << program.name;
}

class SandboxLibrary : public testing::TestWithParam<Program> {};

constexpr const char* prelude = R"lua(
local out = {}
local function show(...)
  local t = table.pack(...)
  for i = 1, t.n do t[i] = tostring(t[i]) end
  out[#out + 1] = table.concat(t, "|")
end
local function clean(e) return type(e) == "string" and (e:gsub("^[^:]*:%d+: ", "")) or type(e) end
local function try(f, ...)
  local r = table.pack(pcall(f, ...))
  if r[1] then show(table.unpack(r, 1, r.n)) else show(false, clean(r[2])) end
end
)lua";

TEST_P(SandboxLibrary, BehavesLikePlainLua) {
  std::string program = std::string(prelude) + GetParam().text + "\nreturn table.concat(out, '\\n')";
  Author author;
  std::string theirs = plain_lua(program);
  ASSERT_THAT(theirs, testing::Not(testing::HasSubstr("plain Lua failed")));
  EXPECT_EQ(text(author.run(program)), theirs);
}

const Program programs[] = {
    {"strings", R"lua(
for _, s in ipairs { "", "a", "abc", "hello world", ("x"):rep(40) } do
  for i = -4, 4 do
    for j = -4, 4 do show(s:sub(i, j), s:byte(i, j)) end
    show(s:sub(i), s:byte(i))
  end
  show(s:upper(), s:lower(), s:reverse(), s:len(), #s, s:rep(3), s:rep(2, ","), s:rep(0), s:rep(-1, "x"), s:rep(1, "sep"))
end
show(string.char(), string.char(72, 105), ("%d"):rep(2))
try(string.char, 256) try(string.char, -1) try(string.rep) try(string.sub, "x") try(string.byte, {})
show(("x"):rep(0, "y"), (""):rep(1000), "10" + 5, "3" * "4", 10 .. 20, -"2", "0x10" + 0, 7 // "2")
try(function() return "a" + 1 end) try(function() return {} + 1 end) try(function() return "a" < 1 end))lua"},
    {"format", R"lua(
show(("%d %5d %-5d| %05d %+d"):format(1, 2, 3, 4, 5), ("%x %X %#x %o"):format(255, 255, 255, 8))
show(("%f %.3f %10.2f %g %e %a"):format(1.5, 2.25, 3.125, 1e20, 12345.678, 0.5), ("%i"):format(3))
show(("%s %10s %-10s| %.2s"):format("a", "b", "c", "defg"), ("%q"):format('a "quoted"\n\0 text'), ("%q"):format(1/3))
show(("%c%c"):format(72, 105), ("%%"):format(), ("%s %s %s"):format(nil, true, 1.5), ("%5s"):format(true))
try(string.format, "%d", 1.5) try(string.format, "%d") try(string.format, "%y", 1) try(string.format, "%") try(string.format, "%10")
try(string.format, "%123d", 1) try(string.format, "%s") try(string.format, "%d", "x") show(("%d"):format("10"))
show(("%s"):format(setmetatable({}, { __tostring = function() return "mine" end }))))lua"},
    {"tables", R"lua(
local function joined(t) return table.concat(t, ",") end
local t = { 1, 2, 3 }
table.insert(t, 4) table.insert(t, 1, 0) table.insert(t, 3, 9) show(joined(t))
show(table.remove(t), table.remove(t, 1), table.remove(t, 2), joined(t))
show(table.remove({}), table.remove({}, 0), table.remove({ n = 1 }, #t - #t))
try(table.insert, t, 9, 1) try(table.insert, t, 0, 1) try(table.insert, t) try(table.insert, t, 1, 2, 3) try(table.insert, 1, 2)
show(table.remove(t, #t + 1))
show(table.concat({}), table.concat({ 1, "a", 2.5 }, "-"), table.concat({ 1, 2, 3 }, ", ", 2), table.concat({ 1, 2, 3 }, "", 2, 3), table.concat({}, "x", 5, 1))
try(table.concat, { 1, {}, 3 }) try(table.concat, { 1 }, ",", 1, 2)
show(table.unpack { 1, nil, 3 }) show(table.unpack({ 1, 2, 3 }, 2)) show(table.unpack({ 1, 2, 3 }, 2, 5)) show(table.unpack({}, 1, 0))
try(table.unpack, {}, 1, 1e8) try(table.unpack, {}, math.mininteger, math.maxinteger)
show(table.pack(1, nil, 3).n, table.pack().n)
show(joined(table.move({ 1, 2, 3, 4 }, 2, 4, 1)), joined(table.move({ 1, 2, 3 }, 1, 3, 2)), joined(table.move({ 1, 2, 3 }, 1, 3, 3, { 7, 8 })))
try(table.move, {}, math.mininteger, math.maxinteger, 1) try(table.move, {}, 1, math.maxinteger, 2) try(table.move, 1, 2, 3, 4)
local u = { 5, 2, 8, 1, 9, 3 } table.sort(u) show(joined(u)) table.sort(u, function(a, b) return a > b end) show(joined(u))
local w = { "pear", "apple", "fig" } table.sort(w) show(joined(w)) try(table.sort, { 1, "x" }) try(table.sort, { 1, 2 }, 3)
local log = {}
local p = setmetatable({}, { __index = function(_, i) return i <= 3 and i * 10 or nil end, __len = function() return 3 end,
  __newindex = function(_, k, v) log[#log + 1] = k .. "=" .. tostring(v) end })
show(table.concat(p, ","), table.unpack(p)) table.insert(p, 4) table.remove(p) show(joined(log)))lua"},
    {"basics", R"lua(
show(tonumber("10"), tonumber(" 0x1p4 "), tonumber("1e1"), tonumber(""), tonumber("1 2"), tonumber("z", 36), tonumber("-ff", 16), tonumber("8", 8), tonumber(" 7 ", 8))
show(tonumber(nil), tonumber({}), tonumber("1e"), tonumber("0x"), tonumber("1\0"), tonumber("9" .. ("9"):rep(30)))
try(tonumber) try(tonumber, 1, 10) try(tonumber, "1", 37) try(tonumber, "1", 1)
show(select("#"), select("#", nil, nil), select(2, "a", "b", "c")) show(select(-1, "a", "b")) try(select, 0) try(select, -5, 1)
show(type(nil), type(1), type("x"), type({}), type(print), rawequal("a", "a"), rawlen({ 1, 2 }), rawlen("abc"), rawget({ a = 1 }, "a"))
try(type) try(rawset, 1, 2, 3) try(rawlen, 5) try(ipairs) try(setmetatable, 1, {}) try(setmetatable, {}, 1)
show(tostring(1), tostring(1.0), tostring(-0.0), tostring(1e100), tostring(true), tostring(nil), tostring("x"))
show(pcall(error)) show(pcall(error, "x", 0)) show(pcall(error, nil)) show(select("#", pcall(function() end)))
show(xpcall(function(...) return ... end, print, 1, 2)) show(xpcall(error, function(e) return "handled " .. e end, "x", 0))
show(xpcall(function() local x = nil; x() end, function(e) return clean(e) end)) try(xpcall) try(pcall)
local protected = setmetatable({}, { __metatable = "mine" }) show(getmetatable(protected)) try(setmetatable, protected, {})
local mt = {} show(getmetatable(setmetatable({}, mt)) == mt, getmetatable({}))
local sum = 0 for i, v in ipairs { 1, 2, 3, nil, 5 } do sum = sum + i * v end show(sum)
local seen = {} for k, v in pairs(setmetatable({}, { __pairs = function() return next, { 7 }, nil end })) do seen[k] = v end show(seen[1])
show(assert(1, 2, 3)) try(assert, false) try(assert, nil, "because") try(assert))lua"},
    {"objects", R"lua(
local Point = {} Point.__index = Point
function Point.__add(a, b) return setmetatable({ x = a.x + b.x }, Point) end
function Point.__eq(a, b) return a.x == b.x end
function Point.__lt(a, b) return a.x < b.x end
function Point.__le(a, b) return a.x <= b.x end
function Point.__call(self, y) return self.x * y end
function Point.__len(self) return self.x end
function Point.__unm(self) return setmetatable({ x = -self.x }, Point) end
function Point.__tostring(self) return "Point " .. self.x end
function Point.new(x) return setmetatable({ x = x }, Point) end
local a, b = Point.new(1), Point.new(2)
show(a + b, a == b, a < b, a <= b, a(10), #b, -a, a ~= Point.new(1), getmetatable(a) == Point)
local counted = setmetatable({}, { __newindex = function(t, k, v) rawset(t, k, v * 2) end }) counted.x = 4 show(counted.x))lua"},
    {"coroutines", R"lua(
local co = coroutine.create(function(a, b) local c = coroutine.yield(a + b) local d, e = coroutine.yield(c * 2) return d, e, "end" end)
show(coroutine.resume(co, 1, 2)) show(coroutine.resume(co, 10)) show(coroutine.status(co)) show(coroutine.resume(co, 3, 4))
show(coroutine.status(co)) show(coroutine.resume(co))
local gen = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end) show(gen(), gen(), gen(), gen()) try(gen)
show(coroutine.isyieldable()) show(coroutine.wrap(function() return coroutine.isyieldable() end)())
show(coroutine.wrap(function() return pcall(function() coroutine.yield("inside") error("x", 0) end) end)())
local w = coroutine.wrap(function() return pcall(function() coroutine.yield("inside") error("x", 0) end) end) show(w()) show(w())
local x = coroutine.wrap(function() return xpcall(function() coroutine.yield(1) error("y", 0) end, function(e) return e .. "!" end) end) show(x()) show(x())
show(coroutine.resume(coroutine.create(function() error("z", 0) end)))
show(coroutine.resume(coroutine.running())) try(coroutine.yield) try(coroutine.create, 1) try(coroutine.status, 1)
local outer outer = coroutine.create(function() show(coroutine.status(outer)) local inner = coroutine.wrap(function() show(coroutine.status(outer)) end) inner() end)
coroutine.resume(outer) show(select(2, coroutine.running()))
local recursive recursive = coroutine.wrap(function() recursive() end) try(recursive))lua"},
    {"numbers", R"lua(
show(7 // 2, -7 // 2, 7 % -3, -7 % 3, 7.5 // 2, 1 / 0, -1 / 0, 2 ^ 10, 1 << 62, 1 << 64, -1 >> 1, ~0, 5 // 0.0, math.mininteger // -1)
try(function() return 1 // 0 end) try(function() return 1 % 0 end) try(function() return 1.5 & 1 end)
show(math.maxinteger + 1 == math.mininteger, math.type(1), math.type(1.0), math.type("1"), math.tointeger(3.0), math.tointeger("8"))
show(math.floor(-1.5), math.ceil(1.2), math.max(1, 5, 3), math.min(2, -1), math.fmod(7, 3), math.abs(-3), math.ult(1, -1), math.sqrt(16), math.pi)
local n = 0 for i = math.maxinteger - 2, math.maxinteger do n = n + 1 end show(n) for i = 1, 0 do n = -1 end for i = 3, 1, -1 do n = n + i end show(n)
try(function() for i = 1, 2, 0 do end end) for x = 0, 1, 0.25 do n = n + x end show(n))lua"},
    {"utf8", R"lua(
show(utf8.char(72, 228, 8364, 128512), utf8.len("Hä€"), utf8.codepoint("€", 1), utf8.offset("Hä€x", 3), utf8.charpattern)
for p, c in utf8.codes("aä€") do show(p, c) end
show(utf8.len("\xff"), utf8.len("abc", 4), utf8.len("abc", -1)) try(utf8.codepoint, "\xff") try(utf8.len, "abc", 9) try(utf8.char, -1))lua"},
};

INSTANTIATE_TEST_SUITE_P(, SandboxLibrary, testing::ValuesIn(programs),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SandboxSort, IsStableAndSurvivesAnyComparison) {
  Author author;
  Value result = author.run(R"lua(
local items = {}
for i = 1, 500 do items[i] = { key = (i * 37) % 11, i = i } end
table.sort(items, function(a, b) return a.key < b.key end)
local stable = true
for i = 2, #items do
  if items[i - 1].key == items[i].key and items[i - 1].i > items[i].i then stable = false end
end
local state, numbers = 1, {}
for i = 1, 300 do numbers[i] = i end
table.sort(numbers, function() state = state * 1103515245 % 65537 return state % 2 == 0 end)
local sum = 0
for _, n in ipairs(numbers) do sum = sum + n end
table.sort(numbers, function() return true end)
table.sort(numbers)
local sorted = true
for i, n in ipairs(numbers) do sorted = sorted and n == i end
return { stable = stable, sum = sum, sorted = sorted })lua");
  EXPECT_TRUE(std::get<bool>(field(result, "stable").data));
  EXPECT_EQ(integer(field(result, "sum")), 300 * 301 / 2);
  EXPECT_TRUE(std::get<bool>(field(result, "sorted").data));
}

TEST(SandboxMemory, IsFreedWithTheSandbox) {
  // What Lua holds is freed with it: seen by the leak checker, and by the same recipe running many times in the limits.
  for (int i = 0; i < 50; i++) {
    Author author;
    author.run("local t = {} for i = 1, 20000 do t[i] = { i, 'text ' .. i } end return { #t }");
  }
}

TEST(SandboxMemory, CollectsGarbageWithinTheLimit) {
  Author author;
  SandboxConfig config = test_config();
  config.limits = {.instructions = 100'000'000, .memory_bytes = 8 << 20, .seconds = 60};
  Value result =
      author.run("local n = 0 for i = 1, 400000 do local t = { i, { i } } n = n + #t end return { n }", config);
  EXPECT_EQ(integer(item(result, 1)), 800'000);
}

} // namespace
} // namespace fvlm::recipe
