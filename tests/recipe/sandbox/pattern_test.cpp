#include "author.h"
#include "plain_lua.h"

namespace fvlm::recipe {
namespace {

// Tries many patterns on many texts and returns all results as one text. Errors count as results.
constexpr const char* trial = R"lua(
local state = SEED
local function random(n) state = (state * 1103515245 + 12345) % 2147483648 return state // 65536 % n + 1 end
local pieces = { "a", "b", "ab", ".", "%a", "%d", "%s", "%w", "%A", "%p", "%x", "%u", "[ab]", "[^a]", "[a-c]", "[%d_]", "[]]",
  "[^]a]", "[a-]", "[%]]", "(a)",
                     "(", ")", "()", "(.-)", "(%w+)", "%1", "%2", "%b()", "%bxy", "%f[%w]", "%f[^a]", "^", "$", "%%",
                     "%.", "[", "%", "x*", "a+", "b-", "c?", ".-", ".*", "%f", "%b", "[a", "\0", "[%z\0]", "-", ""
}
local letters = { "a", "b", "c", "x", "y", "(", ")", "1", "_", " ", "]", "A", ".", "%", "\0", "-" }
local function text(n) local t = {} for i = 1, random(n) - 1 do t[i] = letters[random(#letters)] end return table.concat(t) end
local function pattern() local t = {} for i = 1, random(5) do t[i] = pieces[random(#pieces)] end return table.concat(t) end
local quantifiers = { "", "", "*", "+", "-", "?" }
local replacements = { "<%0>", "%1", "[%1%2]", "%%", "%", "%9", "z", "" }
local out = {}
local function show(...)
  local t = table.pack(...)
  for i = 1, t.n do t[i] = type(t[i]) == "nil" and "nil" or tostring(t[i]) end
  out[#out + 1] = table.concat(t, "|")
end
local function clean(e) return (tostring(e):gsub("^[^:]*:%d+: ", "")) end
for i = 1, ROUNDS do
  local s, p = text(14), pattern() .. quantifiers[random(6)]
  local init = random(20) - 10
  local function try(what, f, ...)
    local r = table.pack(pcall(f, ...))
    if r[1] then show(i, what, s, p, table.unpack(r, 2, r.n)) else show(i, what, s, p, clean(r[2])) end
  end
  try("find", string.find, s, p, init)
  try("plain", string.find, s, p, init, true)
  try("match", string.match, s, p, init)
  try("gsub", string.gsub, s, p, replacements[random(#replacements)], random(4) == 1 and random(3) - 1 or nil)
  try("call", string.gsub, s, p, function(a, b) if a == "a" then return false end return a .. "/" .. tostring(b) end)
  try("table", string.gsub, s, p, { a = "1", ab = 2, ["("] = false, x = true })
  try("all", function() local t = {} for a, b in s:gmatch(p) do t[#t + 1] = tostring(a) .. "," .. tostring(b) end return table.concat(t, ";") end)
end
return table.concat(out, "\n")
)lua";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (char c : text) {
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  }
  return lines;
}

class SandboxPattern : public testing::TestWithParam<int> {};

TEST_P(SandboxPattern, MatchesLikePlainLua) {
  std::string program = trial;
  program.replace(program.find("SEED"), 4, std::to_string(GetParam()));
  program.replace(program.find("ROUNDS"), 6, "1500");
  SandboxConfig config = test_config();
  config.limits = {.instructions = 200'000'000, .memory_bytes = 128 << 20, .seconds = 60};
  Author author;
  std::vector<std::string> ours = lines_of(text(author.run(program, config))), theirs = lines_of(plain_lua(program));
  ASSERT_EQ(theirs.size(), 1500u * 7) << theirs[0];
  ASSERT_EQ(ours.size(), theirs.size());
  int differences = 0;
  for (size_t i = 0; i < ours.size() && differences < 10; i++) {
    if (ours[i] == theirs[i]) continue;
    differences++;
    ADD_FAILURE() << "ours:   " << ours[i] << "\ntheirs: " << theirs[i];
  }
}

INSTANTIATE_TEST_SUITE_P(, SandboxPattern, testing::Range(1, 9));

} // namespace
} // namespace fvlm::recipe
