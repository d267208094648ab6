-- expect: (more than 5000000 instructions|more than 16.0 MiB of memory)
local fvlm = require "fvlm"
while true do fvlm.adamw { lr = 1 } end -- here
