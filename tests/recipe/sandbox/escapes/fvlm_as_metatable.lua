-- the engine's table used as somebody's metatable stays what it is
local fvlm = require "fvlm"
local t = setmetatable({}, fvlm)
assert(rawequal(getmetatable(t), fvlm) and not pcall(function() getmetatable(t).x = 1 end))
return "contained"
