// The basic functions of Lua, with these differences: no code is loaded, no address is visible, tables are traversed in
// one order, and an exceeded limit cannot be caught.
#include "base/log.h"
#include "recipe/lua_order.h"
#include "recipe/sandbox_interpreter.h"

#include <algorithm>
#include <cctype>

namespace fvlm::recipe {
namespace {

const char proxied_key = 0;  // in the metatable of a read-only proxy: the table behind it
const char original_key = 0; // in the private copy of a metatable: the author's original

int raise_error(lua_State* L) {
  auto level = static_cast<int>(luaL_optinteger(L, 2, 1));
  lua_settop(L, 1);
  if (lua_type(L, 1) == LUA_TSTRING && level > 0) {
    luaL_where(L, level);
    lua_insert(L, 1);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

int check(lua_State* L) { // assert
  if (lua_toboolean(L, 1)) return lua_gettop(L);
  luaL_checkany(L, 1);
  if (lua_gettop(L) == 1) lua_pushliteral(L, "assertion failed!");
  lua_settop(L, 2);
  return lua_error(L);
}

// --- Protected calls, which do not catch exceeded limits ---

int finish_call(lua_State* L, int status, lua_KContext first_result) {
  Interpreter::of(L).rethrow_stop(L, status);
  if (status == LUA_OK || status == LUA_YIELD) return lua_gettop(L) - static_cast<int>(first_result);
  Interpreter::of(L).charge(L, Interpreter::unwinding_cost);
  lua_pushboolean(L, 0);
  lua_insert(L, -2);
  return 2;
}

int protected_call(lua_State* L) {
  luaL_checkany(L, 1);
  lua_pushboolean(L, 1); // the first result on success
  lua_insert(L, 1);
  return finish_call(L, lua_pcallk(L, lua_gettop(L) - 2, LUA_MULTRET, 0, 0, finish_call), 0);
}

int guarded_handler(lua_State* L) {
  if (Interpreter::of(L).stopped) return 1;
  lua_settop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, 1, 1);
  return 1;
}

int protected_call_with_handler(lua_State* L) {
  int arguments = lua_gettop(L) - 2;
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_pushvalue(L, 2);
  lua_pushcclosure(L, guarded_handler, 1);
  lua_replace(L, 2);
  lua_pushboolean(L, 1);
  lua_pushvalue(L, 1);
  lua_rotate(L, 3, 2); // function, handler, true, function, arguments
  return finish_call(L, lua_pcallk(L, arguments, LUA_MULTRET, 2, 2, finish_call), 2);
}

// --- Traversing tables ---

int next_key(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 2);
  compute_lazy_fields(L, 1);
  if (push_proxied(L, 1)) lua_replace(L, 1);
  if (!push_key_after(L, 1, 2)) return lua_pushnil(L), 1;
  lua_pushvalue(L, -1);
  lua_rawget(L, 1);
  return 2;
}

int pairs_step(lua_State* L) {
  lua_Integer at = lua_tointeger(L, lua_upvalueindex(3));
  Interpreter& self = Interpreter::of(L);
  while (true) {
    self.charge(L, 1);
    bool more = lua_rawgeti(L, lua_upvalueindex(2), ++at) != LUA_TNIL;
    lua_pushinteger(L, at);
    lua_replace(L, lua_upvalueindex(3));
    if (!more) return 1;
    lua_pushvalue(L, -1);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 2;
    lua_pop(L, 2); // removed during the traversal
  }
}

int pairs(lua_State* L) {
  luaL_checkany(L, 1);
  lua_settop(L, 1);
  compute_lazy_fields(L, 1);
  if (!push_proxied(L, 1)) {
    if (luaL_getmetafield(L, 1, "__pairs") != LUA_TNIL) {
      lua_insert(L, 1);
      lua_call(L, 1, 3);
      return 3;
    }
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_pushvalue(L, 1);
  }
  push_sorted_keys(L, 2);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, pairs_step, 3);
  lua_insert(L, 1);
  lua_pushnil(L);
  return 3;
}

int ipairs_step(lua_State* L) {
  auto at = static_cast<lua_Integer>(static_cast<lua_Unsigned>(luaL_checkinteger(L, 2)) + 1);
  lua_pushinteger(L, at);
  return lua_geti(L, 1, at) == LUA_TNIL ? 1 : 2;
}

int ipairs(lua_State* L) {
  luaL_checkany(L, 1);
  lua_pushcfunction(L, ipairs_step);
  lua_pushvalue(L, 1);
  lua_pushinteger(L, 0);
  return 3;
}

// --- Raw access and metatables, not for the engine's own tables ---

int raw_get(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checkany(L, 2);
  lua_settop(L, 2);
  compute_lazy_fields(L, 1);
  lua_rawget(L, 1);
  return 1;
}

int raw_set(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checkany(L, 2);
  luaL_checkany(L, 3);
  lua_settop(L, 3);
  if (push_proxied(L, 1)) return luaL_error(L, "this table belongs to the engine and is read-only");
  lua_rawset(L, 1);
  return 1;
}

int raw_equal(lua_State* L) {
  luaL_checkany(L, 1);
  luaL_checkany(L, 2);
  return lua_pushboolean(L, lua_rawequal(L, 1, 2)), 1;
}

int raw_length(lua_State* L) {
  luaL_argexpected(L, lua_istable(L, 1) || lua_type(L, 1) == LUA_TSTRING, 1, "table or string");
  return lua_pushinteger(L, static_cast<lua_Integer>(lua_rawlen(L, 1))), 1;
}

int get_metatable(lua_State* L) {
  luaL_checkany(L, 1);
  compute_lazy_fields(L, 1);
  if (!lua_istable(L, 1) || !lua_getmetatable(L, 1)) return lua_pushnil(L), 1;
  if (luaL_getmetafield(L, 1, "__metatable") == LUA_TNIL) lua_rawgetp(L, -1, &original_key);
  return 1;
}

// A table gets a private copy of the author's current metatable, so that what is refused here cannot be added later.
// Refused are events that reveal when memory is collected, and those that corrupt memory in Lua 5.4.4 to 5.4.6: a
// __concat that grows the stack, and a __close in a loop with break.
int set_metatable(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_argexpected(L, lua_isnil(L, 2) || lua_istable(L, 2), 2, "nil or table");
  lua_settop(L, 2);
  compute_lazy_fields(L, 1);
  if (luaL_getmetafield(L, 1, "__metatable") != LUA_TNIL) return luaL_error(L, "cannot change a protected metatable");
  if (lua_isnil(L, 2)) return lua_setmetatable(L, 1), 1;
  Interpreter::of(L).charge(L, 10);
  for (const char* event : {"__gc", "__mode", "__close", "__concat"}) {
    lua_pushstring(L, event);
    if (lua_rawget(L, 2) != LUA_TNIL)
      return luaL_error(L, "a metatable may not carry %s\n  %s", event,
                        event[2] == 'c' ? "use a function" : "a recipe must not observe garbage collection");
    lua_pop(L, 1);
  }
  lua_pushliteral(L, "__call");
  lua_rawget(L, 2);
  if (!lua_isnil(L, -1) && !lua_isfunction(L, -1)) // a chain of tables would be followed within one instruction
    return luaL_error(L, "__call must be a function");
  lua_settop(L, 2);
  lua_newtable(L);
  for (const char* event :
       {"__index", "__newindex", "__call", "__tostring", "__pairs", "__metatable", "__len", "__eq",
        "__lt",    "__le",       "__unm",  "__add",      "__sub",   "__mul",       "__div", "__mod",
        "__pow",   "__idiv",     "__band", "__bor",      "__bxor",  "__shl",       "__shr", "__bnot"}) {
    lua_pushstring(L, event);
    lua_pushvalue(L, -1);
    lua_rawget(L, 2);
    lua_rawset(L, 3);
  }
  lua_pushvalue(L, 2);
  lua_rawsetp(L, 3, &original_key);
  lua_setmetatable(L, 1);
  return lua_settop(L, 1), 1;
}

int refuse_write(lua_State* L) {
  const char* key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : luaL_typename(L, 2);
  return luaL_error(L, "cannot set '%s': this table is the engine's, it is read-only", key);
}

// --- Values ---

int type_name(lua_State* L) {
  luaL_checkany(L, 1);
  return lua_pushstring(L, luaL_typename(L, 1)), 1;
}

int to_string(lua_State* L) {
  luaL_checkany(L, 1);
  push_text(L, 1);
  return 1;
}

int to_number(lua_State* L) {
  if (lua_isnoneornil(L, 2)) {
    luaL_checkany(L, 1);
    if (lua_type(L, 1) == LUA_TNUMBER) return lua_settop(L, 1), 1;
    size_t length = 0;
    const char* text = lua_type(L, 1) == LUA_TSTRING ? lua_tolstring(L, 1, &length) : nullptr;
    Interpreter::of(L).charge_bytes(L, length);
    if (!text || lua_stringtonumber(L, text) != length + 1) lua_pushnil(L);
    return 1;
  }
  lua_Integer base = luaL_checkinteger(L, 2);
  luaL_argcheck(L, 2 <= base && base <= 36, 2, "base out of range");
  luaL_checktype(L, 1, LUA_TSTRING);
  size_t length = 0;
  const char* text = lua_tolstring(L, 1, &length);
  Interpreter::of(L).charge_bytes(L, length);
  std::string_view digits(text, length);
  auto blank = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!digits.empty() && blank(digits.front())) digits.remove_prefix(1);
  while (!digits.empty() && blank(digits.back())) digits.remove_suffix(1);
  bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  lua_Unsigned number = 0;
  for (char c : digits) {
    auto byte = static_cast<unsigned char>(c);
    int digit = std::isdigit(byte) ? c - '0' : std::isalpha(byte) ? std::toupper(byte) - 'A' + 10 : 36;
    if (digit >= base) return lua_pushnil(L), 1;
    number = number * static_cast<lua_Unsigned>(base) + static_cast<lua_Unsigned>(digit);
  }
  if (digits.empty()) return lua_pushnil(L), 1;
  lua_pushinteger(L, static_cast<lua_Integer>(negative ? 0 - number : number));
  return 1;
}

