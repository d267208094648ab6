// Types of single values that only this schema has: curves, choices of layers, functions of the recipe.
#pragma once
#include "recipe/plan.h"
#include "recipe/schema/basic.h"

namespace fvlm::recipe {

// A number, a list of numbers, or a Lua function of the stage's progress, sampled at Curve::sampled points.
Ref<plan::Curve> curve(Range range);

// "none", "all", { every = 2 } or { layers = { 0, 3 } }.
Ref<plan::Recompute> recompute();

Ref<plan::LuaFunction> lua_function(std::string signature);

} // namespace fvlm::recipe
