// Lua patterns: find, match, gmatch and gsub of the string library. Lua's own matcher can take exponential time within
// one call, where the instruction hook does not run. This one charges every step.
#pragma once
#include <lua.h>

namespace fvlm::recipe {

int pattern_find(lua_State* L);
int pattern_match(lua_State* L);
int pattern_gmatch(lua_State* L);
int pattern_gsub(lua_State* L);

} // namespace fvlm::recipe
