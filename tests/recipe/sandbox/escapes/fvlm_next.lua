-- walking shows names and functions, not the table behind
local fvlm = require "fvlm"
local name, constructor = next(fvlm)
assert(type(name) == "string" and type(constructor) == "function")
local iterate, walked = pairs(fvlm)
assert(rawequal(walked, fvlm))
for key, value in iterate, walked do assert(type(key) == "string" and type(value) == "function") end
return "contained"
