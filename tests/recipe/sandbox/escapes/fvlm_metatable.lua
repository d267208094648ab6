local fvlm = require "fvlm"
assert(getmetatable(fvlm) == false)
assert(not pcall(setmetatable, fvlm, {}) and not pcall(setmetatable, fvlm, nil))
return "contained"
