-- expect: more than 5000000 instructions
local s = ("x"):rep(1000000)
while true do s = s:upper():lower():reverse() end -- here
