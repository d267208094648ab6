// The math and utf8 libraries: Lua's own, without random numbers, and with a charge for the text that utf8 reads.
#include "recipe/sandbox_interpreter.h"

namespace fvlm::recipe {
namespace {

int charged(lua_State* L) {
  size_t length = 0;
  if (lua_type(L, 1) == LUA_TSTRING) lua_tolstring(L, 1, &length);
  constexpr uint64_t bytes_per_instruction = 8; // decoding is slower than copying
  Interpreter::of(L).charge(L, length / bytes_per_instruction + static_cast<uint64_t>(lua_gettop(L)));
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

} // namespace

int open_math(lua_State* L) {
  luaopen_math(L);
  for (const char* name : {"random", "randomseed"}) {
    lua_pushnil(L);
    lua_setfield(L, -2, name);
  }
  return 1;
}

int open_utf8(lua_State* L) {
  luaopen_utf8(L);
  for (const char* name : {"char", "codepoint", "codes", "len", "offset"}) {
    lua_getfield(L, -1, name);
    lua_pushcclosure(L, charged, 1);
    lua_setfield(L, -2, name);
  }
  return 1;
}

} // namespace fvlm::recipe
