// A fixed order of the keys of a table, so that a traversal does not depend on memory layout: numbers by value, then
// strings by bytes, then false and true. Tables and functions could only be ordered by address, so a table may have one
// such key, and two raise an error.
#pragma once
#include <lua.h>

namespace fvlm::recipe {

// Pushes an array of the keys of the table at `table`, in order.
void push_sorted_keys(lua_State* L, int table);

// Pushes the key after the one at `key` (nil: the first key). After the last key, returns false and pushes nothing.
bool push_key_after(lua_State* L, int table, int key);

} // namespace fvlm::recipe
