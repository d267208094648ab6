-- expect: cannot set .adamw
local t = setmetatable({}, { __index = require "fvlm", __newindex = require "fvlm" })
assert(t.adamw)
t.adamw = print -- here
