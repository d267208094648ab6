-- expect: more than 5000000 instructions
local s = ("x"):rep(1000000)
while true do local t = ("%s%s"):format(s, s) end -- here
