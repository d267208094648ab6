local fvlm = require "fvlm"
assert(not pcall(fvlm.arg, ("x"):rep(1e5 // 1)) and not pcall(fvlm.arg, "x", ("x"):rep(1e5 // 1)))
local asked = 0
while pcall(fvlm.arg, "name" .. asked) do asked = asked + 1 end
assert(asked <= 1000)
return "contained"
