-- the arithmetic of numerals cannot be replaced either
local mt = getmetatable("")
assert(mt == nil and "10" + 1 == 11)
assert(not pcall(function() return "a" + 1 end))
return "contained"
