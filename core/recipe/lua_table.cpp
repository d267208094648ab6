// The table library. Every element access is charged, because __len may report any length and __index may be a call.
// Sorting is a stable merge sort, which is deterministic for any comparison function.
#include "recipe/sandbox_interpreter.h"

#include <limits>

namespace fvlm::recipe {
namespace {

// Accepts a table, or a value with these metamethods. The engine's own tables refuse writes themselves.
void check_indexable(lua_State* L, int argument, std::initializer_list<const char*> metamethods) {
  if (lua_istable(L, argument)) return;
  for (const char* name : metamethods) {
    if (luaL_getmetafield(L, argument, name) == LUA_TNIL) luaL_checktype(L, argument, LUA_TTABLE);
    lua_pop(L, 1);
  }
}

int concat(lua_State* L) {
  Interpreter& self = Interpreter::of(L);
  check_indexable(L, 1, {"__index", "__len"});
  size_t separator_length = 0;
  const char* separator = luaL_optlstring(L, 2, "", &separator_length);
  lua_Integer from = luaL_optinteger(L, 3, 1);
  lua_Integer to = lua_isnoneornil(L, 4) ? luaL_len(L, 1) : luaL_checkinteger(L, 4);
  luaL_Buffer text;
  luaL_buffinit(L, &text);
  for (lua_Integer i = from; i <= to; i++) {
    self.charge(L, 2);
    lua_geti(L, 1, i);
    if (!lua_isstring(L, -1))
      luaL_error(L, "invalid value (%s) at index %I in table for 'concat'", luaL_typename(L, -1),
                 static_cast<LUAI_UACINT>(i));
    self.charge_bytes(L, lua_rawlen(L, -1));
    luaL_addvalue(&text);
    if (i == to) break; // `to` may be the largest integer
    luaL_addlstring(&text, separator, separator_length);
  }
  luaL_pushresult(&text);
  return 1;
}

int insert(lua_State* L) {
  Interpreter& self = Interpreter::of(L);
  check_indexable(L, 1, {"__index", "__newindex", "__len"});
  auto end = static_cast<lua_Integer>(static_cast<lua_Unsigned>(luaL_len(L, 1)) + 1);
  lua_Integer at = end;
  if (lua_gettop(L) == 3) {
    at = luaL_checkinteger(L, 2);
    luaL_argcheck(L, static_cast<lua_Unsigned>(at) - 1 < static_cast<lua_Unsigned>(end), 2, "position out of bounds");
    for (lua_Integer i = end; i > at; i--) {
      self.charge(L, 2);
      lua_geti(L, 1, i - 1);
      lua_seti(L, 1, i);
    }
  } else if (lua_gettop(L) != 2) {
    return luaL_error(L, "wrong number of arguments to 'insert'");
  }
  lua_seti(L, 1, at);
  return 0;
}

int remove(lua_State* L) {
  Interpreter& self = Interpreter::of(L);
  check_indexable(L, 1, {"__index", "__newindex", "__len"});
  lua_Integer length = luaL_len(L, 1), at = luaL_optinteger(L, 2, length);
  if (at != length) // 1 .. length + 1
    luaL_argcheck(L, static_cast<lua_Unsigned>(at) - 1 <= static_cast<lua_Unsigned>(length), 2,
                  "position out of bounds");
  lua_geti(L, 1, at);
  for (; at < length; at++) {
    self.charge(L, 2);
    lua_geti(L, 1, at + 1);
    lua_seti(L, 1, at);
  }
  lua_pushnil(L);
  lua_seti(L, 1, at);
  return 1;
}

int move(lua_State* L) {
  Interpreter& self = Interpreter::of(L);
  lua_Integer from = luaL_checkinteger(L, 2), last = luaL_checkinteger(L, 3), to = luaL_checkinteger(L, 4);
  int target = lua_isnoneornil(L, 5) ? 1 : 5;
  check_indexable(L, 1, {"__index"});
  check_indexable(L, target, {"__newindex"});
  if (last >= from) {
    luaL_argcheck(L, from > 0 || last < std::numeric_limits<lua_Integer>::max() + from, 3, "too many elements to move");
    lua_Integer count = last - from + 1;
    luaL_argcheck(L, to <= std::numeric_limits<lua_Integer>::max() - count + 1, 4, "destination wrap around");
    bool upwards = to > last || to <= from || (target != 1 && !lua_compare(L, 1, target, LUA_OPEQ));
    for (lua_Integer i = 0; i < count; i++) {
      lua_Integer offset = upwards ? i : count - 1 - i;
      self.charge(L, 2);
      lua_geti(L, 1, from + offset);
      lua_seti(L, target, to + offset);
    }
  }
  lua_pushvalue(L, target);
  return 1;
}

int pack(lua_State* L) {
  int count = lua_gettop(L);
  Interpreter::of(L).charge(L, static_cast<uint64_t>(count));
  lua_createtable(L, count, 1);
  lua_insert(L, 1);
  for (int i = count; i >= 1; i--) lua_seti(L, 1, i);
  lua_pushinteger(L, count);
  lua_setfield(L, 1, "n");
  return 1;
}

int unpack(lua_State* L) {
  Interpreter& self = Interpreter::of(L);
  lua_Integer from = luaL_optinteger(L, 2, 1);
  lua_Integer to = lua_isnoneornil(L, 3) ? luaL_len(L, 1) : luaL_checkinteger(L, 3);
  if (from > to) return 0;
  lua_Unsigned count = static_cast<lua_Unsigned>(to) - static_cast<lua_Unsigned>(from);
  if (count >= static_cast<lua_Unsigned>(std::numeric_limits<int>::max()) ||
      !lua_checkstack(L, static_cast<int>(++count)))
    return luaL_error(L, "too many results to unpack");
  for (; from < to; from++) {
    self.charge(L, 2);
    lua_geti(L, 1, from);
  }
  lua_geti(L, 1, to);
  return static_cast<int>(count);
}

// --- sort ---

class Sorter {
 public:
  // Sorts the elements 1..count of the array at stack index `elements`. The comparison function, or nil, is at index 2.
  Sorter(lua_State* L, int elements, size_t count) : L_(L), elements_(elements), from_(count), to_(count) {
    for (size_t i = 0; i < count; i++) from_[i] = static_cast<uint32_t>(i + 1);
  }

