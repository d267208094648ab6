// Fields of an argument that are computed once a function reads them. They are behind a metatable that no author sees:
// what would show it computes all of them first, and the table is a plain one from then on.
#include "recipe/sandbox_interpreter.h"

#include <new>
#include <string_view>

namespace fvlm::recipe {
namespace {

const char lazy_key = 0; // in the metatable: the fields

struct LazyFields {
  std::shared_ptr<const Table> table;
  std::vector<bool> are_read;
};

LazyFields& fields_at(lua_State* L, int index) {
  return *static_cast<LazyFields*>(lua_touserdata(L, index));
}

// __index. A field is computed once at most, also where the author has removed it since, so that no loop can compute
// without end. The limits are those of the author's own work.
int compute_field(lua_State* L) {
  LazyFields& fields = fields_at(L, lua_upvalueindex(1));
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  const std::string_view key = lua_tostring(L, 2);
  for (size_t i = 0; i < fields.are_read.size(); ++i) {
    const auto& [name, compute] = fields.table->lazy[i];
    if (name != key || fields.are_read[i]) continue;
    fields.are_read[i] = true;
    const auto begin = std::chrono::steady_clock::now();
    lua_pushnumber(L, compute());
    Interpreter::of(L).deadline += std::chrono::steady_clock::now() - begin;
    lua_pushvalue(L, 2);
    lua_pushvalue(L, -2);
    lua_rawset(L, 1);
    return 1;
  }
  return 0;
}

} // namespace

void add_lazy_fields(lua_State* L, const std::shared_ptr<const Table>& table) {
  lua_newtable(L); // the metatable
  if (luaL_newmetatable(L, "lazy fields")) {
    lua_pushcfunction(L, [](lua_State* collecting) {
      fields_at(collecting, 1).~LazyFields();
      return 0;
    });
    lua_setfield(L, -2, "__gc");
  }
  new (lua_newuserdatauv(L, sizeof(LazyFields), 0)) LazyFields{table, std::vector<bool>(table->lazy.size())};
  lua_insert(L, -2);
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, -3, &lazy_key);
  lua_pushcclosure(L, compute_field, 1);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
}

void compute_lazy_fields(lua_State* L, int index) {
  index = lua_absindex(L, index);
  if (!lua_istable(L, index) || !lua_getmetatable(L, index)) return;
  const bool is_lazy = lua_rawgetp(L, -1, &lazy_key) != LUA_TNIL;
  const std::shared_ptr<const Table> table = is_lazy ? fields_at(L, -1).table : nullptr;
  lua_pop(L, 2);
  if (!table) return;
  for (const auto& [name, compute] : table->lazy) {
    lua_getfield(L, index, name.c_str());
    lua_pop(L, 1);
  }
  lua_pushnil(L);
  lua_setmetatable(L, index);
}

} // namespace fvlm::recipe
