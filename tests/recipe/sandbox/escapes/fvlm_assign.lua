-- expect: cannot set .adamw.*read-only
local fvlm = require "fvlm"
fvlm.adamw = nil -- here