int select(lua_State* L) {
  int count = lua_gettop(L);
  Interpreter::of(L).charge(L, static_cast<uint64_t>(count));
  if (lua_type(L, 1) == LUA_TSTRING && *lua_tostring(L, 1) == '#') return lua_pushinteger(L, count - 1), 1;
  lua_Integer from = luaL_checkinteger(L, 1);
  if (from < 0)
    from = count + from;
  else if (from > count)
    from = count;
  luaL_argcheck(L, 1 <= from, 1, "index out of range");
  return count - static_cast<int>(from);
}

// Prints to the log, because standard output is for data. The output is limited and contains no control characters.
int print(lua_State* L) {
  constexpr int max_lines = 200;
  constexpr size_t max_line = 1000;
  Interpreter& self = Interpreter::of(L);
  std::string line;
  for (int i = 1, count = lua_gettop(L); i <= count; i++) {
    size_t length = 0;
    const char* text = push_text(L, i, &length);
    if (i > 1) line += "  ";
    if (line.size() < max_line) line.append(text, std::min(length, max_line - line.size()));
    lua_pop(L, 1);
  }
  if (self.printed > max_lines) return 0;
  std::ranges::replace_if(
      line, [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; }, ' ');
  Origin place = self.author_line(L);
  if (self.printed++ == max_lines)
    log_info("{}: print: limit of {} lines reached, further output is dropped", where(place), max_lines);
  else
    log_info("{}: {}", where(place), line);
  return 0;
}

} // namespace

