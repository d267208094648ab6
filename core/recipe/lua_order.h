// One order of a table's keys, so that a walk does not show how or where the table lies in memory: numbers by size,
// then strings by bytes, then false and true. Tables and functions have no order but their address: one such key may
// be walked over, two raise an error.
#pragma once
#include <lua.h>

namespace fvlm::recipe {

// Pushes an array of the keys of the table at `table`, in order.
void push_sorted_keys(lua_State* L, int table);

// Pushes the key that follows the one at `key` (nil: the first). Returns false, and pushes nothing, after the last.
bool push_key_after(lua_State* L, int table, int key);

} // namespace fvlm::recipe
