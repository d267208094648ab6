#include "recipe/lua_order.h"

#include "recipe/sandbox_interpreter.h"

#include <algorithm>

namespace fvlm::recipe {
namespace {

struct Key {
  enum class Rank : uint8_t { none, number, text, boolean, object };
  Rank rank = Rank::none;
  bool truth = false;
  int place = 0;           // in the array of unsorted keys
  long double number = 0;  // holds every integer and every double
  std::string_view text{}; // kept alive by the table
};

Key key_at(lua_State* L, int index) {
  Key key;
  switch (lua_type(L, index)) {
  case LUA_TNIL:
    break;
  case LUA_TNUMBER:
    key.rank = Key::Rank::number;
    key.number = lua_isinteger(L, index) ? static_cast<long double>(lua_tointeger(L, index))
                                         : static_cast<long double>(lua_tonumber(L, index));
    break;
  case LUA_TSTRING: {
    size_t length = 0;
    const char* text = lua_tolstring(L, index, &length);
    key.rank = Key::Rank::text;
    key.text = {text, length};
    break;
  }
  case LUA_TBOOLEAN:
    key.rank = Key::Rank::boolean;
    key.truth = lua_toboolean(L, index) != 0;
    break;
  default:
    key.rank = Key::Rank::object;
  }
  return key;
}

bool before(const Key& a, const Key& b) {
  if (a.rank != b.rank) return a.rank < b.rank;
  if (a.rank == Key::Rank::number) return a.number < b.number;
  if (a.rank == Key::Rank::text) return a.text < b.text;
  return a.rank == Key::Rank::boolean && a.truth < b.truth;
}

[[noreturn]] void refuse_objects(lua_State* L) {
  luaL_error(L, "several keys of this table are tables or functions, which have no fixed order\n  keep them in a "
                "list as well, and iterate over that");
  std::abort(); // not reached
}

} // namespace

void push_sorted_keys(lua_State* L, int table) {
  table = lua_absindex(L, table);
  Interpreter& self = Interpreter::of(L);
  lua_Unsigned count = 0;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) count++;
  self.charge(L, count);
  MemoryClaim claim(L, count * sizeof(Key));
  std::vector<Key> keys;
  keys.reserve(count);
  auto size = static_cast<int>(std::min<lua_Unsigned>(count, std::numeric_limits<int>::max()));
  lua_createtable(L, size, 0);
  int found = lua_gettop(L);
  bool object = false;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    keys.push_back(key_at(L, -2));
    keys.back().place = static_cast<int>(keys.size());
    if (keys.back().rank == Key::Rank::object && std::exchange(object, true)) refuse_objects(L);
    lua_pushvalue(L, -2);
    lua_rawseti(L, found, keys.back().place);
  }
  std::ranges::sort(keys, before);
  lua_createtable(L, size, 0);
  for (size_t i = 0; i < keys.size(); i++) {
    lua_rawgeti(L, found, keys[i].place);
    lua_rawseti(L, -2, static_cast<lua_Integer>(i) + 1);
  }
  lua_remove(L, found);
}

bool push_key_after(lua_State* L, int table, int key) {
  table = lua_absindex(L, table);
  const Key given = key_at(L, key);
  Key best;
  uint64_t count = 0;
  int objects = 0;
  lua_pushnil(L); // the best so far
  int best_at = lua_gettop(L);
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1), count++) {
    Key candidate = key_at(L, -2);
    if (candidate.rank == Key::Rank::object && ++objects > 1) refuse_objects(L);
    if (!before(given, candidate) || (best.rank != Key::Rank::none && !before(candidate, best))) continue;
    best = candidate;
    lua_pushvalue(L, -2);
    lua_replace(L, best_at);
  }
  Interpreter::of(L).charge(L, count);
  if (best.rank != Key::Rank::none) return true;
  lua_pop(L, 1);
  return false;
}

} // namespace fvlm::recipe
