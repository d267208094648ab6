-- expect: fvlm.adamw got a table with a metatable
local fvlm = require "fvlm"
return fvlm.adamw(string) -- here
