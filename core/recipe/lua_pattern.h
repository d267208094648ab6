// Lua patterns: find, match, gmatch and gsub of the string library, matched by our own code because a pattern can take
// exponential time inside one call, where no hook of Lua's comes. Every step is paid for.
#pragma once
#include <lua.h>

namespace fvlm::recipe {

int pattern_find(lua_State* L);
int pattern_match(lua_State* L);
int pattern_gmatch(lua_State* L);
int pattern_gsub(lua_State* L);

} // namespace fvlm::recipe
