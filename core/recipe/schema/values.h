// Scalar types that are specific to recipes: curves, layer selections for activation checkpointing, and Lua functions.
#pragma once
#include "recipe/plan.h"
#include "recipe/schema/basic.h"

namespace fvlm::recipe {

// A number, a list of numbers, or a Lua function of the stage's progress, sampled at Curve::sample_count points.
Ref<plan::Curve> curve(Range range);

// "none", "light", "all", { every = 2 } or { layers = { 0, 3 } }.
Ref<plan::Recompute> recompute();

// A number of at least 1, "auto" or "memory".
Ref<plan::PackTokens> pack_tokens();

Ref<plan::LuaFunction> lua_function(std::string signature);

} // namespace fvlm::recipe
