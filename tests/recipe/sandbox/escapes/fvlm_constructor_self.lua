-- expect: call it with a dot, not a colon
local fvlm = require "fvlm"
return fvlm:adamw {} -- here
