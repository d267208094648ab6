-- expect: more than 5000000 instructions
local s, p = ("a"):rep(1000000), ("a"):rep(500000) .. "b"
while true do s:find(p, 1, true) end -- here