void make_read_only(lua_State* L) {
  lua_newtable(L); // the proxy
  lua_newtable(L); // its metatable
  lua_pushvalue(L, -3);
  lua_rawsetp(L, -2, &proxied_key);
  lua_pushvalue(L, -3);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, refuse_write);
  lua_setfield(L, -2, "__newindex");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);
  lua_replace(L, -2);
}

bool push_proxied(lua_State* L, int index) {
  if (!lua_istable(L, index) || !lua_getmetatable(L, index)) return false;
  bool found = lua_rawgetp(L, -1, &proxied_key) != LUA_TNIL;
  lua_remove(L, -2);
  if (!found) lua_pop(L, 1);
  return found;
}

const char* push_text(lua_State* L, int index, size_t* length) {
  index = lua_absindex(L, index);
  switch (lua_type(L, index)) {
  case LUA_TNUMBER:
  case LUA_TSTRING:
    lua_pushvalue(L, index);
    break;
  case LUA_TBOOLEAN:
    lua_pushstring(L, lua_toboolean(L, index) ? "true" : "false");
    break;
  default:
    if (push_tag(L, index)) {
      lua_rawgeti(L, -1, 1);
      lua_pushfstring(L, "fvlm.%s", lua_tostring(L, -1));
      lua_replace(L, -3);
      lua_pop(L, 1);
    } else if (lua_istable(L, index) && luaL_getmetafield(L, index, "__tostring") != LUA_TNIL) {
      lua_pushvalue(L, index);
      lua_call(L, 1, 1);
      if (!lua_isstring(L, -1)) luaL_error(L, "'__tostring' must return a string");
    } else {
      lua_pushstring(L, luaL_typename(L, index)); // without its address
    }
  }
  return lua_tolstring(L, -1, length);
}

int open_base(lua_State* L) {
  static constexpr luaL_Reg functions[] = {{"assert", check},
                                           {"error", raise_error},
                                           {"getmetatable", get_metatable},
                                           {"ipairs", ipairs},
                                           {"next", next_key},
                                           {"pairs", pairs},
                                           {"pcall", protected_call},
                                           {"print", print},
                                           {"rawequal", raw_equal},
                                           {"rawget", raw_get},
                                           {"rawlen", raw_length},
                                           {"rawset", raw_set},
                                           {"require", require},
                                           {"select", select},
                                           {"setmetatable", set_metatable},
                                           {"tonumber", to_number},
                                           {"tostring", to_string},
                                           {"type", type_name},
                                           {"xpcall", protected_call_with_handler},
                                           {nullptr, nullptr}};
  luaL_newlib(L, functions);
  lua_pushliteral(L, LUA_VERSION);
  lua_setfield(L, -2, "_VERSION");
  return 1;
}

} // namespace fvlm::recipe
