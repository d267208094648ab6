-- expect: more than 5000000 instructions
local t = {}
for i = 1, 50000 do t[i] = i end
while true do for k in pairs(t) do break end end -- here
