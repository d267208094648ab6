-- expect: more than 5000000 instructions
local s = ("ä"):rep(500000)
while true do local n = utf8.len(s) end -- here
