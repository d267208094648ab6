// The coroutine library. Coroutines share the limits of the evaluation: each has the hook, and a limit exceeded inside
// one ends the whole evaluation. There is no coroutine.close, because metatables cannot have __close.
#include "recipe/sandbox_interpreter.h"

namespace fvlm::recipe {
namespace {

constexpr uint64_t switch_cost = 100; // a coroutine may end before the hook counts its instructions

lua_State* checked_coroutine(lua_State* L) {
  lua_State* coroutine = lua_tothread(L, 1);
  luaL_argexpected(L, coroutine, 1, "thread");
  return coroutine;
}

// Resumes a coroutine with the arguments on top of the stack. Returns the number of results, or -1 with the error
// object on top.
int resume_with(lua_State* L, lua_State* coroutine, int arguments) {
  Interpreter& self = Interpreter::of(L);
  self.charge(L, switch_cost);
  if (!lua_checkstack(coroutine, arguments)) {
    lua_pushliteral(L, "too many arguments to resume");
    return -1;
  }
  lua_xmove(L, coroutine, arguments);
  lua_sethook(coroutine, lua_gethook(L), LUA_MASKCOUNT, lua_gethookcount(L));
  self.threads.push_back(coroutine);
  int results = 0;
  int status = lua_resume(coroutine, L, arguments, &results);
  self.threads.pop_back();
  self.rethrow_stop(L, status);
  if (status == LUA_OK || status == LUA_YIELD) {
    if (!lua_checkstack(L, results + 1)) {
      lua_pop(coroutine, results);
      lua_pushliteral(L, "too many results to resume");
      return -1;
    }
    lua_xmove(coroutine, L, results);
    return results;
  }
  self.charge(L, Interpreter::unwinding_cost);
  lua_xmove(coroutine, L, 1);
  return -1;
}

int resume(lua_State* L) {
  lua_State* coroutine = checked_coroutine(L);
  int results = resume_with(L, coroutine, lua_gettop(L) - 1);
  lua_pushboolean(L, results >= 0);
  if (results < 0) results = 1;
  lua_insert(L, -(results + 1));
  return results + 1;
}

int wrapped(lua_State* L) {
  lua_State* coroutine = lua_tothread(L, lua_upvalueindex(1));
  int results = resume_with(L, coroutine, lua_gettop(L));
  return results >= 0 ? results : lua_error(L);
}

int create(lua_State* L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  Interpreter::of(L).charge(L, switch_cost);
  lua_State* coroutine = lua_newthread(L);
  lua_pushvalue(L, 1);
  lua_xmove(L, coroutine, 1);
  return 1;
}

int wrap(lua_State* L) {
  create(L);
  lua_pushcclosure(L, wrapped, 1);
  return 1;
}

int yield(lua_State* L) {
  return lua_yield(L, lua_gettop(L));
}

const char* status_of(lua_State* L, lua_State* coroutine) {
  if (L == coroutine) return "running";
  if (lua_status(coroutine) == LUA_YIELD) return "suspended";
  if (lua_status(coroutine) != LUA_OK) return "dead";
  lua_Debug frame;
  if (lua_getstack(coroutine, 0, &frame)) return "normal";
  return lua_gettop(coroutine) == 0 ? "dead" : "suspended";
}

int status(lua_State* L) {
  return lua_pushstring(L, status_of(L, checked_coroutine(L))), 1;
}

int is_yieldable(lua_State* L) {
  lua_State* coroutine = lua_isnone(L, 1) ? L : checked_coroutine(L);
  return lua_pushboolean(L, lua_isyieldable(coroutine)), 1;
}

int running(lua_State* L) {
  bool main = lua_pushthread(L) != 0;
  lua_pushboolean(L, main);
  return 2;
}

} // namespace

int open_coroutine(lua_State* L) {
  static constexpr luaL_Reg functions[] = {{"create", create}, {"isyieldable", is_yieldable},
                                           {"resume", resume}, {"running", running},
                                           {"status", status}, {"wrap", wrap},
                                           {"yield", yield},   {nullptr, nullptr}};
  luaL_newlib(L, functions);
  return 1;
}

} // namespace fvlm::recipe
