-- expect: cannot set .extra.*read-only
local fvlm = require "fvlm"
fvlm.extra = 1 -- here
