-- expect: (more than 5000000 instructions|more than 16.0 MiB of memory)
local fvlm = require "fvlm"
local t = {}
while true do t[#t + 1] = fvlm.stage "x" end -- here
