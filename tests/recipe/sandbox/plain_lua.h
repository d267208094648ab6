// Plain Lua with its own libraries, with which the sandbox's libraries are compared.
#pragma once
#include <lua.h>
#include <lualib.h>

#include <lauxlib.h>
#include <string>

namespace fvlm::recipe {

// The text that the program returns.
inline std::string plain_lua(const std::string& program) {
  lua_State* L = luaL_newstate();
  luaL_openlibs(L);
  std::string result;
  if (luaL_loadbufferx(L, program.data(), program.size(), "=recipe", "t") != LUA_OK ||
      lua_pcall(L, 0, 1, 0) != LUA_OK) {
    result = std::string("plain Lua failed: ") + lua_tostring(L, -1);
  } else {
    size_t length = 0;
    const char* text = lua_tolstring(L, -1, &length);
    result.assign(text, length);
  }
  lua_close(L);
  return result;
}

} // namespace fvlm::recipe
