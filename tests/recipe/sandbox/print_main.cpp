// sandbox_print RECIPE: prints the recipe's value as text, then the order in which plain Lua traverses a table, which
// depends on this process's hash seed.
#include "base/error.h"
#include "recipe/sandbox.h"

#include <fmt/format.h>
#include <lua.h>

#include <cstdio>
#include <lauxlib.h>

using namespace fvlm::recipe;

namespace {

void print(const Value& value, std::string& out) {
  out += fmt::format("@{} ", where(value.origin));
  if (auto* table = std::get_if<std::shared_ptr<const Table>>(&value.data)) {
    out += fmt::format("{} {{ ", (*table)->constructor);
    for (const auto& [key, inner] : (*table)->fields) out += key + " = ", print(inner, out);
    for (const auto& inner : (*table)->items) print(inner, out);
    out += "}\n";
  } else if (auto* text = std::get_if<std::string>(&value.data)) {
    out += "'" + *text + "' ";
  } else if (auto* integer = std::get_if<int64_t>(&value.data)) {
    out += std::to_string(*integer) + " ";
  } else if (auto* number = std::get_if<double>(&value.data)) {
    out += fmt::format("{:a} ", *number);
  } else {
    out += kind_name(value) + " ";
  }
}

} // namespace

int main(int, char** arguments) {
  SandboxConfig config;
  config.constructors = {{"recipe"}, {"adamw"}, {"stage", 1}};
  std::string out;
  try {
    Sandbox sandbox(config);
    print(sandbox.run(arguments[1]), out);
  } catch (const fvlm::Error& error) {
    out = error.text();
  }
  lua_State* L = luaL_newstate();
  lua_newtable(L);
  for (int i = 0; i < 40; i++) {
    lua_pushboolean(L, 1);
    lua_setfield(L, -2, fmt::format("key{}", i).c_str());
  }
  std::string order;
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) order += std::string(lua_tostring(L, -2)) + " ";
  lua_close(L);
  std::puts(out.c_str());
  std::puts(("seed: " + order).c_str());
  return 0;
}
