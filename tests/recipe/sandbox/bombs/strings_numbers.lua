-- expect: more than 5000000 instructions
local s = ("9"):rep(1000000)
while true do local n = tonumber(s), tonumber(s, 10) end -- here
