-- expect: more than 5000000 instructions
local s = ("x"):rep(200000)
while true do local n = select("#", s:byte(1, -1)) end -- here