  const std::vector<uint32_t>& order() {
    for (size_t width = 1; width < from_.size(); width *= 2) {
      for (size_t first = 0; first < from_.size(); first += 2 * width) merge(first, width);
      from_.swap(to_);
    }
    return from_;
  }

 private:
  void merge(size_t first, size_t width) {
    size_t middle = std::min(first + width, from_.size()), end = std::min(middle + width, from_.size());
    size_t left = first, right = middle;
    for (size_t at = first; at < end; at++) {
      bool take_right = left == middle || (right < end && less(from_[right], from_[left]));
      to_[at] = take_right ? from_[right++] : from_[left++];
    }
  }

  bool less(uint32_t a, uint32_t b) {
    Interpreter& self = Interpreter::of(L_);
    self.charge(L_, 4);
    bool called = !lua_isnil(L_, 2);
    if (called) lua_pushvalue(L_, 2);
    lua_rawgeti(L_, elements_, a);
    lua_rawgeti(L_, elements_, b);
    bool result = false;
    if (called) {
      lua_call(L_, 2, 1);
      result = lua_toboolean(L_, -1) != 0;
      lua_pop(L_, 1);
    } else {
      if (lua_type(L_, -1) == LUA_TSTRING) self.charge_bytes(L_, lua_rawlen(L_, -1));
      result = lua_compare(L_, -2, -1, LUA_OPLT) != 0;
      lua_pop(L_, 2);
    }
    return result;
  }

  lua_State* L_;
  int elements_;
  std::vector<uint32_t> from_, to_;
};

int sort(lua_State* L) {
  Interpreter& self = Interpreter::of(L);
  check_indexable(L, 1, {"__index", "__newindex", "__len"});
  lua_Integer count = luaL_len(L, 1);
  if (count < 2) return 0;
  luaL_argcheck(L, count < std::numeric_limits<int>::max(), 1, "array too big");
  if (!lua_isnoneornil(L, 2)) luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  auto size = static_cast<size_t>(count);
  MemoryClaim claim(L, size * 2 * sizeof(uint32_t));
  lua_createtable(L, static_cast<int>(count), 0);
  for (lua_Integer i = 1; i <= count; i++) {
    self.charge(L, 1);
    lua_geti(L, 1, i);
    lua_rawseti(L, 3, i);
  }
  Sorter sorter(L, 3, size);
  lua_Integer at = 0;
  for (uint32_t element : sorter.order()) {
    self.charge(L, 1);
    lua_rawgeti(L, 3, element);
    lua_seti(L, 1, ++at);
  }
  return 0;
}

} // namespace

int open_table(lua_State* L) {
  static constexpr luaL_Reg functions[] = {{"concat", concat}, {"insert", insert}, {"move", move},
                                           {"pack", pack},     {"remove", remove}, {"sort", sort},
                                           {"unpack", unpack}, {nullptr, nullptr}};
  luaL_newlib(L, functions);
  return 1;
}

} // namespace fvlm::recipe
