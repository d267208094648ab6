// LuaFunction: a Lua function of the recipe, which can be called through the Sandbox that ran the recipe.
#pragma once
#include <cstdint>
#include <string>

namespace fvlm::plan {

struct LuaFunction {
  int64_t index = -1;  // FunctionId::index
  std::string defined; // "recipes/mine.lua:40"
  std::string code;    // SHA-256 of the recipe's Lua files, so that changed code changes the Plan's hash
};

} // namespace fvlm::plan
