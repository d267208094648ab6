// The string library. Each call is charged for the bytes it reads or creates. Patterns are in lua_pattern.cpp.
#include "recipe/lua_pattern.h"
#include "recipe/sandbox_interpreter.h"

#include <algorithm>
#include <cctype>
#include <limits>

namespace fvlm::recipe {
namespace {

std::string_view charged_text(lua_State* L) {
  size_t length = 0;
  const char* text = luaL_checklstring(L, 1, &length);
  Interpreter::of(L).charge_bytes(L, length);
  return {text, length};
}

// Converts a range as in string.sub to [first, last) offsets within the text.
std::pair<size_t, size_t> range(lua_State* L, lua_Integer last_default, size_t length) {
  auto size = static_cast<lua_Integer>(length);
  lua_Integer first = luaL_optinteger(L, 2, 1);
  lua_Integer last = luaL_optinteger(L, 3, last_default);
  if (first < 0) first = first < -size ? 1 : size + first + 1;
  if (last < 0) last = last < -size ? 0 : size + last + 1;
  first = std::max<lua_Integer>(first, 1);
  last = std::min(last, size);
  if (first > last) return {0, 0};
  return {static_cast<size_t>(first - 1), static_cast<size_t>(last)};
}

int byte(lua_State* L) {
  size_t size = 0;
  const char* text = luaL_checklstring(L, 1, &size);
  auto [from, to] = range(L, luaL_optinteger(L, 2, 1), size);
  Interpreter::of(L).charge(L, to - from);
  if (to - from >= static_cast<size_t>(std::numeric_limits<int>::max())) return luaL_error(L, "string slice too long");
  auto count = static_cast<int>(to - from);
  luaL_checkstack(L, count, "string slice too long");
  for (size_t i = from; i < to; i++) lua_pushinteger(L, static_cast<unsigned char>(text[i]));
  return count;
}

int from_bytes(lua_State* L) { // char
  int count = lua_gettop(L);
  Interpreter::of(L).charge(L, static_cast<uint64_t>(count));
  luaL_Buffer text;
  char* out = luaL_buffinitsize(L, &text, static_cast<size_t>(count));
  for (int i = 1; i <= count; i++) {
    auto code = static_cast<lua_Unsigned>(luaL_checkinteger(L, i));
    luaL_argcheck(L, code <= 255, i, "value out of range");
    out[i - 1] = static_cast<char>(code);
  }
  luaL_pushresultsize(&text, static_cast<size_t>(count));
  return 1;
}

int length(lua_State* L) {
  size_t size = 0;
  luaL_checklstring(L, 1, &size);
  return lua_pushinteger(L, static_cast<lua_Integer>(size)), 1;
}

template <class Change>
int changed(lua_State* L, Change change) {
  std::string_view text = charged_text(L);
  luaL_Buffer buffer;
  char* out = luaL_buffinitsize(L, &buffer, text.size());
  for (size_t i = 0; i < text.size(); i++) out[i] = change(text, i);
  luaL_pushresultsize(&buffer, text.size());
  return 1;
}

int lower(lua_State* L) {
  return changed(L, [](std::string_view text, size_t i) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
  });
}

int upper(lua_State* L) {
  return changed(L, [](std::string_view text, size_t i) {
    return static_cast<char>(std::toupper(static_cast<unsigned char>(text[i])));
  });
}

int reverse(lua_State* L) {
  return changed(L, [](std::string_view text, size_t i) { return text[text.size() - 1 - i]; });
}

int sub(lua_State* L) {
  size_t size = 0;
  const char* text = luaL_checklstring(L, 1, &size);
  luaL_checkinteger(L, 2);
  auto [from, to] = range(L, -1, size);
  Interpreter::of(L).charge_bytes(L, to - from);
  lua_pushlstring(L, text + from, to - from);
  return 1;
}

int repeat(lua_State* L) { // rep
  Interpreter& self = Interpreter::of(L);
  std::string_view text = charged_text(L);
  lua_Integer count = luaL_checkinteger(L, 2);
  size_t separator_size = 0;
  const char* separator = luaL_optlstring(L, 3, "", &separator_size);
  size_t step = text.size() + separator_size;
  if (count <= 0 || step == 0) return lua_pushliteral(L, ""), 1;
  auto times = static_cast<size_t>(count);
  if (times > self.limits.memory_bytes / step) self.stop_for_memory(L);
  constexpr size_t times_per_instruction = 8;
  self.charge(L, times / times_per_instruction);
  luaL_Buffer buffer;
  size_t total = times * step - separator_size;
  char* out = luaL_buffinitsize(L, &buffer, total);
  for (size_t i = 0; i < times; i++) {
    out = std::copy(text.begin(), text.end(), out);
    if (i + 1 < times) out = std::copy_n(separator, separator_size, out);
  }
  luaL_pushresultsize(&buffer, total);
  return 1;
}

// Checks the format and replaces the arguments of %s by their text without addresses, refuses %p, then calls Lua's own.
int format(lua_State* L) {
  std::string_view text = charged_text(L);
  int argument = 1, last = lua_gettop(L);
  for (size_t i = 0; i + 1 < text.size(); i++) {
    if (text[i] != '%') continue;
    if (text[++i] == '%') continue;
    while (i < text.size() && std::string_view("-+ #0123456789.").find(text[i]) != std::string_view::npos) i++;
    if (i == text.size()) break;
    argument++;
    if (text[i] == 'p') return luaL_error(L, "'%%p' is not allowed: a recipe must not depend on addresses");
    if (text[i] != 's' && text[i] != 'q') continue;
    if (argument > last) return luaL_argerror(L, argument, "no value");
    if (text[i] == 's') {
      push_text(L, argument);
      lua_replace(L, argument);
    }
    if (lua_type(L, argument) == LUA_TSTRING) Interpreter::of(L).charge_bytes(L, lua_rawlen(L, argument));
  }
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

} // namespace

int open_string(lua_State* L) {
  // Lua's own string library creates the metatable of strings, with arithmetic on numerals. Its functions are replaced.
  luaopen_string(L);
  lua_getfield(L, -1, "format");
  lua_newtable(L);
  lua_insert(L, -2);
  lua_pushcclosure(L, format, 1);
  lua_setfield(L, -2, "format");
  static constexpr luaL_Reg functions[] = {
      {"byte", byte},         {"char", from_bytes}, {"find", pattern_find}, {"gmatch", pattern_gmatch},
      {"gsub", pattern_gsub}, {"len", length},      {"lower", lower},       {"match", pattern_match},
      {"rep", repeat},        {"reverse", reverse}, {"sub", sub},           {"upper", upper},
      {nullptr, nullptr}};
  luaL_setfuncs(L, functions, 0);
  lua_pushliteral(L, "");
  lua_getmetatable(L, -1);
  lua_pushvalue(L, -3);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 2);
  lua_replace(L, -2);
  return 1;
}

} // namespace fvlm::recipe
